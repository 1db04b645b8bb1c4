// The calls of `calls.c` through `syscall`.
#include "show.h"
#include <sys/mman.h>
#include <sys/resource.h>

#define S(name, ...) SHOW(syscall(SYS_##name, ##__VA_ARGS__))

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGPIPE, SIG_IGN);
    int pair[2], one = 1;
    char buffer[64];
    tcp_pair(pair);
    struct iovec out[1] = {{"vector", 6}}, in[1] = {{buffer, 64}};
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct pollfd fd = {pair[1], POLLIN, 0};
    struct timespec time = {0, 1000000};
    struct timeval brief = {0, 1000};
    uint64_t mask = 0;
    struct { void *mask; size_t size; } sized = {&mask, 8};
    fd_set reads;
    socklen_t length = sizeof one;
    S(write, pair[0], "abc", 3), S(read, pair[1], buffer, 64L), S(writev, pair[0], out, 1), S(readv, pair[1], in, 1);
    S(pwritev2, pair[0], out, 1, -1L, -1L, 0), S(preadv2, pair[1], in, 1, -1L, -1L, 0), S(preadv2, pair[1], in, 1, 0L, 0L, 0);
    S(sendto, pair[0], "to", 2, MSG_NOSIGNAL, NULL, 0), S(recvfrom, pair[1], buffer, 64, 0, NULL, NULL);
    S(sendmsg, pair[0], &message, 0), message.msg_iov = in, S(recvmsg, pair[1], &message, 0);
    S(sendmmsg, pair[0], &many, 1, 0), many.msg_hdr.msg_iov = in, S(recvmmsg, pair[1], &many, 1, 0, NULL);
    S(recvfrom, pair[1], buffer, 64, MSG_DONTWAIT, NULL, NULL), S(read, -1, buffer, 1);
    S(ppoll, &fd, 1, &time, &mask, 8), S(ppoll, &fd, 1, &time, &mask, 16), time.tv_nsec = 1000000;
    CLEAR(&reads), FD_SET(pair[1], &reads), S(pselect6, 20, &reads, NULL, NULL, &time, &sized);
#ifdef SYS_poll
    FD_SET(pair[1], &reads), S(select, 20, &reads, NULL, NULL, &brief), S(poll, &fd, 1, 1);
    int old = S(epoll_create, 1);
    S(epoll_wait, old, buffer, 1, 0), S(dup2, old, 30), S(dup2, old, old), S(close, 30), S(close, old);
#endif
    int set = S(epoll_create1, 0);
    struct epoll_event event = {EPOLLOUT, {.u64 = 5}};
    S(epoll_ctl, set, EPOLL_CTL_ADD, pair[0], &event), S(epoll_pwait, set, &event, 1, -1, NULL, 8), time.tv_nsec = 1000000;
    S(epoll_pwait2, set, &event, 1, &time, &mask, 8), S(epoll_pwait, set, &event, 1, 0, &mask, 4);
    int listener = S(socket, AF_INET, SOCK_STREAM, 0), client = S(socket, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    MUST(bind(listener, (void *)&address, size) == 0);
    S(listen, listener, 3);
    MUST(getsockname(listener, (void *)&address, &size) == 0);
    S(connect, client, &address, size), S(accept4, listener, NULL, NULL, SOCK_NONBLOCK), S(connect, client, &address, size);
    int second = S(socket, AF_INET, SOCK_STREAM, 0);
    S(connect, second, &address, size), S(accept, listener, NULL, NULL), S(shutdown, second, SHUT_WR);
    S(setsockopt, client, IPPROTO_TCP, TCP_NODELAY, &one, 4), S(getsockopt, client, IPPROTO_TCP, TCP_NODELAY, &one, &length);
    S(dup, client), S(dup3, client, 40, O_CLOEXEC), S(close_range, 30, 50, 0), S(fcntl, client, F_GETFL), S(ioctl, client, FIONREAD, &one);
    int file = open("/proc/self/exe", O_RDONLY);
    S(sendfile, pair[0], file, NULL, 4), S(read, pair[1], buffer, 64), S(splice, file, NULL, pair[0], NULL, 1, 0);
    // Unknown to us, unknown to the kernel, and one with all six arguments.
    MUST(syscall(SYS_gettid) == gettid());
    S(getpriority, PRIO_PROCESS, 0), SHOW(syscall(5000)), SHOW(syscall(-1));
    char *page = (char *)syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_PRIVATE, file, 4096L);
    MUST(page != MAP_FAILED && pread(file, buffer, 64, 4096) == 64);
    SHOW(memcmp(page, buffer, 64));
    int status;
    pid_t child;
#ifdef SYS_fork
    if ((child = syscall(SYS_fork)) == 0) syscall(SYS_exit_group, 3);
    SHOW(waitpid(child, &status, 0) == child), SHOW(status);
#endif
    if ((child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)) == 0) syscall(SYS_exit_group, 4);
    SHOW(waitpid(child, &status, 0) == child), SHOW(status);
    uint64_t arguments[8] = {[4] = SIGCHLD};
    if ((child = syscall(SYS_clone3, arguments, sizeof arguments)) == 0) syscall(SYS_exit_group, 5);
    SHOW(waitpid(child, &status, 0) == child), SHOW(status);
    S(execve, "/nonexistent", NULL, NULL);
    char *argv[] = {"echo", "by number", NULL};
    S(execve, "/bin/echo", argv, environ);
    return 1;
}
