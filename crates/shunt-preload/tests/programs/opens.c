// Opens modules, and has each call libc: the first as usual, before and after it has opened the others with RTLD_DEEPBIND.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int n, char **paths)
{
    for (int i = 1; i < n; i++) {
        void *module = dlopen(paths[i], RTLD_LAZY | (i > 1 ? RTLD_DEEPBIND : 0));
        if (!module)
            return puts(dlerror()), 1;
        const char *error = dlerror();
        printf("%d opened, %s\n", i, error ? error : "no error");
    }
    for (int i = 1; i < n; i++) {
        int (*end)(void) = dlsym(dlopen(paths[i], RTLD_NOLOAD | RTLD_LAZY), "end");
        printf("%d: %d\n", i, end());
    }
    printf("%d\n", dlopen("/nowhere", RTLD_DEEPBIND | RTLD_NOW) != NULL);
    puts(dlerror());
    return 0;
}
