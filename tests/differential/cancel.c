// Threads are cancelled in calls that need not sleep: before the call has done anything (pthreads(7)).
// path: shunted 20%
// timeout: 30
#include "diff.h"
#include <pthread.h>
#include <sys/sendfile.h>

enum { TURNS = 200, CALLS_BEFORE = 1000, CALLS_AFTER = 100000, READINESS_CALLS = 7 };

// Both ways in small pieces, so that it is shunted in the default mode, too.
static void converse(struct end *e)
{
    char buf[64];
    int good = 0;
    for (int i = 0; i < TURNS; i++) {
        AT(C) fill(buf, 64, i, 1), put(FD, buf, 64);
        AT(S) good += get(FD, buf, 64) == 64 && check(buf, 64, i, 1) < 0, fill(buf, 64, i, 2), put(FD, buf, 64);
        AT(C) good += get(FD, buf, 64) == 64 && check(buf, 64, i, 2) < 0;
    }
    say(e, "right: %d", good);
}

// What a call may need beside the connection.
struct things {
    int set, pipe[2], listener;
};

static const char *call_name;

// Makes a call that need not sleep: there are six bytes to read, and there is room.
static long make(struct end *e, struct things *t, int which)
{
    char buf[8] = "xyz";
    struct iovec part = {buf, 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct pollfd p = {FD, POLLIN | POLLOUT, 0};
    struct epoll_event event;
    struct timespec now = {0, 0};
    struct timeval at_once = {0, 0};
    union address address;
    socklen_t size = target(e->fam, e->port, &address);
    fd_set reads;
    int type;
    FD_ZERO(&reads);
    FD_SET(FD, &reads);
    enum { BEFORE = __COUNTER__ };
#define MAKE(call) case __COUNTER__ - BEFORE - 1: call_name = #call; return call
    switch (which) {
        MAKE(poll(&p, 1, 0));
        MAKE(ppoll(&p, 1, &now, NULL));
        MAKE(select(FD + 1, &reads, NULL, NULL, &at_once));
        MAKE(pselect(FD + 1, &reads, NULL, NULL, &now, NULL));
        MAKE(epoll_wait(t->set, &event, 1, 0));
        MAKE(epoll_pwait(t->set, &event, 1, 0, NULL));
        MAKE(epoll_pwait2(t->set, &event, 1, &now, NULL));
        MAKE(read(FD, buf, 3));
        MAKE(readv(FD, &part, 1));
        MAKE(recv(FD, buf, 3, 0));
        MAKE(recv(FD, buf, 3, MSG_DONTWAIT));
        MAKE(recvfrom(FD, buf, 3, 0, NULL, NULL));
        MAKE(recvmsg(FD, &message, 0));
        MAKE(recvmmsg(FD, &many, 1, 0, NULL));
        MAKE(preadv2(FD, &part, 1, -1, 0));
        MAKE(write(FD, buf, 3));
        MAKE(writev(FD, &part, 1));
        MAKE(send(FD, buf, 3, MSG_NOSIGNAL));
        MAKE(sendto(FD, buf, 3, MSG_NOSIGNAL, NULL, 0));
        MAKE(sendmsg(FD, &message, MSG_NOSIGNAL));
        MAKE(sendmmsg(FD, &many, 1, MSG_NOSIGNAL));
        MAKE(pwritev2(FD, &part, 1, -1, 0));
        MAKE(splice(t->pipe[0], NULL, FD, NULL, 3, 0));
        MAKE(splice(FD, NULL, t->pipe[1], NULL, 3, 0));
        MAKE(connect(FD, &address.sa, size));
        MAKE(accept(t->listener, NULL, NULL));
        MAKE(accept4(t->listener, NULL, NULL, SOCK_CLOEXEC));
        MAKE(close(FD));
        // No cancellation points.
        MAKE(getsockopt(FD, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type}));
        MAKE(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
        MAKE(epoll_ctl(t->set, EPOLL_CTL_MOD, FD, &(struct epoll_event){.events = EPOLLIN}));
        MAKE(ioctl(FD, FIONREAD, &type));
        default: call_name = NULL; return 0;
    }
}

struct doomed {
    struct end *e;
    struct things *things;
    int which;
    long result;
    int error;
    _Atomic int calls, is_asked;
};

// Its request waits: the thread asks for its own end, and the next cancellation point is the call.
static void *asked_before(void *arg)
{
    struct doomed *d = arg;
    pthread_cancel(pthread_self());
    d->result = make(d->e, d->things, d->which);
    d->error = d->result < 0 ? errno : 0;
    return NULL;
}

static int run(struct doomed *d, void *(*body)(void *))
{
    struct end *e = d->e;
    pthread_t thread;
    void *result;
    MUST(pthread_create(&thread, NULL, body, d));
    MUST(pthread_join(thread, &result));
    return result == PTHREAD_CANCELED;
}

static void open_things(struct end *e, struct things *t)
{
    struct epoll_event event = {.events = EPOLLIN};
    int port;
    t->set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(t->set, EPOLL_CTL_ADD, FD, &event));
    MUST(pipe2(t->pipe, O_CLOEXEC));
    MUST(write(t->pipe[1], "xyz", 3));
    t->listener = tcp_listener(e->fam, SOCK_NONBLOCK | SOCK_CLOEXEC, 1, &port);
}

static void close_things(struct things *t)
{
    close(t->set), close(t->pipe[0]), close(t->pipe[1]), close(t->listener);
}

// Each call, by a thread that has been asked to end: nothing of it happens.
static void before_any(struct end *e)
{
    char buf[16];
    converse(e);
    AT(S) T(send(FD, "abcdef", 6, 0));
    AT(C) {
        struct things things;
        await_bytes(e, FD, 6);
        open_things(e, &things);
        for (int which = 0; call_name || which == 0; which++) {
            struct doomed d = {.e = e, .things = &things, .which = which};
            int is_cancelled = run(&d, asked_before);
            if (!call_name)
                continue;
            if (is_cancelled)
                say(e, "%s: cancelled", call_name);
            else
                say(e, "%s: %ld %s", call_name, d.result, errname(d.error));
        }
        close_things(&things);
        T(recv(FD, buf, 16, 0));
        T(send(FD, "end", 3, 0));
    }
    AT(S) T(recv(FD, buf, 16, 0));
}

static void *refuses(void *arg)
{
    struct doomed *d = arg;
    struct end *e = d->e;
    char buf[8];
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    T(recv(FD, buf, 3, 0));
    T(send(FD, "abc", 3, 0));
    T(write(FD, "def", 3));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    T(send(FD, "ghi", 3, 0));
    return NULL;
}

// A thread that refuses to end makes its calls; once it does not refuse any more, the next one ends it.
static void refused(struct end *e)
{
    char buf[16];
    converse(e);
    AT(S) T(send(FD, "xyz123", 6, 0));
    AT(C) {
        struct doomed d = {.e = e};
        await_bytes(e, FD, 6);
        int is_cancelled = run(&d, refuses);
        say(e, "cancelled: %d", is_cancelled);
        T(recv(FD, buf, 16, 0));
        T(send(FD, "end", 3, 0));
    }
    AT(S) await_bytes(e, FD, 9), T(recv(FD, buf, 16, 0));
}

static void clean_up(void *arg)
{
    struct end *e = arg;
    char buf[8];
    T(recv(FD, buf, 8, 0));
    T(send(FD, "bye", 3, MSG_NOSIGNAL));
}

static void *closes(void *arg)
{
    struct doomed *d = arg;
    struct end *e = d->e;
    pthread_cleanup_push(clean_up, e);
    pthread_cancel(pthread_self());
    T(close(FD));
    pthread_cleanup_pop(0);
    return NULL;
}

// A close that is cancelled has closed nothing: the clean-up finds the connection as it was.
static void in_close(struct end *e)
{
    char buf[8];
    converse(e);
    AT(S) T(send(FD, "abc", 3, 0));
    AT(C) {
        struct doomed d = {.e = e};
        await_bytes(e, FD, 3);
        int is_cancelled = run(&d, closes);
        say(e, "cancelled: %d, open: %d", is_cancelled, fcntl(FD, F_GETFD) >= 0);
    }
    AT(S) T(recv(FD, buf, 8, 0));
}

// Makes one call again and again; a hundred thousand times more after it has been asked to end.
static void *busy(void *arg)
{
    struct doomed *d = arg;
    for (int after = 0; after < CALLS_AFTER; after += d->is_asked) {
        make(d->e, d->things, d->which);
        d->calls++;
    }
    return NULL;
}

// Of the calls that a thread makes without sleep, the next one after the request ends it.
static void by_another(struct end *e)
{
    char buf[16];
    converse(e);
    AT(S) T(send(FD, "abcdef", 6, 0));
    AT(C) {
        struct things things;
        await_bytes(e, FD, 6);
        open_things(e, &things);
        for (int which = 0; which < READINESS_CALLS; which++) {
            struct doomed d = {.e = e, .things = &things, .which = which};
            pthread_t thread;
            void *result;
            MUST(pthread_create(&thread, NULL, busy, &d));
            while (d.calls < CALLS_BEFORE)
                sched_yield();
            pthread_cancel(thread);
            d.is_asked = 1;
            MUST(pthread_join(thread, &result));
            say(e, "%s, again and again: %s", call_name, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        }
        close_things(&things);
        T(recv(FD, buf, 16, 0));
    }
}

static void *closes_once(void *arg)
{
    struct doomed *d = arg;
    d->is_asked = 1;
    close(d->which);
    // The request ends it here, unless that was in the call.
    pause();
    return NULL;
}

// The request comes at any moment of a close: the connection is closed, or is as it was.
static void during_close(struct end *e)
{
    enum { CLOSES = 100, TURNS = 10 };
    static int fds[2];
    int whole = 0;
    char buf[8];
    for (int i = 0; i < CLOSES; i++) {
        int *fd = &fds[e->role], is_open = 0, on = 1;
        AT(C) {
            fds[C] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fds[C], e->fam, e->port));
        }
        AT(S) {
            fds[S] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            MUST(setsockopt(fds[S], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
        }
        for (int k = 0; k < TURNS; k++) {
            AT(C) put(fds[C], "x", 1);
            AT(S) get(fds[S], buf, 1), put(fds[S], "y", 1);
            AT(C) get(fds[C], buf, 1);
        }
        AT(S) put(fds[S], "unread", 6);
        AT(C) {
            struct doomed d = {.which = fds[C]};
            pthread_t thread;
            await_bytes(e, fds[C], 6);
            MUST(pthread_create(&thread, NULL, closes_once, &d));
            while (!d.is_asked)
                ;
            for (volatile int k = 0; k < i * 211 % 6000; k++)
                ;
            pthread_cancel(thread);
            pthread_join(thread, NULL);
            is_open = fcntl(fds[C], F_GETFD) >= 0;
        }
        share(e, C, &is_open, sizeof is_open);
        if (is_open) {
            AT(C) whole += send(fds[C], "a", 1, MSG_NOSIGNAL) == 1 && recv(fds[C], buf, 8, 0) == 6;
            AT(S) whole += recv(fds[S], buf, 8, 0) == 1 && send(fds[S], "bc", 2, MSG_NOSIGNAL) == 2;
            AT(C) {
                whole += recv(fds[C], buf, 8, 0) == 2;
                close(fds[C]);
            }
            AT(S) whole += recv(fds[S], buf, 8, 0) == 0;
        } else {
            AT(S) whole += 2 * (recv(fds[S], buf, 8, 0) == -1 && errno == ECONNRESET);
            AT(C) whole += 2;
        }
        AT(S) close(*fd);
    }
    say(e, "closed, or as before: %d", whole);
}

struct sleeper {
    int fd, which;
    _Atomic pid_t tid;
    ssize_t done;
};

enum { ALL_OF_IT = 4 << 20 };

// `sendfile`, and what `syscall` does, are no cancellation points.
static void *sleeps_in_call(void *arg)
{
    struct sleeper *s = arg;
    char buf[8];
    struct pollfd p = {s->fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int file, set;
    s->tid = syscall(SYS_gettid);
    switch (s->which) {
    case 0:
        file = memfd_create("file", MFD_CLOEXEC);
        s->done = ftruncate(file, ALL_OF_IT) ? -1 : sendfile(s->fd, file, NULL, ALL_OF_IT);
        close(file);
        break;
    case 1:
        s->done = syscall(SYS_write, s->fd, calloc(1, ALL_OF_IT), ALL_OF_IT);
        break;
    case 2:
        s->done = syscall(SYS_recvfrom, s->fd, buf, 3, 0, NULL, NULL);
        break;
    case 3:
        s->done = syscall(SYS_ppoll, &p, 1, NULL, NULL, 8);
        break;
    case 4:
        set = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(set, EPOLL_CTL_ADD, s->fd, &event);
        s->done = syscall(SYS_epoll_pwait, set, &event, 1, -1, NULL, 8);
        close(set);
        break;
    }
    return NULL;
}

static void asleep_in_others(struct end *e)
{
    enum { WRITES = 2, WAYS = 5 };
    converse(e);
    for (int which = 0; which < WAYS; which++) {
        if (e->role == C) {
            struct sleeper s = {FD, which, 0, -2};
            pthread_t thread;
            void *result;
            MUST(pthread_create(&thread, NULL, sleeps_in_call, &s));
            while (!s.tid)
                nap();
            await_sleep(e, e->pid, s.tid);
            pthread_cancel(thread);
            go(e);
            MUST(pthread_join(thread, &result));
            say(e, "%d: %s, %zd", which, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled", s.done);
            if (which > WRITES)
                T(recv(FD, (char[8]){0}, 3, 0));
        } else {
            await_go(e);
            if (which >= WRITES)
                T(send(FD, "abc", 3, 0));
            else
                say(e, "all came: %d", get(FD, calloc(1, ALL_OF_IT), ALL_OF_IT) == ALL_OF_IT);
        }
        meet(e);
    }
}

// A thread that may end anywhere ends there, too.
static void *ends_anywhere(void *arg)
{
    struct sleeper *s = arg;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    s->tid = syscall(SYS_gettid);
    if (s->which == 0)
        syscall(SYS_recvfrom, s->fd, (char[8]){0}, 3, 0, NULL, NULL);
    else if (s->which == 1)
        syscall(SYS_accept, s->fd, NULL, NULL);
    else
        recv(s->fd, (char[8]){0}, 3, 0);
    return NULL;
}
static void asynchronously(struct end *e)
{
    AT(C) {
        int port, lfd = tcp_listener(e->fam, SOCK_CLOEXEC, 8, &port);
        for (int which = 0; which < 3; which++) {
            struct sleeper s = {which == 1 ? lfd : FD, which, 0, 0};
            pthread_t thread;
            void *result;
            MUST(pthread_create(&thread, NULL, ends_anywhere, &s));
            while (!s.tid)
                nap();
            await_sleep(e, e->pid, s.tid);
            pthread_cancel(thread);
            MUST(pthread_join(thread, &result));
            say(e, "%d: %s", which, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        }
        close(lfd);
    }
    AT(S) T(send(FD, "abc", 3, 0));
    AT(C) T(recv(FD, (char[8]){0}, 8, 0));
}

DIFF_MAIN(CASE(before_any, ALL), CASE(refused, 0), CASE(in_close, COLD), CASE(by_another, BUSY),
          CASE(during_close, BUSY), CASE(asleep_in_others, TWO), CASE(asynchronously, COLD))
