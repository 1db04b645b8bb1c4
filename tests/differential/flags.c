// The MSG_ flags of sending and receiving calls.
// path: shunted 50%
// timeout: 60
// variant: fortify -O2 -D_FORTIFY_SOURCE=2
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include <sys/time.h>

static void peek(struct end *e)
{
    char buf[32];
    struct iovec v[2] = {{buf, 3}, {buf + 3, 20}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    AT(C) {
        T(send(FD, "first", 5, 0));
        T(send(FD, "second", 6, 0));
    }
    AT(S) {
        await_bytes(e, FD, 11);
        T(recv(FD, buf, 1, MSG_PEEK));
        T(recv(FD, buf, 32, MSG_PEEK));
        T(recv(FD, buf, 32, MSG_PEEK | MSG_DONTWAIT));
        say(e, "%.11s", buf);
        T(recvmsg(FD, &m, MSG_PEEK));
        T(recvfrom(FD, buf, 7, MSG_PEEK, NULL, NULL));
        T(recv(FD, buf, 0, MSG_PEEK));
        T(recv(FD, buf, 2, 0));
        T(recv(FD, buf, 32, MSG_PEEK));
        say(e, "%.9s", buf);
        T(read(FD, buf, 32));
        say(e, "%.9s", buf);
        T(recv(FD, buf, 32, MSG_PEEK | MSG_DONTWAIT));
    }
    AT(C) close(FD), FD = -1;
    AT(S) {
        await_events(e, FD, POLLIN);
        T(recv(FD, buf, 32, MSG_PEEK));
        T(recv(FD, buf, 32, MSG_PEEK));
        T(recv(FD, buf, 32, 0));
    }
}

// A look begins where the one before has ended (`socket(7)`, `SO_PEEK_OFF`), where the kernel knows that.
static void peek_on(struct end *e)
{
    int from = 0;
    char buf[8];
    AT(S) T(setsockopt(FD, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from));
    AT(C) T(send(FD, "abcdefg", 7, 0));
    AT(S) {
        await_bytes(e, FD, 7);
        for (int i = 0; i < 3; i++) {
            T(recv(FD, buf, 2, MSG_PEEK));
            say(e, "%.2s", buf);
        }
        T(recv(FD, buf, 3, 0));
        say(e, "%.3s", buf);
        T(recv(FD, buf, 8, MSG_PEEK));
        T(recv(FD, buf, 8, 0));
        say(e, "%.4s", buf);
    }
}

// The same of bytes that lie unread when the option is set.
static void peek_on_unread(struct end *e)
{
    int from = 1, none = -1;
    char buf[8];
    AT(C) T(send(FD, "abcdefg", 7, 0));
    AT(S) {
        await_bytes(e, FD, 7);
        T(recv(FD, buf, 2, MSG_PEEK));
        T(setsockopt(FD, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from));
        for (int i = 0; i < 2; i++) {
            T(recv(FD, buf, 2, MSG_PEEK));
            say(e, "%.2s", buf);
        }
        T(setsockopt(FD, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none));
        T(recv(FD, buf, 2, MSG_PEEK));
        say(e, "%.2s", buf);
        T(recv(FD, buf, 8, 0));
    }
}

// What is accepted has the option of its listener.
static void peek_on_accepted(struct end *e)
{
    int from = 0, port = 0, lfd = -1;
    char buf[8];
    if (e->role == S) {
        lfd = MUST(tcp_listener(V4, SOCK_CLOEXEC, 8, &port));
        T(setsockopt(lfd, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from));
    }
    share(e, S, &port, sizeof port);
    if (e->role == C) {
        FD = MUST(tcp_socket(V4, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, V4, port));
    } else {
        FD = MUST(accept4(lfd, NULL, NULL, SOCK_CLOEXEC));
        close(lfd);
    }
    meet(e);
    AT(C) T(send(FD, "abcdefg", 7, 0));
    AT(S) {
        await_bytes(e, FD, 7);
        for (int i = 0; i < 3; i++) {
            T(recv(FD, buf, 2, MSG_PEEK));
            say(e, "%.2s", buf);
        }
        T(recv(FD, buf, 8, 0));
    }
}

// What is accepted tells how much is left, as its listener was asked to.
static void left_on_accepted(struct end *e)
{
    int on = 1, port = 0, lfd = -1;
    if (e->role == S) {
        lfd = MUST(tcp_listener(V4, SOCK_CLOEXEC, 8, &port));
        T(setsockopt(lfd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    }
    share(e, S, &port, sizeof port);
    if (e->role == C) {
        FD = MUST(tcp_socket(V4, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, V4, port));
    } else {
        FD = MUST(accept4(lfd, NULL, NULL, SOCK_CLOEXEC));
        close(lfd);
    }
    meet(e);
    for (int i = 0; i < 40; i++) {
        AT(C) T(send(FD, "abcdefg", 7, 0));
        AT(S) {
            char buf[8], control[64];
            struct iovec part = {buf, 3};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
            message.msg_controllen = sizeof control;
            await_bytes(e, FD, 7);
            T(recvmsg(FD, &message, 0));
            struct cmsghdr *told = CMSG_FIRSTHDR(&message);
            say(e, "told %d: %d", told ? told->cmsg_type : -1, told ? *(int *)CMSG_DATA(told) : -1);
            T(recv(FD, buf, 8, 0));
        }
    }
}

// A look fills as many buffers as a receive does.
static void peek_many(struct end *e)
{
    enum { MOST = 1024 };
    static const int counts[] = {16, 17, 20, 1000, MOST};
    unsigned char *buf = scratch();
    struct iovec *v = calloc(MOST, sizeof *v);
    for (int i = 0; i < MOST; i++)
        v[i] = (struct iovec){buf + i, 1};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        AT(C) produce(e, FD, counts[i], i);
        AT(S) {
            struct msghdr m = {.msg_iov = v, .msg_iovlen = MOST};
            await_bytes(e, FD, counts[i]);
            for (int j = 0; j < 3; j++) {
                memset(buf, 0, MOST);
                m.msg_iovlen = j == 1 ? 18 : MOST;
                T(recvmsg(FD, &m, j < 2 ? MSG_PEEK : MSG_DONTWAIT));
                say(e, "%ld", check(buf, counts[i] < 18 || j != 1 ? counts[i] : 18, 0, i));
            }
        }
    }
    free(v);
}

static void peek_blocks(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        will_block(e);
        T(recv(FD, buf, 8, MSG_PEEK));
        T(recv(FD, buf, 8, 0));
    } else {
        await_blocked(e);
        T(send(FD, "abc", 3, 0));
    }
}

// Peeking with MSG_WAITALL waits for everything and takes nothing.
static void peek_all(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        await_bytes(e, FD, 3);
        will_block(e);
        T(recv(FD, buf, 6, MSG_PEEK | MSG_WAITALL));
        say(e, "%.6s", buf);
        T(recv(FD, buf, 8, 0));
    } else {
        T(send(FD, "abc", 3, 0));
        await_blocked(e);
        T(send(FD, "def", 3, 0));
    }
}

static void wait_all(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        for (int i = 0; i < 3; i++) {
            will_block(e);
            if (i == 1) {
                struct iovec v[2] = {{buf, 3}, {buf + 3, 3}};
                struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
                T(recvmsg(FD, &m, MSG_WAITALL));
            } else {
                T(recv(FD, buf, 6, MSG_WAITALL));
            }
            say(e, "%.6s", buf);
        }
        T(recv(FD, buf, 6, MSG_WAITALL));
        T(recv(FD, buf, 6, MSG_WAITALL));
    } else {
        for (int i = 0; i < 3; i++) {
            // One byte, and five more only when the receiver sleeps for them.
            T(send(FD, "a", 1, 0));
            await_blocked(e);
            T(send(FD, "bc", 2, 0));
            T(send(FD, "def", 3, 0));
        }
        T(send(FD, "end", 3, 0));
        T(shutdown(FD, SHUT_WR));
    }
}

static void wait_all_at_once(struct end *e)
{
    char buf[8];
    AT(C) T(send(FD, "abcdef", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 4, MSG_WAITALL));
        T(recv(FD, buf, 4, MSG_WAITALL | MSG_DONTWAIT));
        T(recv(FD, buf, 4, MSG_WAITALL | MSG_DONTWAIT));
        nonblocking(FD, 1);
        T(recv(FD, buf, 4, MSG_WAITALL));
        T(recv(FD, buf, 0, MSG_WAITALL));
    }
}

// Bigger than any buffer between the two.
static void wait_all_large(struct end *e)
{
    const size_t n = 12 << 20;
    if (e->role == S) {
        unsigned char *big = malloc(n);
        T(recv(FD, big, n, MSG_WAITALL));
        say(e, "wrong at %ld", check(big, n, 0, 9));
        free(big);
    } else {
        produce(e, FD, n, 9);
    }
}

static void dont_wait(struct end *e)
{
    char buf[8];
    struct iovec v = {buf, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    AT(S) {
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        T(recv(FD, buf, 8, MSG_DONTWAIT | MSG_PEEK));
        T(recvmsg(FD, &m, MSG_DONTWAIT));
        T(recvfrom(FD, buf, 8, MSG_DONTWAIT, NULL, NULL));
    }
    AT(C) T(send(FD, "abc", 3, MSG_DONTWAIT));
    AT(S) {
        await_bytes(e, FD, 3);
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        T(recv(FD, buf, 8, MSG_DONTWAIT));
    }
}

static void dont_wait_full(struct end *e)
{
    size_t total = 0;
    AT(C) {
        total = stuff(e, FD, 3);
        T(send(FD, "x", 1, MSG_DONTWAIT));
        struct iovec v = {"x", 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        T(sendmsg(FD, &m, MSG_DONTWAIT));
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        drain(e, FD, total, 3);
        T(recv(FD, (char[1]){0}, 1, MSG_DONTWAIT));
    }
    AT(C) {
        await_events(e, FD, POLLOUT);
        T(send(FD, "x", 1, MSG_DONTWAIT));
    }
}

// On a stream MSG_TRUNC discards instead of copying.
static void truncated(struct end *e)
{
    char buf[16] = "................";
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, buf, 4, MSG_TRUNC));
        say(e, "%.4s", buf);
        T(recv(FD, buf, 2, 0));
        say(e, "%.4s", buf);
        T(recv(FD, buf, 2, MSG_TRUNC | MSG_PEEK));
        T(recv(FD, NULL, 2, MSG_TRUNC));
        struct iovec v = {buf, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        T(recvmsg(FD, &m, MSG_TRUNC));
        say(e, "flags %x", m.msg_flags);
        T(recv(FD, buf, 16, MSG_TRUNC | MSG_DONTWAIT));
        T(recv(FD, buf, 16, MSG_TRUNC | MSG_DONTWAIT));
    }
}

// Bytes that are thrown away need no buffer.
static void thrown_away(struct end *e)
{
    char buf[16];
    struct iovec none[2] = {{NULL, 3}, {(char *)8, 2}};
    struct msghdr m = {.msg_iov = none, .msg_iovlen = 2};
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        await_bytes(e, FD, 10);
        T(recvmsg(FD, &m, MSG_PEEK | MSG_TRUNC));
        T(recvmsg(FD, &m, MSG_TRUNC));
        T(recvmsg(FD, &m, 0));
        T(recv(FD, NULL, 2, MSG_TRUNC));
        T(recv(FD, buf, 16, 0));
        say(e, "%.3s", buf);
    }
}

static void trunc_large(struct end *e)
{
    const size_t n = 3 << 20;
    if (e->role == S) {
        size_t done = 0;
        while (done < n - 4) {
            ssize_t r = recv(FD, NULL, n - 4 - done, MSG_TRUNC);
            if (r <= 0)
                break;
            done += r;
        }
        say(e, "discarded %zu", done);
        unsigned char last[4];
        get(FD, last, 4);
        say(e, "wrong at %ld", check(last, 4, n - 4, 2));
    } else {
        produce(e, FD, n, 2);
    }
}

static void no_signal(struct end *e)
{
    struct iovec v = {"x", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr mm = {.msg_hdr = m};
    AT(C) {
        T(shutdown(FD, SHUT_WR));
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(send(FD, "x", 1, 0));
        T(write(FD, "x", 1));
        T(writev(FD, &v, 1));
        T(sendmsg(FD, &m, 0));
        T(sendmsg(FD, &m, MSG_NOSIGNAL));
        T(sendmmsg(FD, &mm, 1, 0));
        T(sendmmsg(FD, &mm, 1, MSG_NOSIGNAL));
        T(sendto(FD, "x", 1, 0, NULL, 0));
        T(sendto(FD, "x", 1, MSG_NOSIGNAL, NULL, 0));
        T(pwritev2(FD, &v, 1, -1, 0));
        T(send(FD, "", 0, 0));
        T(write(FD, "", 0));
    }
}

// MSG_MORE may delay bytes, but the next call without it sends them.
static void more(struct end *e)
{
    char buf[16];
    AT(C) {
        T(send(FD, "ab", 2, MSG_MORE));
        T(send(FD, "cd", 2, MSG_MORE));
        T(send(FD, "ef", 2, 0));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 16, 0));
        say(e, "%.6s", buf);
        T(send(FD, "gh", 2, MSG_MORE));
        T(shutdown(FD, SHUT_WR));
    }
    AT(C) {
        await_bytes(e, FD, 2);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
    }
}

// Bytes held back by MSG_MORE arrive by themselves in the end.
static void more_alone(struct end *e)
{
    char buf[16];
    AT(C) T(send(FD, "ab", 2, MSG_MORE));
    AT(S) T(recv(FD, buf, 16, 0));
}

static void record_end(struct end *e)
{
    char buf[16];
    AT(C) {
        T(send(FD, "ab", 2, MSG_EOR));
        T(send(FD, "cd", 2, MSG_DONTROUTE));
        T(send(FD, "ef", 2, MSG_CONFIRM));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 16, MSG_CMSG_CLOEXEC));
        struct iovec v = {buf, 16};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        T(recvmsg(FD, &m, MSG_ERRQUEUE));
        T(recv(FD, buf, 16, MSG_ERRQUEUE));
    }
}

// The kernel begins to stamp what comes a while after the first socket has asked for that: waits until it does.
// Returns a socket that has asked, too.
static int await_stamps(struct end *e)
{
    char byte = 0, control[128];
    struct iovec part = {&byte, 1};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof here;
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), on = 1;
    MUST(bind(fd, (struct sockaddr *)&here, n));
    MUST(getsockname(fd, (struct sockaddr *)&here, &n));
    MUST(connect(fd, (struct sockaddr *)&here, n));
    MUST(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
    // Of what it has not stamped the kernel says that it comes now.
    for (;;) {
        struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        struct timeval looked, stamp = {0, 0};
        MUST(send(fd, &byte, 1, 0));
        usleep(2000);
        gettimeofday(&looked, NULL);
        MUST(recvmsg(fd, &m, 0));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c)
            memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
        if (c && timercmp(&stamp, &looked, <))
            return fd;
    }
}

// A time stamp that is asked for, and no room for it: some time after (the kernel begins late) each
// message says so.
static void untold_time(struct end *e)
{
    char buf[4];
    struct iovec part = {buf, sizeof buf};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    int on = 1, told = 0, all = 0, stamps = -1;
    AT(S) {
        T(setsockopt(FD, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        stamps = await_stamps(e);
    }
    for (int i = 0; i < 2000 && !told; i++) {
        AT(C) put(FD, "text", 4);
        AT(S) {
            m.msg_flags = 0;
            if (recvmsg(FD, &m, MSG_WAITALL) != 4)
                say(e, "short");
            told = !!(m.msg_flags & MSG_CTRUNC);
            if (!told)
                usleep(1000);
        }
        share(e, S, &told, sizeof told);
    }
    AT(S) say(e, "told: %d", told);
    for (int i = 0; i < 300; i++) {
        AT(C) put(FD, "text", 4);
        AT(S) {
            m.msg_flags = 0;
            m.msg_control = NULL;
            m.msg_controllen = 0;
            if (recvmsg(FD, &m, MSG_WAITALL) != 4 || memcmp(buf, "text", 4))
                say(e, "short");
            all += m.msg_flags == MSG_CTRUNC;
            put(FD, buf, 4);
        }
        AT(C) get(FD, buf, 4);
    }
    AT(S) say(e, "all of them: %d", all);
    // Then there is room.
    AT(C) put(FD, "last", 4);
    AT(S) {
        char control[128];
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        T(recvmsg(FD, &m, MSG_PEEK));
        say(e, "flags %x, control data of %zu", m.msg_flags, m.msg_controllen);
        T(recvmsg(FD, &m, 0));
        say(e, "flags %x, control data of %zu", m.msg_flags, m.msg_controllen);
        close(stamps);
    }
}

DIFF_MAIN(CASE(untold_time, COLD), CASE(peek, ALL | COLD), CASE(peek_on, COLD), CASE(peek_on_unread, COLD), CASE(left_on_accepted, TWO | BARE),
          CASE(peek_on_accepted, TWO | BARE), CASE(peek_many, ALL | COLD), CASE(peek_blocks, TWO | COLD), CASE(peek_all, TWO | COLD),
          CASE(wait_all, TWO | ALL | COLD), CASE(wait_all_at_once, ALL), CASE(wait_all_large, TWO | COLD),
          CASE(dont_wait, ALL | COLD), CASE(dont_wait_full, COLD), CASE(truncated, ALL | COLD), CASE(thrown_away, ALL | COLD),
          CASE(trunc_large, TWO | COLD), CASE(no_signal, ALL | COLD), CASE(more, ALL | COLD),
          CASE(more_alone, COLD), CASE(record_end, 0))
