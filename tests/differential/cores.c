// Which cores the ends run on: both on one, each on its own, moving while they talk.
// path: shunted 60%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <sched.h>

// Runs on the N-th of the cores that this process may use, counted round.
static void run_on(struct end *e, const cpu_set_t *all, int n)
{
    n %= CPU_COUNT(all);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, all) && n-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            MUST(sched_setaffinity(0, sizeof one, &one));
        }
}

// Receives a byte by recv alone, after poll, or after epoll_wait.
static int next(struct end *e, int ep, int how)
{
    struct pollfd p = {FD, POLLIN, 0};
    struct epoll_event ev;
    if (how == 1)
        MUST(poll(&p, 1, PATIENCE_MS));
    else if (how == 2)
        MUST(epoll_wait(ep, &ev, 1, PATIENCE_MS));
    unsigned char c;
    return MUST(recv(FD, &c, 1, 0)) == 1 ? c : -1;
}

// Both ends move every few messages, not at the same, and change the call that they wait in.
static void moving(struct end *e)
{
    enum { TRIPS = 6000 };
    cpu_set_t all;
    struct epoll_event ev = {EPOLLIN, {.u64 = 0}};
    int good = 0, ep = -1;
    MUST(sched_getaffinity(0, sizeof all, &all));
    for (int i = 0; i < TRIPS; i++) {
        if (i % (e->role == C ? 37 : 59) == 0)
            run_on(e, &all, i / 37);
        int how = i / (e->role == C ? 500 : 700) % 3;
        if (how == 2 && ep < 0) {
            ep = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        } else if (how != 2 && ep >= 0) {
            close(ep);
            ep = -1;
        }
        unsigned char c = i;
        if (e->role == C)
            MUST(send(FD, &c, 1, 0));
        good += next(e, ep, how) == c;
        if (e->role == S)
            MUST(send(FD, &c, 1, 0));
    }
    if (ep >= 0)
        close(ep);
    MUST(sched_setaffinity(0, sizeof all, &all));
    say(e, "%d of %d", good, TRIPS);
}

// A signal right after an answer, from a peer on the same core, which runs when the answerer
// waits for the next message: mostly it ends that wait. (It may always come a moment before.)
static void signalled_by_peer(struct end *e)
{
    enum { SIGNALS = 100, ENDED = 5, SOON_MS = 30 };
    cpu_set_t all;
    pid_t pid = getpid();
    char c;
    MUST(sched_getaffinity(0, sizeof all, &all));
    run_on(e, &all, 0);
    share(e, S, &pid, sizeof pid);
    if (e->role == S) {
        handle(SIGUSR1, count_hit, 0);
        for (c = 'x'; c != 'q';)
            if (recv(FD, &c, 1, 0) == 1)
                MUST(send(FD, "a", 1, 0));
            else if (errno == EINTR)
                MUST(send(FD, "E", 1, 0));
            else
                break;
        handle(SIGUSR1, SIG_IGN, 0);
    } else {
        int ended = 0, answers = 0;
        for (int i = 0; i < SIGNALS && ended < ENDED; i++) {
            for (int k = 0; k < 8; k++) {
                MUST(send(FD, "x", 1, 0));
                while (MUST(recv(FD, &c, 1, 0)) == 1 && c == 'E')
                    ended++;
                answers += c == 'a';
            }
            kill(pid, SIGUSR1);
            struct pollfd p = {FD, POLLIN, 0};
            poll(&p, 1, SOON_MS);
        }
        MUST(send(FD, "q", 1, 0));
        while (MUST(recv(FD, &c, 1, 0)) == 1 && c == 'E')
            ended++;
        say(e, "answers %d, some ended %d", answers > 0 && answers % 8 == 0, ended >= ENDED);
    }
    meet(e);
    MUST(sched_setaffinity(0, sizeof all, &all));
}

// The data of what the set tells of, a connection (1) and a Unix socket (2), in turn.
static int told_in_turn(struct end *e, int set)
{
    int order = 0, left = 2;
    while (left > 0) {
        struct epoll_event got[2];
        int n = epoll_wait(set, got, 2, PATIENCE_MS);
        for (int i = 0; i < n && left > 0; i++, left--) {
            order = 10 * order + got[i].data.u64;
            get(got[i].data.u64 == 1 ? FD : e->ctl, (char[1]){0}, 1);
        }
        if (n <= 0)
            return -1;
    }
    return order;
}

// A byte comes on a connection, and one on a socket that is the kernel's, or the other way round, before a thread that
// sleeps on both gets the core: it is told of them as they came.
static void two_in_turn(struct end *e)
{
    enum { ROUNDS = 20 };
    cpu_set_t all;
    MUST(sched_getaffinity(0, sizeof all, &all));
    run_on(e, &all, 0);
    if (e->role == S) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), good[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            struct epoll_event event = {EPOLLIN, {.u64 = i + 1}};
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, i ? e->ctl : FD, &event));
        }
        // Who is woken does not take the core from its peer.
        MUST(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}));
        for (int i = 0; i < ROUNDS; i++) {
            will_block(e);
            int order = told_in_turn(e, set);
            good[i & 1] += order == (i & 1 ? 21 : 12);
            if (order != (i & 1 ? 21 : 12))
                say(e, "round %d: %d", i, order);
        }
        MUST(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0}));
        say(e, "%d and %d of %d", good[0], good[1], ROUNDS / 2);
        close(set);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            await_blocked(e);
            if (i & 1)
                give(e, "k", 1);
            put(FD, "c", 1);
            if (~i & 1)
                give(e, "k", 1);
        }
    }
    meet(e);
    MUST(sched_setaffinity(0, sizeof all, &all));
}

DIFF_MAIN(CASE(moving, SPLIT | COLD), CASE(signalled_by_peer, SPLIT),
          CASE(two_in_turn, TWO | STEADY))
