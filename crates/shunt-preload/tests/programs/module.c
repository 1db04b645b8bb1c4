// A module that calls libc; as a library that is preloaded it has a function of libc's itself.
#include <sys/socket.h>

#ifdef PRELOADED
int shutdown(int fd, int how)
{
    return fd < 0 ? 77 : how;
}
#else
int end(void)
{
    return shutdown(-1, SHUT_RD);
}
#endif
