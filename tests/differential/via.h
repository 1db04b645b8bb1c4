// Chooses how the programs reach the kernel: by libc's functions, or, built
// with -DVIA_SYSCALL, by syscall(2) as Node and some Rust programs do.
// Include after the system's headers.
#ifndef VIA_H
#define VIA_H
#ifdef VIA_SYSCALL
#include <sys/syscall.h>

#define read(...) syscall(SYS_read, __VA_ARGS__)
#define write(...) syscall(SYS_write, __VA_ARGS__)
#define readv(...) syscall(SYS_readv, __VA_ARGS__)
#define writev(...) syscall(SYS_writev, __VA_ARGS__)
#define preadv(f, v, n, o) syscall(SYS_preadv, f, v, n, o, 0L)
#define pwritev(f, v, n, o) syscall(SYS_pwritev, f, v, n, o, 0L)
#define preadv2(f, v, n, o, g) syscall(SYS_preadv2, f, v, n, (long)(o), 0L, g)
#define pwritev2(f, v, n, o, g) syscall(SYS_pwritev2, f, v, n, (long)(o), 0L, g)
#define pread(...) syscall(SYS_pread64, __VA_ARGS__)
#define pwrite(...) syscall(SYS_pwrite64, __VA_ARGS__)
#define recv(f, b, n, g) syscall(SYS_recvfrom, f, b, n, g, NULL, NULL)
#define send(f, b, n, g) syscall(SYS_sendto, f, b, n, g, NULL, 0)
#define recvfrom(...) syscall(SYS_recvfrom, __VA_ARGS__)
#define sendto(...) syscall(SYS_sendto, __VA_ARGS__)
#define recvmsg(...) syscall(SYS_recvmsg, __VA_ARGS__)
#define sendmsg(...) syscall(SYS_sendmsg, __VA_ARGS__)
#define recvmmsg(...) syscall(SYS_recvmmsg, __VA_ARGS__)
#define sendmmsg(...) syscall(SYS_sendmmsg, __VA_ARGS__)
#define sendfile(...) syscall(SYS_sendfile, __VA_ARGS__)
#define splice(...) syscall(SYS_splice, __VA_ARGS__)
#define shutdown(...) syscall(SYS_shutdown, __VA_ARGS__)
#define close(...) syscall(SYS_close, __VA_ARGS__)
#define dup(...) syscall(SYS_dup, __VA_ARGS__)
#define dup2(...) syscall(SYS_dup2, __VA_ARGS__)
#define dup3(...) syscall(SYS_dup3, __VA_ARGS__)
#define fstat(...) syscall(SYS_fstat, __VA_ARGS__)
#define fcntl(f, ...) syscall(SYS_fcntl, f, __VA_ARGS__, 0L)
#define ioctl(f, ...) syscall(SYS_ioctl, f, __VA_ARGS__, 0L)
#define connect(...) syscall(SYS_connect, __VA_ARGS__)
#define accept(...) syscall(SYS_accept, __VA_ARGS__)
#define accept4(...) syscall(SYS_accept4, __VA_ARGS__)
#define listen(...) syscall(SYS_listen, __VA_ARGS__)
#define bind(...) syscall(SYS_bind, __VA_ARGS__)
#define socket(...) syscall(SYS_socket, __VA_ARGS__)
#define getsockname(...) syscall(SYS_getsockname, __VA_ARGS__)
#define getpeername(...) syscall(SYS_getpeername, __VA_ARGS__)
#define getsockopt(...) syscall(SYS_getsockopt, __VA_ARGS__)
#define setsockopt(...) syscall(SYS_setsockopt, __VA_ARGS__)
#define poll(...) syscall(SYS_poll, __VA_ARGS__)
#define epoll_create1(...) syscall(SYS_epoll_create1, __VA_ARGS__)
#define epoll_ctl(...) syscall(SYS_epoll_ctl, __VA_ARGS__)
#define epoll_wait(...) syscall(SYS_epoll_wait, __VA_ARGS__)
#define epoll_pwait(f, v, n, t, m) syscall(SYS_epoll_pwait, f, v, n, t, m, 8L)
#define epoll_pwait2(f, v, n, t, m) syscall(SYS_epoll_pwait2, f, v, n, t, m, 8L)
#define select(...) syscall(SYS_select, __VA_ARGS__)
#define pidfd_getfd(...) syscall(SYS_pidfd_getfd, __VA_ARGS__)
#define close_range(...) syscall(SYS_close_range, __VA_ARGS__)

// The kernel writes the remaining time back; libc's functions do not.
static inline int via_ppoll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *m)
{
    struct timespec copy, *tp = NULL;
    if (t)
        copy = *t, tp = &copy;
    return syscall(SYS_ppoll, p, n, tp, m, 8L);
}
static inline int via_pselect(int n, fd_set *r, fd_set *w, fd_set *x, const struct timespec *t,
                              const sigset_t *m)
{
    struct timespec copy, *tp = NULL;
    struct {
        const sigset_t *mask;
        size_t size;
    } arg = {m, 8};
    if (t)
        copy = *t, tp = &copy;
    return syscall(SYS_pselect6, n, r, w, x, tp, &arg);
}
#define ppoll via_ppoll
#define pselect via_pselect
#endif
#endif
