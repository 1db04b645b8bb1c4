// What a signal handler interrupts is in no call while it runs, and may be left for ever (setcontext(3)).
// path: shunted 20%
// timeout: 60
#include "diff.h"
#include "pest.h"
#include <ucontext.h>

static ucontext_t away;
static volatile sig_atomic_t has_left;

static void leaves(int sig)
{
    (void)sig;
    hits++;
    has_left = 1;
    setcontext(&away);
}

// A handler has left a receive, and the close ends the stream.
static void closed_after_leaving(struct end *e)
{
    if (e->role == S) {
        struct pest pest;
        has_left = 0;
        handle(SIGUSR1, leaves, 0);
        pest_start(e, &pest, SIGUSR1, 1, 0);
        MUST(getcontext(&away));
        if (!has_left)
            T(recv(FD, (char[4]){0}, 4, 0));
        pest_end(&pest);
        close(FD), FD = -1;
        go(e);
    } else {
        await_go(e);
        await_events(e, FD, POLLRDHUP);
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

static struct end *interrupted;
static void closes_and_waits(int sig)
{
    (void)sig;
    hits++;
    close(interrupted->fd);
    go(interrupted);
    await_go(interrupted);
}

// The end of the stream comes while the handler that closes the connection is still running.
static void closed_while_it_runs(struct end *e)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        join_ends(e);
        if (e->role == S) {
            struct pest pest;
            interrupted = e;
            handle(SIGUSR1, closes_and_waits, restarts ? SA_RESTART : 0);
            pest_start(e, &pest, SIGUSR1, 1, 0);
            T(recv(FD, (char[4]){0}, 4, 0));
            pest_end(&pest);
            FD = -1;
        } else {
            await_go(e);
            await_events(e, FD, POLLRDHUP);
            T(recv(FD, (char[4]){0}, 4, 0));
            go(e);
        }
        part_ends(e);
    }
}

// Many handlers that the call is restarted after: it goes on.
static void an_interrupted_call_goes_on(struct end *e)
{
    AT(S) handle(SIGUSR1, count_hit, SA_RESTART);
    if (e->role == S) {
        struct pest pest;
        char buf[8] = {0};
        pest_start(e, &pest, SIGUSR1, 20, 1);
        T(recv(FD, buf, 8, MSG_WAITALL));
        pest_end(&pest);
        say(e, "%.8s", buf);
    } else {
        await_go(e);
        put(FD, "12345678", 8);
    }
}

struct sleeper {
    struct end *e;
    int fd;
    ssize_t got;
    _Atomic pid_t tid;
    pthread_t thread;
};

static void *receives(void *arg)
{
    struct sleeper *r = arg;
    char bytes[8];
    r->tid = gettid();
    r->got = recv(r->fd, bytes, 8, 0);
    return NULL;
}

static void sleeps(struct end *e, struct sleeper *r, int fd)
{
    r->fd = fd, r->tid = 0;
    MUST(pthread_create(&r->thread, NULL, receives, r));
    while (!r->tid)
        sched_yield();
    await_sleep(e, getpid(), r->tid);
}

// A handler has left a poll of the connection: two other threads that sleep on it are called all the same.
static void others_are_called(struct end *e)
{
    if (e->role == S) {
        struct sleeper r[2];
        struct pest pest;
        has_left = 0;
        handle(SIGUSR1, leaves, 0);
        pest_start(e, &pest, SIGUSR1, 1, 0);
        MUST(getcontext(&away));
        if (!has_left)
            T(poll(&(struct pollfd){FD, POLLIN, 0}, 1, -1));
        pest_end(&pest);
        for (int k = 0; k < 2; k++)
            sleeps(e, &r[k], FD);
        go(e);
        for (int k = 0; k < 2; k++) {
            MUST(pthread_join(r[k].thread, NULL));
            say(e, "%d bytes", (int)r[k].got);
        }
        go(e);
    } else {
        await_go(e);
        put(FD, "message", 8);
        nap();
        put(FD, "another", 8);
        await_go(e);
    }
}

static void *receives_or_leaves(void *arg)
{
    struct sleeper *r = arg;
    char bytes[8];
    static ucontext_t here;
    static volatile int is_back;
    is_back = 0;
    r->tid = gettid();
    getcontext(&here);
    if (!is_back) {
        is_back = 1;
        away = here;
        recv(r->fd, bytes, 8, 0);
    }
    return NULL;
}

// The same of the one that was to be called.
static void others_are_called_instead(struct end *e)
{
    if (e->role == S) {
        struct sleeper r, left = {.e = e, .fd = FD};
        handle(SIGUSR1, leaves, 0);
        sleeps(e, &r, FD);
        MUST(pthread_create(&left.thread, NULL, receives_or_leaves, &left));
        while (!left.tid)
            sched_yield();
        await_sleep(e, getpid(), left.tid);
        pthread_kill(left.thread, SIGUSR1);
        MUST(pthread_join(left.thread, NULL));
        go(e);
        MUST(pthread_join(r.thread, NULL));
        say(e, "%d bytes", (int)r.got);
    } else {
        await_go(e);
        put(FD, "message", 8);
    }
}

DIFF_MAIN(CASE(closed_after_leaving, TWO | COLD), CASE(closed_while_it_runs, TWO | BARE),
          CASE(an_interrupted_call_goes_on, TWO | COLD), CASE(others_are_called, TWO),
          CASE(others_are_called_instead, TWO))
