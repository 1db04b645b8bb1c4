// Opens modules, and has each call libc: the first as usual, before and after it has opened the others with RTLD_DEEPBIND. With
// an argument in front, "where", it says from where each takes functions of libc's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>

static void say_where(void *module)
{
    void *(*taken)(int) = dlsym(module, "taken");
    for (int way = 0; way < 3; way++) {
        Dl_info info = {0};
        dladdr(taken(way), &info);
        printf(" %s", basename((char *)info.dli_fname));
    }
}

int main(int n, char **paths)
{
    int where = n > 1 && !strcmp(paths[1], "where"), first = 1 + where;
    void *modules[n];
    for (int i = first; i < n; i++) {
        modules[i] = dlopen(paths[i], RTLD_LAZY | (i > first ? RTLD_DEEPBIND : 0));
        if (!modules[i])
            return puts(dlerror()), 1;
        const char *error = dlerror();
        printf("%d opened, %s\n", i, error ? error : "no error");
    }
    for (int i = first; i < n; i++) {
        int (*end)(void) = dlsym(modules[i], "end"), (*hook)(void) = dlsym(modules[i], "hook");
        printf("%d: %d %d", i, end(), hook());
        if (where)
            say_where(modules[i]);
        puts("");
    }
    printf("%d\n", dlopen("/nowhere", RTLD_DEEPBIND | RTLD_NOW) != NULL);
    puts(dlerror());
    return 0;
}
