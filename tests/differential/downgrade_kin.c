// A connection goes back to plain TCP while processes share it by fork, and
// while its peer is stopped, or dies.
// needs: lending
// path: shunted
// timeout: 60
#include "diff.h"
#include "plain.h"
#include <sys/resource.h>

static void by_stream(struct end *e)
{
    FILE *f = fdopen(dup(FD), "r");
    if (!f || fclose(f))
        say(e, "no stream");
}

// ---- A child that shares it ------------------------------------------------

enum sleep { IN_RECV, IN_POLL, IN_EPOLL };

static void sleeps(struct end *e, enum sleep how)
{
    struct pollfd p = {FD, POLLIN, 0};
    struct epoll_event ev = {EPOLLIN, {.u32 = 3}}, got = {0};
    if (how == IN_POLL) {
        T(poll(&p, 1, -1));
        say(e, "%s", events(p.revents));
    } else if (how == IN_EPOLL) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &ev));
        T(epoll_wait(set, &got, 1, -1));
        say(e, "%s %u", events(got.events), got.data.u32);
    }
    expect(e, FD, 5000, 1);
}

// The child sleeps; its parent makes the connection plain; what comes wakes it.
static void child_asleep(struct end *e, enum sleep how, int by_program)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            sleeps(e, how);
            produce(e, FD, 5000, 2);
            _exit(0);
        }
        await_sleep(e, kid.pid, kid.pid);
        if (by_program) {
            struct plain p = PLAIN(FD);
            tell_it(e, &p, SEND, 1000, 3);
            plain_end(e, &p);
        } else {
            by_stream(e);
            produce(e, FD, 1000, 3);
        }
        await_sleep(e, kid.pid, kid.pid);
        go(e);
        reap(e, &kid);
    } else {
        await_go(e);
        produce(e, FD, 5000, 1);
        expect(e, FD, 1000, 3);
        expect(e, FD, 5000, 2);
    }
    meet(e);
    goes_on(e);
}
static void child_in_recv(struct end *e) { child_asleep(e, IN_RECV, 0); }
static void child_in_poll(struct end *e) { child_asleep(e, IN_POLL, 0); }
static void child_in_epoll(struct end *e) { child_asleep(e, IN_EPOLL, 0); }
static void program_child_in_recv(struct end *e) { child_asleep(e, IN_RECV, 1); }
static void program_child_in_poll(struct end *e) { child_asleep(e, IN_POLL, 1); }
static void program_child_in_epoll(struct end *e) { child_asleep(e, IN_EPOLL, 1); }

// The child makes it plain, with bytes on their way both ways; the parent, who
// has not been told, goes on.
static void child_makes_plain(struct end *e, int by_program)
{
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        produce(e, FD, MUCH, 2);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            if (by_program) {
                struct plain p = PLAIN(FD);
                tell_it(e, &p, RECEIVE, MUCH, 1);
                plain_end(e, &p);
            } else {
                FILE *f = fdopen(dup(FD), "r");
                expect_stream(e, f, MUCH, 1);
                fclose(f);
            }
            _exit(0);
        }
        reap(e, &kid);
        produce(e, FD, 1000, 3);
    }
    AT(C) {
        expect(e, FD, MUCH, 2);
        expect(e, FD, 1000, 3);
        produce(e, FD, 1000, 4);
    }
    AT(S) expect(e, FD, 1000, 4);
    goes_on(e);
}
static void child_puts_stream(struct end *e) { child_makes_plain(e, 0); }
static void child_runs_program(struct end *e) { child_makes_plain(e, 1); }

// Parent, child and a program use it in turns.
static void three_in_turns(struct end *e)
{
    at_once(e);
    if (e->role == S) {
        int down[2], up[2];
        char c;
        MUST(pipe2(down, O_CLOEXEC));
        MUST(pipe2(up, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            for (int i = 0; i < 10; i++) {
                get(down[0], &c, 1);
                expect(e, FD, 100, 3 * i);
                produce(e, FD, 100, 3 * i);
                raw_write(up[1], "t", 1);
            }
            _exit(0);
        }
        struct plain p = {-1, -1, ""};
        for (int i = 0; i < 10; i++) {
            raw_write(down[1], "t", 1);
            get(up[0], &c, 1);
            expect(e, FD, 100, 3 * i + 1);
            produce(e, FD, 100, 3 * i + 1);
            if (i == 4)
                p = PLAIN(FD);
            if (i >= 4) {
                tell_it(e, &p, RECEIVE, 100, 3 * i + 2);
                tell_it(e, &p, SEND, 100, 3 * i + 2);
            }
        }
        plain_end(e, &p);
        reap(e, &kid);
        close(down[0]), close(down[1]), close(up[0]), close(up[1]);
    } else {
        for (int i = 0; i < 10; i++)
            for (int j = 0; j < (i >= 4 ? 3 : 2); j++) {
                produce(e, FD, 100, 3 * i + j);
                expect(e, FD, 100, 3 * i + j);
            }
    }
    meet(e);
    goes_on(e);
}

// Both ends are shared, and both are made plain by children at the same time.
static void children_at_both_ends(struct end *e)
{
    produce(e, FD, MUCH, e->role);
    meet(e);
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, MUCH, !e->role);
        plain_end(e, &p);
        _exit(0);
    }
    reap(e, &kid);
    meet(e);
    goes_on(e);
}

// The child that made it plain is killed while it uses it.
static void killed_after(struct end *e)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            by_stream(e);
            char c;
            recv(FD, &c, 1, 0);
            pause();
        }
        await_sleep(e, kid.pid, kid.pid);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
    }
    meet(e);
    goes_on(e);
}

// ---- A peer that cannot help -----------------------------------------------

// The peer is stopped: nobody may have to wait for it who only sends, and what
// it had sent arrives when it goes on.
static void stopped_peer(struct end *e, size_t n)
{
    if (e->role == C) {
        produce(e, FD, n, 1);
        will_block(e);
        await_go(e);
        expect(e, FD, 1000, 2);
        expect(e, FD, 1000, 3);
    } else {
        await_blocked(e);
        kill(e->peer_pid, SIGSTOP);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, SEND, 1000, 2);
        order(&p, RECEIVE, n, 1);
        kill(e->peer_pid, SIGCONT);
        await_report(e, &p);
        plain_end(e, &p);
        produce(e, FD, 1000, 3);
        go(e);
    }
    meet(e);
    goes_on(e);
}
static void stopped_idle(struct end *e) { stopped_peer(e, 0); }
static void stopped_with_few(struct end *e) { stopped_peer(e, FEW); }
static void stopped_with_much(struct end *e) { stopped_peer(e, 60000); }

// The only process that had the peer's end is killed; what it sent is still there.
static void killed_peer(struct end *e, size_t n)
{
    if (e->role == C) {
        int ready[2];
        MUST(pipe2(ready, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            produce(e, FD, n, 1);
            raw_write(ready[1], "s", 1);
            pause();
        }
        close(FD), FD = -1;
        get(ready[0], (char[1]){0}, 1); // all is sent
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        close(ready[0]), close(ready[1]);
        go(e);
    } else {
        await_go(e);
        await_events(e, FD, POLLRDHUP);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, n, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}
static void killed_idle(struct end *e) { killed_peer(e, 0); }
static void killed_with_few(struct end *e) { killed_peer(e, FEW); }
static void killed_with_more(struct end *e) { killed_peer(e, 60000); }

// The connection is plain already when the peer dies.
static void killed_when_plain(struct end *e)
{
    if (e->role == C) {
        int ready[2];
        MUST(pipe2(ready, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            produce(e, FD, 1000, 1);
            expect(e, FD, 1000, 2);
            produce(e, FD, 1000, 3);
            raw_write(ready[1], "s", 1);
            pause();
        }
        close(FD), FD = -1;
        get(ready[0], (char[1]){0}, 1);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        close(ready[0]), close(ready[1]);
        go(e);
    } else {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, SEND, 1000, 2);
        await_go(e);
        tell_it(e, &p, RECEIVE, 1000, 3);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}

// What is sent last by who has had a child, which is gone.
static void last_bytes(struct end *e)
{
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0)
            _exit(0);
        reap(e, &kid);
        await_blocked(e);
        produce(e, FD, 10, 1);
        await_go(e);
        produce(e, FD, 1000, 2);
        close(FD), FD = -1;
        go(e);
    } else {
        will_block(e);
        expect(e, FD, 10, 1);
        go(e);
        await_go(e);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 1000, 2);
        plain_end(e, &p);
    }
}

// Reads by another program what a child sends that has the other end alone, and is in no call.
static void reads_by_program(struct end *e)
{
    await_go(e);
    await_bytes(e, FD, 1000);
    struct plain p = PLAIN(FD);
    tell_it(e, &p, RECEIVE, 1000, 1);
    plain_end(e, &p);
    go(e);
}

static void a_child_has_it(struct end *e, int at_both_ends)
{
    int down[2];
    char c;
    if (e->role == S && !at_both_ends) {
        reads_by_program(e);
        return;
    }
    MUST(pipe2(down, O_CLOEXEC));
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        close(down[1]);
        get(down[0], &c, 1); // Its parent has let go of the connection.
        if (e->role == S) {
            reads_by_program(e);
        } else {
            produce(e, FD, 1000, 1);
            get(down[0], &c, 1);
        }
        _exit(0);
    }
    close(down[0]);
    close(FD), FD = -1;
    raw_write(down[1], "s", 1);
    if (e->role == C) {
        await_sleep(e, kid.pid, kid.pid);
        go(e);
        await_go(e);
    }
    close(down[1]);
    reap(e, &kid);
}
static void daemon_has_it(struct end *e) { a_child_has_it(e, 0); }
static void daemons_have_both(struct end *e) { a_child_has_it(e, 1); }

static volatile pid_t sleeper;
static void *sleeps_on_it(void *fd)
{
    sleeper = syscall(SYS_gettid);
    recv(*(int *)fd, (char[1]){0}, 1, 0);
    return NULL;
}

// A process closes its last descriptor under a thread that sleeps on the connection, for which it can
// have no other. The peer, which has not read all, goes back to TCP, and hears what a child sends then.
static void closed_without_copy(struct end *e)
{
    int to_child[2];
    char c;
    if (e->role == C) {
        struct epoll_event event = {EPOLLIN, {.u32 = 1}};
        struct pollfd p = {FD, POLLIN, 0};
        int sets[2];
        await_go(e);
        await_bytes(e, FD, 5000);
        for (int i = 0; i < 2; i++) {
            sets[i] = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(sets[i], EPOLL_CTL_ADD, FD, &event));
        }
        go(e);
        expect(e, FD, 5000, 1);
        if (T(poll(&p, 1, PATIENCE_MS)) == 1)
            expect(e, FD, 1000, 2);
        close(sets[0]), close(sets[1]);
        go(e);
        return;
    }
    produce(e, FD, 5000, 1);
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        pthread_t thread;
        MUST(pipe2(to_child, O_CLOEXEC));
        if (MUST(fork()) == 0) {
            get(to_child[0], &c, 1);
            produce(e, FD, 1000, 2);
            _exit(0);
        }
        int fd = FD;
        MUST(pthread_create(&thread, NULL, sleeps_on_it, &fd));
        while (!sleeper)
            nap();
        await_sleep(e, getpid(), sleeper);
        MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3}));
        close(FD);
        go(e);
        await_go(e);
        raw_write(to_child[1], "s", 1);
        MUST(wait(NULL));
        await_go(e);
        _exit(0);
    }
    reap(e, &kid);
}

PLAIN_MAIN(CASE(closed_without_copy, SPLIT | COLD), CASE(last_bytes, SPLIT | COLD), CASE(daemon_has_it, SPLIT | COLD), CASE(daemons_have_both, SPLIT | COLD), CASE(child_in_recv, SPLIT | COLD), CASE(child_in_poll, SPLIT | COLD), CASE(child_in_epoll, SPLIT | COLD),
           CASE(program_child_in_recv, SPLIT | COLD), CASE(program_child_in_poll, SPLIT | COLD),
           CASE(program_child_in_epoll, SPLIT | COLD), CASE(child_puts_stream, SPLIT | COLD),
           CASE(child_runs_program, SPLIT | COLD), CASE(three_in_turns, SPLIT | COLD),
           CASE(children_at_both_ends, SPLIT | COLD), CASE(killed_after, SPLIT | COLD), CASE(stopped_idle, SPLIT | COLD),
           CASE(stopped_with_few, SPLIT | COLD), CASE(stopped_with_much, SPLIT | COLD), CASE(killed_idle, SPLIT | COLD),
           CASE(killed_with_few, SPLIT | COLD), CASE(killed_with_more, SPLIT | COLD),
           CASE(killed_when_plain, SPLIT | COLD))
