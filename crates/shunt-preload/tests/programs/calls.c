// Every exported call that needs no second process, on sockets and on files.
#include "show.h"

extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
extern int __close(int), __dup2(int, int), __fcntl(int, int, ...), __connect(int, const struct sockaddr *, socklen_t);
extern int __poll(struct pollfd *, nfds_t, int), __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);

static int pair[2];

static void data(void) {
    char buffer[256] = {0}, other[16];
    struct iovec out[2] = {{"abc", 3}, {"defg", 4}}, in[2] = {{buffer, 2}, {buffer + 100, 50}};
    int a = pair[0], b = pair[1];
    SHOW(write(a, "hello", 5)), SHOW(read(b, buffer, sizeof buffer)), SHOW(memcmp(buffer, "hello", 5));
    SHOW(__write(a, "12", 2)), SHOW(__read(b, buffer, 10));
    SHOW(writev(a, out, 2)), SHOW(readv(b, in, 2)), SHOW(memcmp(buffer + 100, "cdefg", 5));
    SHOW(pwritev2(a, out, 2, -1, 0)), SHOW(preadv2(b, in, 2, -1, 0));
    SHOW(pwritev64v2(a, out, 2, -1, 0)), SHOW(preadv64v2(b, in, 2, -1, RWF_NOWAIT));
    SHOW(preadv2(b, in, 2, 0, 0)), SHOW(pwritev2(a, out, 2, 5, 0)), SHOW(pread(b, buffer, 1, 0));
    SHOW(send(a, "xyz", 3, MSG_NOSIGNAL)), SHOW(recv(b, buffer, 2, MSG_PEEK)), SHOW(recv(b, buffer, 3, MSG_WAITALL));
    SHOW(__send(a, "u", 1, 0)), SHOW(recv(b, buffer, 9, MSG_DONTWAIT)), SHOW(recv(b, buffer, 9, MSG_DONTWAIT));
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    SHOW(sendto(a, "to", 2, 0, NULL, 0)), SHOW(recvfrom(b, buffer, 9, 0, (struct sockaddr *)&from, &length));
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 2};
    SHOW(sendmsg(a, &message, 0));
    message.msg_iov = in;
    SHOW(recvmsg(b, &message, 0)), SHOW(message.msg_flags);
    struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = out, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = out + 1, .msg_iovlen = 1}}};
    struct timespec second = {1, 0};
    SHOW(sendmmsg(a, many, 2, 0)), SHOW(many[1].msg_len);
    many[0].msg_hdr.msg_iov = in;
    SHOW(recvmmsg(b, many, 1, 0, &second)), SHOW(many[0].msg_len), SHOW(recv(b, buffer, 90, MSG_DONTWAIT));
    int file = open("/proc/self/exe", O_RDONLY), pipes[2];
    off_t offset = 1;
    MUST(file >= 0 && pipe(pipes) == 0);
    SHOW(sendfile(a, file, &offset, 3)), SHOW(offset), SHOW(read(b, buffer, 9)), SHOW(memcmp(buffer, "ELF", 3));
    SHOW(sendfile64(a, file, NULL, 4)), SHOW(read(b, buffer, 9)), SHOW(lseek(file, 0, SEEK_CUR));
    SHOW(write(pipes[1], "through", 7)), SHOW(splice(pipes[0], NULL, a, NULL, 7, 0));
    SHOW(splice(b, NULL, pipes[1], NULL, 99, 0)), SHOW(read(pipes[0], buffer, 99)), SHOW(memcmp(buffer, "through", 7));
    SHOW(read(file, other, 4)), SHOW(write(file, other, 4)), SHOW(read(-1, other, 4));
    SHOW(send(file, "", 0, 0)), SHOW(recv(99, buffer, 1, 0)), SHOW(sendfile(a, -1, NULL, 1));
    close(file), close(pipes[0]), close(pipes[1]);
}

static void readiness(void) {
    struct pollfd fds[3] = {{pair[0], POLLIN | POLLOUT, 0}, {pair[1], POLLIN, 0}, {77, POLLIN, 0}};
    struct timespec short_time = {0, 2000000};
    struct timeval brief = {0, 2000};
    sigset_t none;
    sigemptyset(&none);
    SHOW(poll(fds, 3, 100)), SHOW(fds[0].revents), SHOW(fds[1].revents), SHOW(fds[2].revents);
    SHOW(poll(fds + 1, 1, 2)), SHOW(__poll(fds + 1, 1, 0)), SHOW(ppoll(fds + 1, 1, &short_time, &none)), SHOW(short_time.tv_nsec);
    fd_set reads, writes;
    CLEAR(&reads), CLEAR(&writes), FD_SET(pair[1], &reads), FD_SET(pair[0], &writes);
    SHOW(select(20, &reads, &writes, NULL, NULL)), SHOW(FD_ISSET(pair[1], &reads)), SHOW(FD_ISSET(pair[0], &writes));
    CLEAR(&reads), FD_SET(pair[1], &reads);
    SHOW(__select(20, &reads, NULL, NULL, &brief)), SHOW(brief.tv_usec);
    FD_SET(pair[1], &reads);
    SHOW(pselect(20, &reads, NULL, NULL, &short_time, &none)), SHOW(select(-1, NULL, NULL, NULL, &brief));
    int set = SHOW(epoll_create1(EPOLL_CLOEXEC)), old = SHOW(epoll_create(1));
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 0x1122334455667788}}, got[4];
    SHOW(epoll_create(0)), SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &event)), SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, old, &event)), SHOW(epoll_ctl(old, EPOLL_CTL_DEL, pair[0], NULL));
    SHOW(epoll_wait(set, got, 4, 1)), write(pair[0], "1", 1);
    SHOW(epoll_wait(set, got, 4, 100)), SHOW(got[0].events), SHOW(got[0].data.u64);
    SHOW(epoll_pwait(set, got, 4, 1, &none)), write(pair[0], "2", 1);
    SHOW(epoll_pwait2(set, got, 4, NULL, &none)), SHOW(epoll_pwait2(set, got, 4, &short_time, NULL)), SHOW(epoll_wait(set, got, 0, 0));
    SHOW(epoll_wait(pair[0], got, 1, 0)), close(set), close(old);
    char buffer[9];
    SHOW(read(pair[1], buffer, 9));
}

static void descriptors(void) {
    int a = pair[0], b = pair[1], number = 0, one = 1;
    SHOW(fcntl(a, F_GETFL)), SHOW(fcntl(a, F_SETFL, O_RDWR | O_NONBLOCK)), SHOW(fcntl64(a, F_GETFL)), SHOW(fcntl(a, F_SETFL, O_RDWR));
    SHOW(fcntl(a, F_GETFD)), SHOW(fcntl(a, F_SETFD, FD_CLOEXEC)), SHOW(__fcntl(a, F_GETFD)), SHOW(fcntl(-1, F_GETFD));
    int copy = SHOW(fcntl(a, F_DUPFD, 40)), again = SHOW(fcntl(a, F_DUPFD_CLOEXEC, 40)), third = SHOW(dup(a));
    struct flock lock = {F_RDLCK, SEEK_SET, 0, 0, 0};
    SHOW(fcntl(a, F_GETLK, &lock)), SHOW(lock.l_type);
    SHOW(dup2(a, 50)), SHOW(__dup2(a, a)), SHOW(dup3(a, 51, O_CLOEXEC)), SHOW(dup3(a, a, 0)), SHOW(dup2(99, 50)), SHOW(dup(-5));
    SHOW(write(50, "dup", 3)), SHOW(ioctl(b, FIONREAD, &number)), SHOW(number), SHOW(ioctl(b, FIONBIO, &one)), SHOW(fcntl(b, F_GETFL));
    one = 0;
    SHOW(ioctl(b, FIONBIO, &one)), SHOW(ioctl(b, TIOCGWINSZ, &number));
    SHOW(close(copy)), SHOW(__close(again)), SHOW(close(third)), SHOW(close(third)), SHOW(close_range(50, 51, 0)), SHOW(close(50));
    SHOW(close_range(9, 3, 0)), SHOW(dup2(a, 900)), SHOW((closefrom(800), 0)), SHOW(fcntl(900, F_GETFD));
    int type = 0;
    socklen_t length = sizeof type;
    SHOW(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, (int[]){1}, 4)), SHOW(getsockopt(a, SOL_SOCKET, SO_TYPE, &type, &length)), SHOW(type);
    SHOW(setsockopt(a, SOL_SOCKET, 9999, &type, 4)), SHOW(getsockopt(1, SOL_SOCKET, SO_TYPE, &type, &length));
    char buffer[9];
    SHOW(read(b, buffer, 9)), SHOW(shutdown(a, SHUT_WR)), SHOW(read(b, buffer, 9)), SHOW(shutdown(1, 0)), SHOW(write(b, "x", 1)), SHOW(read(a, buffer, 9));
}

static void sockets(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, peer;
    socklen_t length = sizeof address;
    int listener = SHOW(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP)), client = SHOW(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(socket(-1, 0, 0)), SHOW(bind(listener, (struct sockaddr *)&address, length)), SHOW(listen(listener, 4)), SHOW(listen(0x7fffff, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    SHOW(connect(client, (struct sockaddr *)&address, length)), SHOW(connect(client, (struct sockaddr *)&address, length)), SHOW(__connect(-1, NULL, 0));
    int server = SHOW(accept4(listener, (struct sockaddr *)&peer, &length, SOCK_NONBLOCK)), nonblock = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    char byte;
    SHOW(recv(server, &byte, 1, 0)), SHOW(connect(nonblock, (struct sockaddr *)&address, length)), SHOW(accept(listener, NULL, NULL));
    SHOW(fcntl(listener, F_SETFL, O_NONBLOCK)), SHOW(accept(listener, NULL, NULL)), SHOW(accept(1, NULL, NULL)), SHOW(close(listener));
    int refused = socket(AF_INET, SOCK_STREAM, 0);
    SHOW(connect(refused, (struct sockaddr *)&address, length)), closefrom(5);
}

static void print_to(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    SHOW(vdprintf(fd, format, arguments));
    va_end(arguments);
}

static void streams(void) {
    char text[400] = {0};
    int fds[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    SHOW(dprintf(fds[0], "%d %s %g %Lg %c %ld %f %f %f %f %f %f %f %f %d\n", 1, "two", 3.5, 4.25L, '5', 6L, .1, .2, .3, .4, .5, .6, .7, .8, 9));
    SHOW(read(fds[1], text, sizeof text)), printf("%s", text);
    memset(text, 0, sizeof text);
    print_to(fds[0], "%s %g %d %d %d %d %d\n", "va", 2.5, 1, 2, 3, 4, 5);
    SHOW(read(fds[1], text, sizeof text)), printf("%s", text);
    SHOW(dprintf(-1, "%d\n", 1));
    FILE *stream = fdopen(fds[0], "r+");
    SHOW(fprintf(stream, "buffered")), SHOW(fclose(stream)), SHOW(read(fds[1], text, sizeof text)), SHOW(read(fds[1], text, 1));
    SHOW(fdopen(fds[0], "r") == NULL), close(fds[1]);
    stream = fopen("/dev/null", "r");
    SHOW((stream = freopen("/proc/self/comm", "r", stream)) != NULL), SHOW(fileno(stream)), SHOW(freopen64("/nonexistent", "r", stream) != NULL);
    stream = fmemopen(text, 9, "r");
    SHOW(fclose(stream));
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGPIPE, SIG_IGN);
    tcp_pair(pair);
    data(), readiness(), descriptors();
    close(pair[0]), close(pair[1]);
    sockets(), streams();
    return 0;
}
