// An epoll set that parent and child have since a fork: what the one is told of, the other one is, too, as long as it
// is there (level-triggered).
// path: shunted
#include "diff.h"

static int set_with(struct end *e, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 77};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    return set;
}

static void told(struct end *e, const char *who, int set, int ms)
{
    struct epoll_event event = {0};
    int n = epoll_wait(set, &event, 1, ms);
    if (n == 1)
        say(e, "%s: %s %d", who, events(event.events), (int)event.data.u64);
    else
        say(e, "%s: %d", who, n);
}

static struct kid child_waits(struct end *e, int set)
{
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        told(e, "child", set, -1);
        _exit(0);
    }
    await_sleep(e, kid.pid, kid.pid);
    return kid;
}

// The child is told, and leaves it there.
static void of_bytes(struct end *e)
{
    struct kid kid;
    int set = -1;
    AT(S) {
        set = set_with(e, FD);
        kid = child_waits(e, set);
    }
    AT(C) T(send(FD, "x", 1, 0));
    AT(S) {
        reap(e, &kid);
        told(e, "parent", set, PATIENCE_MS);
        T(recv(FD, (char[1]){0}, 1, 0));
        close(set);
    }
}

// The peer is killed.
static void of_an_end(struct end *e)
{
    struct kid kid, holder;
    int set = -1;
    AT(C) {
        holder = spawn(e);
        if (holder.pid == 0) {
            pause();
            _exit(0);
        }
        close(FD);
        FD = -1;
    }
    AT(S) {
        set = set_with(e, FD);
        kid = child_waits(e, set);
    }
    AT(C) {
        kill(holder.pid, SIGKILL);
        reap(e, &holder);
    }
    AT(S) {
        reap(e, &kid);
        told(e, "parent", set, PATIENCE_MS);
        close(set);
    }
}

// Both sleep.
static void of_both(struct end *e)
{
    if (e->role == S) {
        int set = set_with(e, FD);
        struct kid kid = child_waits(e, set);
        will_block(e);
        told(e, "parent", set, PATIENCE_MS);
        reap(e, &kid);
        T(recv(FD, (char[1]){0}, 1, 0));
        close(set);
    } else {
        await_blocked(e);
        T(send(FD, "x", 1, 0));
    }
}

// The parent is told first.
static void of_parent(struct end *e)
{
    struct kid kid = {0};
    int set = -1, go[2];
    AT(S) {
        MUST(pipe2(go, O_CLOEXEC));
        set = set_with(e, FD);
        kid = spawn(e);
        if (kid.pid == 0) {
            char c;
            MUST(read(go[0], &c, 1));
            told(e, "child", set, PATIENCE_MS);
            _exit(0);
        }
    }
    AT(C) T(send(FD, "x", 1, 0));
    AT(S) {
        told(e, "parent", set, PATIENCE_MS);
        MUST(write(go[1], "g", 1));
        reap(e, &kid);
        T(recv(FD, (char[1]){0}, 1, 0));
        close(set);
        close(go[0]);
        close(go[1]);
    }
}

// What the child did not wait for costs it no time.
static void in_vain(struct end *e)
{
    struct kid kid = {0};
    int set = -1;
    AT(S) {
        set = set_with(e, FD);
        for (int i = 0; i < 3; i++)
            told(e, "parent", set, 1);
        kid = spawn(e);
        if (kid.pid == 0) {
            struct timespec used;
            told(e, "child", set, 500);
            MUST(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used));
            say(e, "%s", used.tv_sec == 0 && used.tv_nsec < 200000000 ? "asleep" : "awake");
            _exit(0);
        }
        reap(e, &kid);
        close(set);
    }
}

// The child asks the set from outside, and takes what there is: it is not ready any more. Its parent only waits for its end.
static void child_polls(struct end *e)
{
    enum { ROUNDS = 3 };
    struct kid kid;
    char byte;
    AT(S) {
        int set = set_with(e, FD);
        kid = spawn(e);
        for (int i = 0; kid.pid == 0 && i < ROUNDS; i++) {
            struct pollfd p = {set, POLLIN, 0};
            int before = poll(&p, 1, PATIENCE_MS);
            told(e, "child", set, 0);
            int got = recv(FD, &byte, 1, 0);
            say(e, "%d, %d, then %d", before, got, poll(&p, 1, 0));
            told(e, "child", set, 0);
            MUST(send(FD, &byte, 1, 0));
        }
        if (kid.pid == 0)
            _exit(0);
        close(set);
    }
    AT(C)
        for (int i = 0; i < ROUNDS; i++) {
            MUST(send(FD, "x", 1, 0));
            MUST(recv(FD, &byte, 1, 0));
        }
    AT(S) reap(e, &kid);
}

DIFF_MAIN(CASE(child_polls, SPLIT | COLD), CASE(of_bytes, SPLIT | COLD), CASE(of_an_end, SPLIT | COLD), CASE(of_both, SPLIT | COLD), CASE(of_parent, SPLIT | COLD), CASE(in_vain, SPLIT | COLD))
