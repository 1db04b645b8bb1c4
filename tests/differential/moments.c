// Signals just before a call sleeps: a handler that runs once the call has begun ends it.
//
// A thread goes through the call step by step, by the processor's trap flag. It gets a signal at one of the last
// steps before the kernel's call, each time at another one. Natively there are no such steps of the library's; nor are
// there where it leaves a send or a receive to libc: a signal just before libc's own comes before the call, as natively.
// path: shunted 1%
// timeout: 120
#include "diff.h"
#include <link.h>
#include <sys/select.h>
#include <sys/ucontext.h>

static volatile uintptr_t library_from, library_to;
// Where it was at each step since it has come to the library, and how many there were until it slept.
enum { STEPS = 1 << 16 };
static uintptr_t trace[STEPS];
static volatile long steps, slept_at;
// At which step it gets its signal: when it has been there so often.
static volatile uintptr_t there;
static volatile long times;
static volatile int is_inside, has_come, has_slept, is_late;

#ifdef __x86_64__
enum { TRAP_FLAG = 0x100 };

__asm__(".text\nback_from_handler: mov $15, %eax\nsyscall\n");
extern void back_from_handler(void);

static long bare(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

// Past libc and the library, which counts the handlers that it knows: one of them ends its call.
static void handle_barely(int sig, void (*handler)(int, siginfo_t *, void *), unsigned long mask)
{
    struct {
        void (*handler)(int, siginfo_t *, void *);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {handler, SA_SIGINFO | 0x04000000, back_from_handler, mask};
    bare(SYS_rt_sigaction, sig, (long)&action, 0, 8);
}

// It comes when the handler that says so has returned.
static void signal_itself(int sig)
{
    bare(SYS_tgkill, bare(SYS_getpid, 0, 0, 0, 0), bare(SYS_gettid, 0, 0, 0, 0), sig, 0);
}

// Whether a signal has ended a sleep in the kernel: behind a system call that it has interrupted.
static int is_behind_sleep(const ucontext_t *context)
{
    const greg_t *registers = context->uc_mcontext.gregs;
    const unsigned char *call = (const unsigned char *)registers[REG_RIP] - 2;
    return registers[REG_RAX] == -EINTR && call[0] == 0x0f && call[1] == 0x05;
}

// From where a handler returns to on, there are no steps.
static void go_on_at_once(ucontext_t *context) { context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG; }
#else
static void handle_barely(int sig, void (*handler)(int, siginfo_t *, void *), unsigned long mask)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    (void)mask;
    sigaction(sig, &action, NULL);
}
static void signal_itself(int sig) { (void)sig; }
static int is_behind_sleep(const ucontext_t *context) { (void)context; return 1; }
static void go_on_at_once(ucontext_t *context) { (void)context; }
#endif

// A timer for this thread alone.
static int timer_id;

// How often it looks whether the thread sleeps, and for how long a call sleeps that got its signal and has missed it.
enum { LOOK_MS = 5, LOST_MS = 5000 };

static void look_after(int ms)
{
    struct itimerspec t = {.it_value = {ms / 1000, ms % 1000 * 1000000}, .it_interval = {0, LOOK_MS * 1000000}};
    syscall(SYS_timer_settime, timer_id, 0, &t, NULL);
}

static void look_no_more(void)
{
    struct itimerspec never = {0};
    syscall(SYS_timer_settime, timer_id, 0, &never, NULL);
}

static void on_signal(int sig)
{
    (void)sig;
    look_after(LOST_MS);
    has_come = 1;
}

// Ends a call that sleeps. One that does not yet, be it for want of a core, goes on as if nothing had happened.
static void on_time(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)info;
    if (!is_behind_sleep(context))
        return;
    if (!has_slept)
        slept_at = steps;
    has_slept = 1;
    is_late = has_come;
    go_on_at_once(context);
    signal_itself(SIGUSR2);
}

static void on_end(int sig) { (void)sig; }

static int find_library(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (!strstr(info->dlpi_name, "libshunt"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            library_from = info->dlpi_addr + part->p_vaddr;
            library_to = library_from + part->p_memsz;
        }
    }
    return 1;
}

#ifdef __x86_64__
static void on_step(int sig, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = registers[REG_RIP];
    (void)sig;
    (void)info;
    is_inside |= at >= library_from && at < library_to;
    if (!is_inside || steps == STEPS)
        return;
    trace[steps++] = at;
    if (at != there || --times != 0)
        return;
    go_on_at_once(context);
    signal_itself(SIGUSR1);
}

static void trap(void)
{
    handle_barely(SIGTRAP, on_step, 1ul << (SIGUSR1 - 1) | 1ul << (SIGUSR2 - 1) | 1ul << (SIGALRM - 1));
}

#define STEPS_BEGIN() __asm__ volatile("pushfq\norq $0x100, (%%rsp)\npopfq" ::: "memory", "cc")
#define STEPS_END() __asm__ volatile("pushfq\nandq $~0x100, (%%rsp)\npopfq" ::: "memory", "cc")
#else
static void trap(void) {}
#define STEPS_BEGIN() (void)0
#define STEPS_END() (void)0
#endif

static void go_through(struct end *e, int (*call)(int), int fd, int *lost)
{
    steps = slept_at = is_inside = has_come = has_slept = is_late = 0;
    look_after(LOOK_MS);
    STEPS_BEGIN();
    int r = call(fd);
    STEPS_END();
    int error = errno;
    look_no_more();
    if (r != -1 || error != EINTR)
        say(e, "%d %s", r, errname(error));
    *lost += has_come && is_late;
}

enum { LAST = 8, CALLS_BEFORE = 12, CALLS_WATCHED = 2 };

// Whether the call slept in a system call of the library's.
static int slept_inside(void)
{
    return slept_at > 0 && trace[slept_at - 1] >= library_from && trace[slept_at - 1] < library_to;
}

static void at_last_steps(struct end *e, const char *name, int (*call)(int), int fd, int may_be_libcs)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    struct sigaction signal = {.sa_handler = on_signal}, end = {.sa_handler = on_end};
    static uintptr_t last[LAST];
    static long often[LAST];
    int lost = 0, count = 0;
    event._sigev_un._tid = syscall(SYS_gettid);
    MUST(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer_id));
    MUST(sigaction(SIGUSR1, &signal, NULL));
    MUST(sigaction(SIGUSR2, &end, NULL));
    handle_barely(SIGALRM, on_time, 1ul << (SIGUSR2 - 1));
    dl_iterate_phdr(find_library, NULL);
    // What the library does once, it does without steps: it blocks signals meanwhile, and the kernel ends a process that
    // is trapped then. And once it has shown that nothing comes while the library looks, it looks no more.
    is_inside = 1;
    for (int i = 0; i < CALLS_BEFORE; i++) {
        look_after(LOOK_MS);
        call(fd);
        look_no_more();
    }
    trap();
    there = 0;
    for (int i = 0; i < CALLS_WATCHED; i++)
        go_through(e, call, fd, &lost);
    long from = may_be_libcs && !slept_inside() ? -1 : slept_at - 1;
    for (long step = from; step >= 0 && count < LAST; step--, count++) {
        last[count] = trace[step];
        often[count] = 0;
        for (long i = 0; i <= step; i++)
            often[count] += trace[i] == trace[step];
    }
    for (int i = 0; i < count && !lost; i++) {
        there = last[i];
        times = often[i];
        go_through(e, call, fd, &lost);
    }
    syscall(SYS_timer_delete, timer_id);
    say(e, "%s: %d lost", name, lost);
}

static int by_poll(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, -1);
}

// No peer calls who waits for an end only.
static int by_poll_for_end(int fd)
{
    struct pollfd p = {fd, 0, 0};
    return poll(&p, 1, -1);
}

static int by_ppoll(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec t = {60, 1};
    return ppoll(&p, 1, &t, NULL);
}

static int by_select(int fd)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, NULL);
}

static int by_wait(int set)
{
    struct epoll_event event;
    return epoll_wait(set, &event, 1, -1);
}

static int by_pwait(int set)
{
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    return epoll_pwait(set, &event, 1, 60000, &none);
}

static void polls(struct end *e)
{
    AT(S) {
        at_last_steps(e, "poll", by_poll, FD, 0);
        at_last_steps(e, "poll for an end", by_poll_for_end, FD, 0);
        at_last_steps(e, "ppoll", by_ppoll, FD, 0);
        at_last_steps(e, "select", by_select, FD, 0);
    }
}

static void sets(struct end *e)
{
    AT(S) {
        struct epoll_event event = {.events = EPOLLIN};
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), outer = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        at_last_steps(e, "epoll_wait", by_wait, set, 0);
        at_last_steps(e, "epoll_pwait", by_pwait, set, 0);
        at_last_steps(e, "poll of a set", by_poll, set, 0);
        T(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
        at_last_steps(e, "a set in a set", by_wait, outer, 0);
        close(outer);
        close(set);
    }
}

static int by_recv(int fd)
{
    char buf[8];
    return recv(fd, buf, sizeof buf, 0);
}

static int by_recvmsg(int fd)
{
    char buf[8];
    struct iovec part = {buf, sizeof buf};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(fd, &message, MSG_WAITALL);
}

static int by_send(int fd)
{
    return send(fd, "12345678", 8, 0);
}

static int by_writev(int fd)
{
    struct iovec parts[2] = {{"1234", 4}, {"5678", 4}};
    return writev(fd, parts, 2);
}

static void receives(struct end *e)
{
    AT(S) {
        at_last_steps(e, "recv", by_recv, FD, 1);
        at_last_steps(e, "recvmsg", by_recvmsg, FD, 1);
    }
}

static void sends(struct end *e)
{
    size_t total = 0;
    AT(S) {
        total = stuff_for_good(e, FD, 5);
        at_last_steps(e, "send", by_send, FD, 1);
        at_last_steps(e, "writev", by_writev, FD, 1);
    }
    share(e, S, &total, sizeof total);
    AT(C) drain(e, FD, total, 5);
}

static void does_nothing(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)info;
    (void)context;
}

// A handler of which neither libc nor the library knows ends a call that sleeps.
static void unknown_handler(struct end *e)
{
    struct sigevent to_thread = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    struct timespec minute = {60, 0};
    struct timeval minute_of_select = {60, 0};
    struct pollfd one = {FD, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;

    for (int side = 0; side < 2; side++) {
        AT(side) {
            int watched = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(watched, EPOLL_CTL_ADD, FD, &event));
            FD_ZERO(&set);
            FD_SET(FD, &set);
            handle_barely(SIGALRM, does_nothing, 0);
            to_thread._sigev_un._tid = syscall(SYS_gettid);
            MUST(syscall(SYS_timer_create, CLOCK_MONOTONIC, &to_thread, &timer_id));
            look_after(LOOK_MS);
            T(poll(&one, 1, 60000));
            T(ppoll(&one, 1, &minute, NULL));
            T(select(FD + 1, &set, NULL, NULL, &minute_of_select));
            T(epoll_wait(watched, &event, 1, 60000));
            syscall(SYS_timer_delete, timer_id);
            close(watched);
        }
    }
}

DIFF_MAIN(CASE(unknown_handler, 0), CASE(polls, TWO | STEADY | BUSY), CASE(sets, TWO | STEADY | BUSY),
          CASE(receives, TWO | STEADY | BUSY), CASE(sends, TWO | STEADY | BUSY))
