// Signals just before a call sleeps: a handler that runs once the call has begun ends it.
//
// A thread goes through the call step by step, by the processor's trap flag. It gets a signal at one of the last
// steps before the kernel's call, each time at another one. Natively there are no such steps of the library's; nor are
// there where it leaves a send or a receive to libc: a signal just before libc's own comes before the call, as natively.
// path: shunted 1%
// timeout: 120
#include "diff.h"
#include <link.h>
#include <sys/ucontext.h>

static volatile uintptr_t library_from, library_to;
// Where it was at each step since it has come to the library, and how many there were until it slept.
enum { STEPS = 1 << 16 };
static uintptr_t trace[STEPS];
static volatile long steps, slept_at;
// At which step it gets its signal: when it has been there so often.
static volatile uintptr_t there;
static volatile long times;
static volatile int is_inside, has_come, is_late;

// A timer for this thread alone.
static int timer_id;

static void within(int ms)
{
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    // Again and again: natively nobody knows of one that comes before the kernel's call.
    struct itimerspec t = {.it_value = span, .it_interval = span};
    syscall(SYS_timer_settime, timer_id, 0, &t, NULL);
}

// How long a call sleeps that got no signal, and one that got it.
enum { QUIET_MS = 100, LOST_MS = 5000 };

static void on_signal(int sig)
{
    (void)sig;
    has_come = 1;
    is_late = 0;
    within(LOST_MS);
}

static void on_time(int sig)
{
    (void)sig;
    if (!slept_at)
        slept_at = steps;
    is_late = 1;
}

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
enum { TRAP_FLAG = 0x100 };

__asm__(".text\nback_from_trap: mov $15, %eax\nsyscall\n");
extern void back_from_trap(void);

static long bare(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

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
    registers[REG_EFL] &= ~TRAP_FLAG;
    // It comes when this handler has returned.
    bare(SYS_tgkill, bare(SYS_getpid, 0, 0, 0, 0), bare(SYS_gettid, 0, 0, 0, 0), SIGUSR1, 0);
}

// Past libc and the library, which would count each step as a signal.
static void trap(void)
{
    struct {
        void (*handler)(int, siginfo_t *, void *);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {on_step, SA_SIGINFO | 0x04000000, back_from_trap, 1ul << (SIGUSR1 - 1) | 1ul << (SIGALRM - 1)};
    bare(SYS_rt_sigaction, SIGTRAP, (long)&action, 0, 8);
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
    steps = slept_at = is_inside = has_come = is_late = 0;
    within(QUIET_MS);
    STEPS_BEGIN();
    int r = call(fd);
    STEPS_END();
    int error = errno;
    within(0);
    if (r != -1 || error != EINTR)
        say(e, "%d %s", r, errname(error));
    *lost += has_come && is_late;
}

enum { LAST = 8 };

// Whether the call slept in a system call of the library's.
static int slept_inside(void)
{
    return slept_at > 0 && trace[slept_at - 1] >= library_from && trace[slept_at - 1] < library_to;
}

static void at_last_steps(struct end *e, const char *name, int (*call)(int), int fd, int may_be_libcs)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    struct sigaction signal = {.sa_handler = on_signal}, time = {.sa_handler = on_time};
    static uintptr_t last[LAST];
    static long often[LAST];
    int lost = 0, count = 0;
    event._sigev_un._tid = syscall(SYS_gettid);
    MUST(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer_id));
    MUST(sigaction(SIGUSR1, &signal, NULL));
    MUST(sigaction(SIGALRM, &time, NULL));
    dl_iterate_phdr(find_library, NULL);
    // What the library does once, it does without steps: it blocks signals meanwhile, and the kernel ends a process that
    // is trapped then.
    is_inside = 1;
    for (int i = 0; i < 4; i++) {
        within(QUIET_MS / 4);
        call(fd);
        within(0);
    }
    trap();
    there = 0;
    // Once it has shown that nothing comes while the library looks, it looks no more.
    for (int i = 0; i < 4; i++)
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
        total = stuff(e, FD, 5);
        at_last_steps(e, "send", by_send, FD, 1);
        at_last_steps(e, "writev", by_writev, FD, 1);
    }
    share(e, S, &total, sizeof total);
    AT(C) drain(e, FD, total, 5);
}

DIFF_MAIN(CASE(polls, STEADY | BUSY), CASE(sets, STEADY | BUSY), CASE(receives, STEADY | BUSY), CASE(sends, STEADY | BUSY))
