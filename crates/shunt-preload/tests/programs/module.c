// A module that calls libc; as a library that is preloaded, or needed by the module, it has functions of libc's itself.
#include <sys/socket.h>
#include <unistd.h>

#ifdef INSTEAD
int shutdown(int fd, int how)
{
    return fd < 0 ? 77 : how;
}
#else
static ssize_t own(int fd, void *to, size_t most)
{
    return fd < 0 ? 1000 : to != 0 && most > 0;
}

// Its constructor changes one of them.
static ssize_t (*hooks[2])(int, void *, size_t) = {read, read};
static ssize_t (*const constant)(int, const void *, size_t) = write;

__attribute__((constructor)) static void begin(void)
{
    hooks[1] = own;
}

int end(void)
{
    return shutdown(-1, SHUT_RD);
}

int hook(void)
{
    return hooks[1](-1, 0, 0);
}

// What it takes from libc: by a call, in a variable, and in a constant.
void *taken(int way)
{
    return way == 0 ? (void *)listen : way == 1 ? (void *)hooks[0] : (void *)constant;
}
#endif
