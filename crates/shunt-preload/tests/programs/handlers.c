// Every way to set a signal handler, and everything that can happen in one.
#include "show.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern sighandler_t __sysv_signal(int, sighandler_t);
extern sighandler_t bsd_signal(int, sighandler_t);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static volatile int depth, calls;
static void *restorer;

static void quiet(int number) { (void)number, calls++; }

static void one(int number) {
    // What the kernel makes of a handler's frame must be what the handler finds.
    int own = restorer == NULL || __builtin_return_address(0) == restorer;
    errno = 55;
    printf("one(%d), depth %d, returns to libc %d\n", number, depth, own);
}

static void two(int number, siginfo_t *info, void *context) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    printf("two(%d), number %d, code %d, value %d, mask %lx, interrupted %lx, depth %d\n", number, info->si_signo,
           info->si_code, info->si_code == SI_QUEUE ? info->si_value.sival_int : 0, now.__val[0],
           ((ucontext_t *)context)->uc_sigmask.__val[0], depth);
}

static const char *name(void *handler) {
    return handler == SIG_DFL             ? "default"
           : handler == SIG_IGN           ? "ignore"
           : handler == SIG_ERR           ? "error"
           : handler == SIG_HOLD          ? "hold"
           : handler == (void *)quiet     ? "quiet"
           : handler == (void *)one       ? "one"
           : handler == (void *)two       ? "two"
           : handler == (void *)0x7777777 ? "odd"
                                          : "unknown";
}
#define NAME(call)                                                                                                     \
    ({                                                                                                                 \
        errno = 7777;                                                                                                  \
        const char *name_ = name((void *)(call));                                                                      \
        int error_ = errno;                                                                                            \
        printf("%d: %s = %s, errno %d\n", __LINE__, #call, name_, error_);                                             \
    })

static void tell(const char *what, const struct sigaction *action) {
    printf("  %s: %s, flags %x, mask %lx, restorer %d\n", what, name(action->sa_handler), action->sa_flags,
           action->sa_mask.__val[0], action->sa_restorer == restorer);
}

static void ask(int number) {
    struct sigaction old;
    memset(&old, 0x55, sizeof old);
    printf("%d: answers %d\n", number, sigaction(number, NULL, &old));
    tell("is", &old);
}

static struct sigaction set(int number, void *handler, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old = {0};
    sigemptyset(&action.sa_mask);
    if (flags & SA_NODEFER) sigaddset(&action.sa_mask, SIGWINCH);
    MUST(sigaction(number, &action, &old) == 0);
    return old;
}

static void all_combinations(void) {
    int numbers[] = {SIGUSR1, SIGCHLD, SIGSEGV, SIGBUS, SIGINT, 34, 64, 0, -1, 65, INT32_MAX, SIGKILL, SIGSTOP, 32, 33};
    void *handlers[] = {SIG_DFL, one, two, SIG_IGN, two, one, SIG_DFL, quiet, (void *)0x7777777, SIG_HOLD, SIG_ERR};
    int bits[] = {SA_SIGINFO, SA_RESTART, SA_ONSTACK, SA_NODEFER, SA_RESETHAND, SA_NOCLDSTOP, SA_NOCLDWAIT,
                  0x400,      0x800,      0x20000000, 0x40,       0x04000000};
    unsigned state = 1;
    for (unsigned n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        for (int round = 0; round < 60; round++) {
            struct sigaction new = {0}, old;
            memset(&old, 0x33, sizeof old);
            state = state * 1103515245 + 12345;
            for (unsigned b = 0; b < sizeof bits / sizeof *bits; b++)
                if (state >> (b + 8) & 1) new.sa_flags |= bits[b];
            new.sa_handler = handlers[(state >> 20) % (sizeof handlers / sizeof *handlers)];
            memset(&new.sa_mask, (int)(state >> 16), 8);
            int with_old = (state >> 5 & 3) != 0, same = (state >> 5 & 3) == 1;
            errno = 7777;
            int answer = (round & 1 ? __sigaction : sigaction)(numbers[n], &new, !with_old ? NULL : same ? &new : &old);
            printf("%d %d: %d, errno %d\n", numbers[n], round, answer, errno);
            if (with_old) tell("was", same ? &new : &old);
            if (round % 3 == 0) ask(numbers[n]);
        }
        struct sigaction reset = {0};
        sigaction(numbers[n], &reset, NULL);
    }
}

static void other_names(void) {
    int numbers[] = {SIGUSR1, SIGSEGV, SIGKILL, 0, 32, 65};
    for (unsigned n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        int number = numbers[n];
        printf("signal %d\n", number);
        NAME(signal(number, one)), ask(number);
        NAME(signal(number, SIG_IGN)), ask(number);
        NAME(bsd_signal(number, (sighandler_t)two)), ask(number);
        NAME(ssignal(number, quiet)), ask(number);
        NAME(sysv_signal(number, one)), ask(number);
        NAME(__sysv_signal(number, quiet)), ask(number);
        NAME(signal(number, SIG_ERR)), ask(number);
        SHOW(siginterrupt(number, 0)), ask(number);
        SHOW(siginterrupt(number, 1)), ask(number);
        NAME(signal(number, one)), ask(number);
        SHOW(siginterrupt(number, 0));
        NAME(signal(number, one)), ask(number);
        NAME(sigset(number, quiet)), ask(number);
        NAME(sigset(number, SIG_HOLD)), ask(number);
        NAME(sigset(number, SIG_HOLD));
        NAME(sigset(number, one)), ask(number);
        NAME(sigset(number, SIG_IGN)), ask(number);
        NAME(sigset(number, SIG_ERR)), ask(number);
        NAME(sigset(number, one));
        SHOW(sigignore(number)), ask(number);
        NAME(sigset(number, SIG_DFL)), ask(number);
        NAME(signal(number, one)), SHOW(sighold(number)), SHOW(sigrelse(number)), ask(number);
        NAME(signal(number, SIG_DFL)), ask(number);
        sigset_t now;
        pthread_sigmask(SIG_BLOCK, NULL, &now);
        printf("mask %lx\n", now.__val[0]);
    }
}

static void once(void) {
    set(SIGUSR1, one, SA_RESETHAND), SHOW(raise(SIGUSR1)), ask(SIGUSR1);
    set(SIGUSR1, two, SA_RESETHAND | SA_SIGINFO | SA_NODEFER), SHOW(raise(SIGUSR1)), ask(SIGUSR1);
    sysv_signal(SIGUSR1, one), SHOW(raise(SIGUSR1)), ask(SIGUSR1);
}

static void nested(int number) {
    depth++;
    printf("nested(%d) %d\n", number, depth);
    if (depth < 4 && calls++ < 6) raise(number == SIGUSR1 && depth % 2 ? SIGUSR2 : SIGUSR1);
    printf("back %d\n", depth);
    depth--;
}

static void nesting(void) {
    set(SIGUSR1, nested, SA_NODEFER), set(SIGUSR2, nested, 0), calls = 0, SHOW(raise(SIGUSR1));
    // Without SA_NODEFER the inner one waits for the outer one's end.
    calls = 0;
    set(SIGUSR1, nested, 0), SHOW(raise(SIGUSR2));
    union sigval value = {.sival_int = 42};
    set(SIGRTMIN, two, SA_SIGINFO | SA_NODEFER), SHOW(sigqueue(getpid(), SIGRTMIN, value)), ask(SIGRTMIN);
    errno = 0, set(SIGUSR1, quiet, 0), raise(SIGUSR1), printf("errno %d\n", errno);
}

static char alternate[65536];
static void where(int number) {
    char here;
    printf("where(%d): on the alternate stack %d\n", number, &here >= alternate && &here < alternate + sizeof alternate);
    if (depth++ == 0) raise(SIGUSR2);
}

static void stacks(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    depth = 0;
    SHOW(sigaltstack(&stack, NULL));
    set(SIGUSR1, where, SA_ONSTACK), set(SIGUSR2, where, 0), SHOW(raise(SIGUSR1)), SHOW(raise(SIGUSR2));
    stack.ss_flags = SS_DISABLE, depth = 0, SHOW(sigaltstack(&stack, NULL));
}

static sigjmp_buf jump;
static void leaps(int number) { siglongjmp(jump, number); }
static void hops(int number) { longjmp(jump, number); }

static void jumps(void) {
    for (int round = 0; round < 3; round++) {
        set(SIGUSR1, leaps, 0);
        int value = sigsetjmp(jump, 1);
        if (value == 0) raise(SIGUSR1);
        sigset_t now;
        pthread_sigmask(SIG_BLOCK, NULL, &now), printf("leapt %d, mask %lx\n", value, now.__val[0]);
        set(SIGUSR1, hops, SA_NODEFER);
        value = setjmp(jump);
        if (value == 0) raise(SIGUSR1);
        printf("hopped %d\n", value);
    }
    // Out of a fault.
    set(SIGSEGV, leaps, 0);
    for (int round = 0; round < 3; round++) {
        if (sigsetjmp(jump, 1) == 0) *(volatile int *)16 = 1;
        printf("faulted\n");
    }
    signal(SIGSEGV, SIG_DFL);
}

static void changes(int number) {
    struct sigaction next = {.sa_handler = one}, old;
    SHOW(sigaction(number, &next, &old)), tell("was", &old);
    tell("was", (old = set(SIGUSR2, quiet, SA_RESTART), &old)), raise(SIGUSR2);
}

static void changing(void) {
    set(SIGUSR1, changes, 0), raise(SIGUSR1), raise(SIGUSR1), ask(SIGUSR1);
    // What was saved can be put back.
    struct sigaction saved = set(SIGUSR1, two, SA_SIGINFO | SA_RESTART);
    raise(SIGUSR1), sigaction(SIGUSR1, &saved, NULL), raise(SIGUSR1), ask(SIGUSR1);
}

static void children(void) {
    set(SIGUSR1, one, SA_RESTART), set(SIGUSR2, two, SA_SIGINFO), fflush(stdout);
    // A child in this memory may ask, ignore and set what it likes.
    pid_t child = vfork();
    if (child == 0) {
        ask(SIGUSR1), ask(SIGUSR2);
        signal(SIGUSR1, SIG_DFL), signal(SIGUSR2, SIG_IGN), ask(SIGUSR1), ask(SIGUSR2);
        NAME(signal(SIGUSR1, quiet)), ask(SIGUSR1);
        struct sigaction mine = set(SIGUSR2, quiet, SA_RESTART);
        tell("was", &mine), ask(SIGUSR2);
        calls = 0, raise(SIGUSR1), raise(SIGUSR2), printf("calls %d\n", calls), fflush(stdout);
        _exit(0);
    }
    SHOW(waitpid(child, NULL, 0) == child), ask(SIGUSR1), ask(SIGUSR2), raise(SIGUSR1), raise(SIGUSR2), fflush(stdout);
    if ((child = fork()) == 0) {
        ask(SIGUSR1), raise(SIGUSR1), raise(SIGUSR2), set(SIGUSR2, one, 0), raise(SIGUSR2), fflush(stdout);
        signal(SIGUSR1, SIG_DFL), raise(SIGUSR1), _exit(1);
    }
    int status;
    SHOW(waitpid(child, &status, 0) == child), printf("status %x\n", status), ask(SIGUSR1), ask(SIGUSR2);
    raise(SIGUSR2), fflush(stdout);
    // Ignored signals stay so in a new program, handled ones do not.
    signal(SIGUSR1, SIG_IGN), set(SIGSEGV, one, 0), signal(SIGBUS, SIG_IGN), fflush(stdout);
    SHOW(system("grep Sig[ICB] /proc/self/status")), ask(SIGINT), ask(SIGQUIT), ask(SIGCHLD);
}

// The kernel's own struct.
struct bare {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

static void bare(void) {
    struct bare action = {0}, old;
    set(SIGUSR1, one, SA_RESTART);
    SHOW(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &old, 8)), printf("flags %lx, mask %lx\n", old.flags, old.mask);
    action = old, action.handler = quiet;
    SHOW(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8)), ask(SIGUSR1), calls = 0, raise(SIGUSR1), SHOW(calls);
    // Whatever the kernel had can be put back, by either way.
    SHOW(syscall(SYS_rt_sigaction, SIGUSR1, &old, NULL, 8)), ask(SIGUSR1), raise(SIGUSR1);
    struct sigaction back = {.sa_handler = old.handler, .sa_flags = SA_NODEFER};
    SHOW(sigaction(SIGUSR1, &back, NULL)), ask(SIGUSR1), raise(SIGUSR1);
}

static void cleaned(void *what) { printf("cleaned up %s\n", (char *)what); }
static void ends_thread(int number) {
    pthread_cleanup_push(cleaned, "in the handler");
    printf("ends(%d)\n", number), pthread_exit((void *)3L);
    pthread_cleanup_pop(0);
}
static void is_cancelled(int number) {
    pthread_cleanup_push(cleaned, "in the cancelled handler");
    printf("cancelled(%d)\n", number), pthread_cancel(pthread_self()), pthread_testcancel();
    pthread_cleanup_pop(0);
}
static void *thread(void *argument) {
    pthread_cleanup_push(cleaned, "in the thread");
    pthread_kill(pthread_self(), (int)(long)argument);
    printf("not reached\n");
    pthread_cleanup_pop(0);
    return NULL;
}

static void threads(void) {
    set(SIGUSR1, ends_thread, 0), set(SIGUSR2, is_cancelled, SA_ONSTACK);
    int numbers[] = {SIGUSR1, SIGUSR2};
    for (int n = 0; n < 2; n++) {
        pthread_t id;
        void *result;
        MUST(pthread_create(&id, NULL, thread, (void *)(long)numbers[n]) == 0 && pthread_join(id, &result) == 0);
        printf("joined %ld\n", (long)result);
    }
}

static void *flips(void *stop) {
    for (unsigned i = 0; !*(volatile int *)stop; i++) {
        struct sigaction old;
        struct sigaction next = {.sa_handler = i & 1 ? quiet : nested, .sa_flags = i & 2 ? SA_RESTART : SA_NODEFER};
        MUST(sigaction(SIGRTMIN, &next, &old) == 0);
        MUST(old.sa_handler == quiet || old.sa_handler == nested || old.sa_handler == SIG_DFL || old.sa_handler == SIG_IGN);
    }
    return NULL;
}

// Several threads change a disposition while handlers run and change it too.
static void flips_and_counts(int number) {
    calls++;
    struct sigaction old;
    MUST(sigaction(SIGRTMIN, NULL, &old) == 0 && (calls & 7 || sigset(SIGRTMIN, SIG_IGN) != SIG_ERR));
    MUST(old.sa_handler == quiet || old.sa_handler == nested || old.sa_handler == SIG_DFL || old.sa_handler == SIG_IGN);
    (void)number;
}

static void storm(void) {
    int stop = 0;
    pthread_t ids[3];
    struct itimerval timer = {{0, 50}, {0, 50}}, none = {0};
    set(SIGALRM, flips_and_counts, SA_RESTART), set(SIGRTMIN, quiet, 0), calls = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < 3; i++) MUST(pthread_create(&ids[i], NULL, flips, &stop) == 0);
    while (calls < 2000) sched_yield();
    setitimer(ITIMER_REAL, &none, NULL), stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
    printf("storm is over\n");
}

int main(void) {
    struct sigaction old;
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGWINCH, quiet), sigaction(SIGWINCH, NULL, &old), restorer = old.sa_restorer;
    all_combinations(), other_names(), once(), nesting(), stacks(), jumps(), changing(), children(), bare(), threads();
    storm();
    // The last one ends the process.
    signal(SIGUSR1, SIG_DFL), raise(SIGUSR1);
}
