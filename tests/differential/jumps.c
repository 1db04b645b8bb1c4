// Signal handlers that leave a wait for good by siglongjmp, thousands of times: nothing that was noted for
// the wait stays behind. Later waits sleep, and the connection stays in memory.
// path: shunted 90%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf escape;
static void jump(int sig)
{
    (void)sig;
    siglongjmp(escape, 1);
}

static long long used_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

enum { JUMPS = 800, TURNS_ASLEEP = 5 };

enum wait { BY_POLL, BY_SELECT, BY_PEEK, BY_EPOLL };

static int set_with(struct end *e, int fd)
{
    struct epoll_event event = {EPOLLIN, {.u32 = 7}};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    return set;
}

static void await_one(int how, int fd, int set)
{
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set readable;
    switch (how) {
    case BY_POLL: poll(&p, 1, -1); break;
    case BY_EPOLL: epoll_wait(set, &event, 1, -1); break;
    case BY_SELECT:
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        select(fd + 1, &readable, NULL, NULL, NULL);
        break;
    case BY_PEEK: recv(fd, (char[1]){0}, 1, MSG_PEEK); break;
    }
}

// Who waits after a handler has left other waits for good still sleeps, whatever it waits by.
static void sleeps_after_jumps(struct end *e, volatile int how)
{
    char buf[8];
    if (e->role == S) {
        struct itimerval soon = {{0, 0}, {0, 0}}, never = {{0, 0}, {0, 0}};
        volatile int set = how == BY_EPOLL ? set_with(e, FD) : -1;
        handle(SIGALRM, jump, SA_RESTART);
        for (volatile int round = 0; round < JUMPS; round++) {
            MUST(send(FD, "j", 1, 0));
            soon.it_value.tv_usec = 1 + round * 7 % 200;
            if (sigsetjmp(escape, 1) == 0) {
                MUST(setitimer(ITIMER_REAL, &soon, NULL));
                await_one(how, FD, set);
                setitimer(ITIMER_REAL, &never, NULL);
            }
            MUST(recv(FD, buf, 1, 0));
        }
        handle(SIGALRM, SIG_IGN, 0);
        for (volatile int turn = 0; turn < TURNS_ASLEEP; turn++) {
            long long used = used_ms(), start = now_ms();
            // The first time it receives, then it waits by each of the ways.
            if (turn > BY_EPOLL && set < 0)
                set = set_with(e, FD);
            will_block(e);
            if (turn > 0)
                await_one(turn - 1, FD, set);
            T(recv(FD, buf, 1, 0));
            say(e, "slept: %d", (used_ms() - used) * 10 < now_ms() - start);
            T(send(FD, "y", 1, 0));
        }
        close(set);
    } else {
        for (int round = 0; round < JUMPS; round++) {
            MUST(recv(FD, buf, 1, 0));
            usleep(round * 13 % 150); // Some waits end by the signal, some by this.
            MUST(send(FD, "j", 1, 0));
        }
        for (int turn = 0; turn < TURNS_ASLEEP; turn++) {
            await_go(e);
            usleep(100000); // Long beside what it takes to fall asleep.
            T(send(FD, "x", 1, 0));
            T(recv(FD, buf, 1, 0));
        }
    }
}
static void out_of_poll(struct end *e) { sleeps_after_jumps(e, BY_POLL); }
static void out_of_epoll(struct end *e) { sleeps_after_jumps(e, BY_EPOLL); }
static void out_of_select(struct end *e) { sleeps_after_jumps(e, BY_SELECT); }
static void out_of_peek(struct end *e) { sleeps_after_jumps(e, BY_PEEK); }

DIFF_MAIN(CASE(out_of_poll, SPLIT), CASE(out_of_epoll, SPLIT), CASE(out_of_select, SPLIT), CASE(out_of_peek, SPLIT))
