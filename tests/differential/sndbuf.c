// A send buffer that the program has made small, or larger again: beside it the receive buffer of
// the peer takes what nobody has read (tcp(7)).
// path: shunted 10%
// timeout: 60
#include "diff.h"

static void bound(struct end *e, int bytes)
{
    MUST(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
}

// Each sends a message before it receives the other's: together the buffers take both.
static void in_step(struct end *e)
{
    bound(e, 32768);
    for (int i = 0; i < 5; i++) {
        produce(e, FD, 80000, 2 * i + e->role);
        expect(e, FD, 80000, 2 * i + !e->role);
    }
}

// How a sender waits for room: in its calls, by `poll`, or on an epoll set for room alone.
enum waits { IN_CALLS, BY_POLL, ON_SET };

// `put` on a non-blocking socket that is alone in a set.
static size_t put_by_set(int set, int fd, const void *byte)
{
    struct epoll_event event;
    ssize_t sent;
    while ((sent = send(fd, byte, 1, MSG_NOSIGNAL)) < 0 && errno == EAGAIN)
        if (epoll_wait(set, &event, 1, PATIENCE_MS) != 1) {
            errno = ETIMEDOUT;
            return 0;
        }
    return sent < 0 ? 0 : sent;
}

// Each sends many messages of a byte before it receives the other's. TCP puts them together.
static void small_in_step(struct end *e, enum waits waits)
{
    enum { BYTES = 250000 };
    struct epoll_event event = {EPOLLOUT, {.u32 = 1}};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
    // `put` waits by `poll` where the socket does not.
    nonblocking(FD, waits != IN_CALLS);
    for (size_t i = 0; i < BYTES; i++) {
        unsigned char byte;
        fill(&byte, 1, i, e->role);
        if ((waits == ON_SET ? put_by_set(set, FD, &byte) : put(FD, &byte, 1)) != 1) {
            say(e, "sending stopped: %s", errname(errno));
            return;
        }
    }
    close(set);
    expect(e, FD, BYTES, !e->role);
    produce(e, FD, 10, 7);
    expect(e, FD, 10, 7);
}
static void small_in_calls(struct end *e) { small_in_step(e, IN_CALLS); }
static void small_in_poll(struct end *e) { small_in_step(e, BY_POLL); }
static void small_in_set(struct end *e) { small_in_step(e, ON_SET); }

// A peer that receives nothing for as long as the program has bytes wait.
static void user_timeout(struct end *e)
{
    static char buf[65536];
    AT(C) {
        unsigned limit = 500;
        MUST(setsockopt(FD, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit));
        while (send(FD, buf, sizeof buf, MSG_NOSIGNAL) > 0)
            ;
        say(e, "sending stopped: %s", errname(errno));
    }
    // It does not end before.
    AT(S) say(e, "done");
}

// A sender that nobody receives from yet.
static void unread(struct end *e, int sndbuf, size_t n)
{
    static unsigned char buf[60000];
    struct timeval limit = {5, 0};
    AT(C) {
        bound(e, sndbuf);
        MUST(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
        fill(buf, n, 0, 1);
        T(send(FD, buf, n, 0));
    }
    AT(S) expect(e, FD, n, 1);
}
static void little_unread(struct end *e) { unread(e, 4097, 20000); }
static void much_unread(struct end *e) { unread(e, 4097, 60000); }
static void more_unread(struct end *e) { unread(e, 20000, 60000); }

// Set before the connection is made.
static void bound_before(struct end *e)
{
    AT(C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        bound(e, 4097);
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    much_unread(e);
}

// Set on a listener before, for what it accepts.
static void bound_accepted(struct end *e)
{
    int port = 0, lfd = -1;
    if (e->role == S) {
        lfd = MUST(tcp_listener(V4, SOCK_CLOEXEC, 8, &port));
        MUST(setsockopt(lfd, SOL_SOCKET, SO_SNDBUF, &(int){4097}, sizeof(int)));
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
    warm_up(e);
    if (e->role == S) {
        size_t n = stuff(e, FD, 1);
        say(e, "1000000 bytes fit: %d", n >= 1000000);
        give(e, &n, sizeof n);
    } else {
        size_t n;
        take(e, &n, sizeof n);
        drain(e, FD, n, 1);
    }
}

// A peer that made its receive buffer small before the connection was made: beside that, too, a small
// send buffer takes little.
static void both_little(struct end *e)
{
    int little = 1;
    AT(C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(setsockopt(FD, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    if (e->role == S) {
        bound(e, 4097);
        size_t n = stuff(e, FD, 1);
        say(e, "100000 bytes fit: %d", n >= 100000);
        give(e, &n, sizeof n);
    } else {
        size_t n;
        take(e, &n, sizeof n);
        drain(e, FD, n, 1);
    }
}

struct writer {
    int fd;
    volatile pid_t tid;
    volatile ssize_t written;
};

static void *write_one(void *of)
{
    struct writer *w = of;
    w->tid = syscall(SYS_gettid);
    w->written = write(w->fd, "q", 1);
    return NULL;
}

static void *await_room(void *of)
{
    struct writer *w = of;
    struct epoll_event event = {EPOLLOUT, {.u32 = 1}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, w->fd, &event);
    w->tid = syscall(SYS_gettid);
    // A wait that nobody ends finds the room when its time is over.
    long long end = now_ms() + PATIENCE_MS;
    int found = epoll_wait(set, &event, 1, PATIENCE_MS);
    close(set);
    if (found == 1 && now_ms() < end)
        return write_one(of);
    w->written = -3;
    return NULL;
}

// A larger buffer wakes who waits for room.
static void grown(struct end *e, int from, int to, void *(*waits)(void *))
{
    if (e->role == S) {
        bound(e, from);
        size_t n = stuff(e, FD, 1);
        struct writer w = {FD, 0, -2};
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, waits, &w));
        while (!w.tid)
            nap();
        await_sleep(e, getpid(), w.tid);
        bound(e, to);
        for (long long end = now_ms() + PATIENCE_MS; w.written == -2 && now_ms() < end;)
            nap();
        say(e, "written %zd", w.written);
        give(e, &n, sizeof n);
        pthread_join(thread, NULL);
    } else {
        size_t n;
        char c;
        take(e, &n, sizeof n);
        drain(e, FD, n, 1);
        T(recv(FD, &c, 1, 0));
    }
}
static void grown_under_writer(struct end *e) { grown(e, 20000, 100000, write_one); }
static void grown_under_set(struct end *e) { grown(e, 20000, 100000, await_room); }

// Larger than any ring, if the system allows it (net.core.wmem_max).
static void grown_beyond_ring(struct end *e, void *(*waits)(void *))
{
    int has;
    socklen_t length = sizeof has;
    bound(e, 4 << 20);
    MUST(getsockopt(FD, SOL_SOCKET, SO_SNDBUF, &has, &length));
    if (has == 8 << 20)
        grown(e, 2 << 20, 4 << 20, waits);
}
static void grown_beyond_writer(struct end *e) { grown_beyond_ring(e, write_one); }
static void grown_beyond_set(struct end *e) { grown_beyond_ring(e, await_room); }

DIFF_MAIN(CASE(in_step, TWO | COLD), CASE(small_in_calls, TWO | COLD | STEADY), CASE(small_in_poll, TWO | COLD | STEADY),
          CASE(small_in_set, TWO | COLD | STEADY), CASE(user_timeout, TWO | COLD),
          CASE(little_unread, COLD), CASE(much_unread, COLD), CASE(more_unread, COLD),
          CASE(bound_before, BARE), CASE(bound_accepted, TWO | BARE), CASE(both_little, TWO | BARE), CASE(grown_under_writer, TWO | COLD), CASE(grown_under_set, TWO | COLD),
          CASE(grown_beyond_writer, TWO | COLD), CASE(grown_beyond_set, TWO | COLD))
