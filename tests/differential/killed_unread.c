// A process is killed whose last bytes its peer has read in part. Whoever asks the peer's process about the connection, and by whatever
// call, hears of the end, and finds the rest of the bytes.
// path: shunted
#include "diff.h"

enum { POLL, POLL_ROOM, POLL_END, SELECT, SET, SET_END, CALLS };
static const char *const calls[] = {"poll", "poll for room", "poll for the end", "select", "set", "set for the end"};
static const unsigned asked[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLRDHUP, 0, EPOLLIN, EPOLLIN | EPOLLRDHUP};

enum { WAITS = 1, FORKED = 2 }; // Who asks besides: a thread that sleeps until the end, a child.

struct asker {
    struct end *e;
    int call, set;
    volatile pid_t tid;
    int told; // What the thread's call came to.
};

// What one call says of the connection within `ms`.
static unsigned ask(struct end *e, const struct asker *a, int ms)
{
    if (a->call == SELECT) {
        fd_set sets[3];
        struct timeval limit = {ms / 1000, ms % 1000 * 1000};
        for (int i = 0; i < 3; i++) {
            FD_ZERO(&sets[i]);
            FD_SET(FD, &sets[i]);
        }
        MUST(select(FD + 1, &sets[0], &sets[1], &sets[2], &limit));
        return (FD_ISSET(FD, &sets[0]) ? POLLIN : 0) | (FD_ISSET(FD, &sets[1]) ? POLLOUT : 0) | (FD_ISSET(FD, &sets[2]) ? POLLPRI : 0);
    }
    if (a->call < SELECT) {
        struct pollfd p = {FD, asked[a->call], 0};
        MUST(poll(&p, 1, ms));
        return p.revents;
    }
    struct epoll_event event = {0};
    MUST(epoll_wait(a->set, &event, 1, ms));
    return event.events;
}

// What the call says at last, once it has said one of `want`.
static void hears(struct end *e, const char *who, const struct asker *a, unsigned want)
{
    unsigned said = 0;
    for (long long end = now_ms() + PATIENCE_MS; !(said & want) && now_ms() < end; nap())
        said = ask(e, a, 0);
    say(e, "%s by %s: %s", who, calls[a->call], events(said));
}

static void *waits(void *arg)
{
    struct asker *a = arg;
    struct pollfd p = {a->e->fd, POLLRDHUP, 0};
    a->tid = syscall(SYS_gettid);
    a->told = poll(&p, 1, PATIENCE_MS) == 1 && p.revents & POLLRDHUP;
    return NULL;
}

// The server asks between two reads, and again when its peer is dead.
static void asks(struct end *e, int call, int others, int resets)
{
    char part[4];
    struct asker a = {.e = e, .call = call, .set = MUST(epoll_create1(EPOLL_CLOEXEC))};
    struct epoll_event event = {asked[call], {0}};
    // Of a select is told only what it natively tells of both.
    const unsigned want = call == SELECT ? POLLIN : resets ? POLLHUP : call == POLL_END || call == SET_END ? POLLRDHUP : asked[call];
    struct kid kid = {0};
    pthread_t thread;
    if (call >= SET)
        MUST(epoll_ctl(a.set, EPOLL_CTL_ADD, FD, &event));
    if (others & WAITS) {
        MUST(pthread_create(&thread, NULL, waits, &a));
        while (!a.tid)
            nap();
        await_sleep(e, e->pid, a.tid);
    }
    if (others & FORKED && (kid = spawn(e)).pid == 0) {
        hears(e, "child", &a, want);
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++)
            ask(e, &a, 0);
        T(get(FD, part, 4));
    }
    ask(e, &a, 0);
    go(e);
    await_go(e); // It is dead.
    hears(e, "process", &a, want);
    if (others & WAITS) {
        pthread_join(thread, NULL);
        say(e, "thread: %s", a.told ? "told" : "not told");
    }
    if (others & FORKED)
        reap(e, &kid);
    T(get(FD, part, 4));
    hears(e, "process, which has read all,", &a, want);
    T(recv(FD, part, 4, 0));
    T(send(FD, part, 1, MSG_NOSIGNAL));
    close(a.set);
    MUST(close(FD));
    FD = -1;
}

static void by_each_call(struct end *e, int others, int resets)
{
    for (int call = 0; call < CALLS; call++) {
        if (e->role == S) {
            answer_child(e, 6);
            if (resets)
                MUST(put(FD, "unread", 6));
            go(e);
            await_go(e);
            await_bytes(e, FD, 16);
            asks(e, call, others, resets);
            continue;
        }
        int has_sent[2];
        char c;
        MUST(pipe2(has_sent, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 6);
            if (resets)
                await_bytes(e, fd, 6);
            put(fd, "some of its last", 16);
            MUST(write(has_sent[1], "s", 1));
            pause();
        }
        MUST(read(has_sent[0], &c, 1));
        close(has_sent[0]), close(has_sent[1]);
        meet(e);
        await_go(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        go(e);
    }
}

static void alone(struct end *e) { by_each_call(e, 0, 0); }
static void beside_thread(struct end *e) { by_each_call(e, WAITS, 0); }
static void beside_child(struct end *e) { by_each_call(e, FORKED, 0); }
static void beside_both(struct end *e) { by_each_call(e, WAITS | FORKED, 0); }
static void reset(struct end *e) { by_each_call(e, 0, 1); }
static void reset_beside_thread(struct end *e) { by_each_call(e, WAITS, 1); }
static void reset_beside_child(struct end *e) { by_each_call(e, FORKED, 1); }

DIFF_MAIN(CASE(alone, SPLIT | BARE | ALL), CASE(beside_thread, SPLIT | BARE), CASE(beside_child, SPLIT | BARE), CASE(beside_both, SPLIT | BARE),
          CASE(reset, SPLIT | BARE), CASE(reset_beside_thread, SPLIT | BARE), CASE(reset_beside_child, SPLIT | BARE))
