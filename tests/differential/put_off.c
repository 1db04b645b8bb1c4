// Signals in the middle of sends and receives that do not sleep: a handler may use the same connection, or leave
// for good by siglongjmp, however it was set.
// path: shunted 1%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <setjmp.h>

enum { ROUNDS = 200, WINDOW = 1 << 15, PIECE = 1000, STUCK_MS = 8000, KERNELS = 0x04000000 /* SA_RESTORER */ };

static struct way {
    int sig, flags, other; // another signal that comes with it, or 0
} way;
// Of the thread that is signalled.
static struct end *at;
static pid_t pid, tid;
// What the handler has sent, what the thread has sent else, and how often what happened.
static volatile long sent, sent_below, ran, ran_other, refused, wrong, is_over;
// Signals of the one number are numbered.
static volatile int number;
static char stack[65536];

// What the kernel makes of the disposition and the thread when a handler begins.
static int is_as_asked(void)
{
    struct sigaction now;
    sigset_t blocked;
    char here;
    sigaction(way.sig, NULL, &now);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    int is_default = now.sa_handler == SIG_DFL, on_stack = &here >= stack && &here < stack + sizeof stack;
    return is_default == !!(way.flags & SA_RESETHAND) && on_stack == !!(way.flags & SA_ONSTACK) &&
           sigismember(&blocked, way.sig) == !(way.flags & SA_NODEFER) && sigismember(&blocked, SIGWINCH) &&
           !sigismember(&blocked, SIGURG);
}

static void sends_one(int sig)
{
    int error = errno;
    wrong += !is_as_asked();
    if (send(at->fd, "s", 1, 0) == 1)
        sent++;
    else
        refused++;
    (void)sig;
    errno = error;
    ran++;
}

static void sends_one_and_looks(int sig, siginfo_t *info, void *context)
{
    wrong += info->si_signo != sig || info->si_code != SI_QUEUE || info->si_value.sival_int != number || !context;
    sends_one(sig);
}

static void counts(int sig)
{
    (void)sig;
    ran_other++;
}

static void set(void)
{
    struct sigaction action = {.sa_flags = way.flags}, old;
    if (way.flags & SA_SIGINFO)
        action.sa_sigaction = sends_one_and_looks;
    else
        action.sa_handler = sends_one;
    sigaddset(&action.sa_mask, SIGWINCH);
    sigaction(way.sig, &action, NULL);
    sigaction(way.sig, NULL, &old);
    wrong += old.sa_handler != action.sa_handler || (old.sa_flags & ~KERNELS) != way.flags;
}

static void signal_once(void)
{
    siginfo_t info = {.si_code = SI_QUEUE};
    info.si_value.sival_int = ++number;
    syscall(SYS_rt_tgsigqueueinfo, pid, tid, way.sig, &info);
    if (way.other)
        syscall(SYS_tgkill, pid, tid, way.other);
}

// Signals the thread each time it has handled the one before.
static void *signals(void *arg)
{
    sigset_t all;
    (void)arg;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (long i = 0; i < ROUNDS && !is_over; i++) {
        long long end = now_ms() + STUCK_MS;
        set();
        signal_once();
        while ((ran == i || (way.other && ran_other == i)) && !is_over) {
            sched_yield();
            is_over = now_ms() > end;
        }
    }
    is_over = 1;
    return NULL;
}

static void echo(struct end *e)
{
    char buf[4096];
    for (ssize_t n; (n = recv(FD, buf, sizeof buf, 0)) > 0;)
        put(FD, buf, n);
    T(shutdown(FD, SHUT_WR));
}

static void goes_by(struct end *e, int sig, int flags, int other)
{
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, none = {.ss_flags = SS_DISABLE};
    pthread_t thread;
    char buf[2 * PIECE] = {0};
    long got = 0, part = 0;
    if (e->role == C)
        return echo(e);
    way = (struct way){sig, flags, other};
    at = e, pid = getpid(), tid = syscall(SYS_gettid);
    sent = sent_below = ran = ran_other = refused = wrong = is_over = number = 0;
    MUST(sigaltstack(&alternate, NULL));
    if (other)
        handle(other, counts, SA_RESTART);
    MUST(pthread_create(&thread, NULL, signals, NULL));
    while (!is_over) {
        if (sent_below + sent - got < WINDOW && (part = send(FD, buf, PIECE, MSG_DONTWAIT)) > 0)
            sent_below += part;
        if ((part = recv(FD, buf, sizeof buf, MSG_DONTWAIT)) > 0)
            got += part;
    }
    pthread_join(thread, NULL);
    T(shutdown(FD, SHUT_WR));
    while ((part = recv(FD, buf, sizeof buf, 0)) > 0)
        got += part;
    MUST(sigaltstack(&none, NULL));
    handle(sig, SIG_IGN, 0);
    say(e, "%ld handled, %ld refused, %ld wrong, all came back: %d", ran, refused, wrong, got == sent_below + sent);
}

static void one_shot(struct end *e) { goes_by(e, SIGUSR1, SA_RESETHAND | SA_RESTART, 0); }
static void one_shot_informed(struct end *e)
{
    goes_by(e, SIGUSR1, SA_RESETHAND | SA_RESTART | SA_SIGINFO | SA_ONSTACK, 0);
}
static void one_shot_undeferred(struct end *e)
{
    goes_by(e, SIGRTMIN + 2, SA_RESETHAND | SA_RESTART | SA_SIGINFO | SA_NODEFER, 0);
}
static void undeferred(struct end *e) { goes_by(e, SIGUSR1, SA_RESTART | SA_NODEFER, 0); }
static void two_at_once(struct end *e) { goes_by(e, SIGUSR1, SA_RESTART, SIGUSR2); }
static void one_shot_of_two(struct end *e) { goes_by(e, SIGUSR1, SA_RESTART | SA_RESETHAND, SIGUSR2); }
// Nobody has divided by zero, but somebody says so.
static void as_faults(struct end *e) { goes_by(e, SIGFPE, SA_RESTART, SIGILL); }
static void as_traps(struct end *e) { goes_by(e, SIGTRAP, SA_RESTART | SA_SIGINFO, 0); }

static sigjmp_buf escape;
static volatile long wanted;
static void jump(int sig)
{
    (void)sig;
    siglongjmp(escape, 1);
}

static void *interrupts(void *arg)
{
    struct end *e = arg;
    (void)e;
    for (long i = 1; i <= ROUNDS && !is_over; i++) {
        while (wanted < i && !is_over)
            sched_yield();
        for (volatile long delay = i * 37 % 4000; delay > 0; delay--) {}
        syscall(SYS_tgkill, pid, tid, SIGUSR1);
    }
    return NULL;
}

// A handler for one signal only leaves for good. Then the thread's other signals still come, and it still sends and receives.
static void one_shot_jumps(struct end *e)
{
    pthread_t thread;
    char buf[PIECE] = {0};
    volatile long bad = 0;
    if (e->role == S) {
        pid = getpid(), tid = syscall(SYS_gettid), wanted = is_over = 0;
        handle(SIGUSR2, count_hit, 0);
        MUST(pthread_create(&thread, NULL, interrupts, e));
        for (volatile long i = 1; i <= ROUNDS; i++) {
            if (sigsetjmp(escape, 1) == 0) {
                handle(SIGUSR1, jump, SA_RESETHAND);
                for (wanted = i;;) {
                    send(FD, buf, sizeof buf, MSG_DONTWAIT);
                    recv(FD, buf, sizeof buf, MSG_DONTWAIT);
                }
            }
            hits = 0;
            syscall(SYS_tgkill, pid, tid, SIGUSR2);
            bad += hits != 1;
            bad += send(FD, "x", 1, 0) != 1;
        }
        is_over = 1;
        pthread_join(thread, NULL);
        say(e, "%ld bad", bad);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 8, 0));
    } else {
        while (recv(FD, buf, sizeof buf, 0) > 0) {}
        T(send(FD, "hello", 5, 0));
    }
}

DIFF_MAIN(CASE(one_shot, TWO | BUSY), CASE(one_shot_informed, TWO | BUSY), CASE(one_shot_undeferred, TWO | BUSY),
          CASE(undeferred, TWO | BUSY), CASE(two_at_once, TWO | BUSY), CASE(one_shot_of_two, TWO | BUSY),
          CASE(as_faults, TWO | BUSY), CASE(as_traps, TWO | BUSY), CASE(one_shot_jumps, TWO | BUSY))
