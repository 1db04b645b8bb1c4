// Buffers that are not there, the program's own SIGSEGV and SIGBUS, signals at
// any moment of a call.
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <setjmp.h>
#include <sys/resource.h>
#include <ucontext.h>

static long page;

// The last byte of memory before a hole, which nobody else's mapping may fill.
static char *edge(void)
{
    page = sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at + 3 * page, page, PROT_NONE);
    return at + 3 * page;
}

static void release(char *edge) { munmap(edge - 3 * page, 4 * page); }

// In a process that has TCP sockets, of which none is shunted yet.
static void bad_messages(struct end *e)
{
    int pair[2];
    char byte = 'x', *hole = edge();
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = hole, .msg_controllen = 64};
    struct mmsghdr many = {m, 0};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    T(sendmsg(pair[0], &m, 0));
    T(sendmsg(pair[0], (struct msghdr *)hole, 0));
    T(recvmsg(pair[1], (struct msghdr *)hole, MSG_DONTWAIT));
    T(sendmmsg(pair[0], &many, 1, 0));
    T(sendmmsg(pair[0], (struct mmsghdr *)hole, 1, 0));
    T(recvmmsg(pair[1], (struct mmsghdr *)hole, 1, MSG_DONTWAIT, NULL));
    T(poll((struct pollfd *)hole, 1, 0));
    close(pair[0]);
    close(pair[1]);
    release(hole);
}

// What options and numbers of bytes are stored in, or taken from, which is not there.
static void bad_numbers(struct end *e)
{
    char *hole = edge(), buf[8];
    int number;
    socklen_t length = sizeof number;
    AT(C) T(send(FD, "numbers", 7, 0));
    AT(S) {
        await_bytes(e, FD, 7);
        T(ioctl(FD, FIONREAD, hole));
        T(ioctl(FD, FIONREAD, hole - 2));
        T(ioctl(FD, FIONREAD, hole - sizeof number));
        memcpy(&number, hole - sizeof number, sizeof number);
        say(e, "%d", number);
        T(ioctl(FD, TIOCOUTQ, hole));
        T(ioctl(FD, FIONBIO, hole));
        T(ioctl(FD, FIOASYNC, hole));
        T(setsockopt(FD, SOL_SOCKET, SO_KEEPALIVE, hole, sizeof number));
        T(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, hole - 2, sizeof number));
        T(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, hole - 8, sizeof(struct timeval)));
        T(getsockopt(FD, SOL_SOCKET, SO_ERROR, hole, &length));
        T(getsockopt(FD, SOL_SOCKET, SO_ERROR, &number, (socklen_t *)hole));
        T(recvfrom(FD, buf, 2, 0, (struct sockaddr *)buf, (socklen_t *)hole));
        T(recv(FD, buf, 8, 0));
    }
    release(hole);
}

static void half_buffers(struct end *e)
{
    char *hole = edge(), buf[64];
    struct iovec two[] = {{buf, 3}, {hole - 4, 8}};
    struct msghdr m = {.msg_iov = two, .msg_iovlen = 2};
    AT(C) {
        T(send(FD, hole - 5, 10, 0));
        T(write(FD, hole, 1));
        T(write(FD, hole - 1, 300));
        T(send(FD, hole - 2000, 2001, 0));
        T(send(FD, hole - 2 * page, 2 * page + 1, 0));
        T(send(FD, hole, 0, 0));
        memcpy(hole - 10, "0123456789", 10);
        T(send(FD, hole - 10, 10, 0));
    }
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, hole - 5, 10, 0));
        T(recv(FD, hole - 5, 10, MSG_PEEK));
        T(read(FD, hole, 10));
        T(read(FD, hole - 9, 10));
        T(readv(FD, two, 2));
        T(recvmsg(FD, &m, 0));
        T(recv(FD, hole, 0, 0));
        // Nothing was lost, and a buffer that just fits will do.
        T(recv(FD, hole - 3, 3, 0));
        T(recv(FD, hole - 5, 20, 0));
        T(recv(FD, hole - 7, 7, 0));
        say(e, "got %.7s", hole - 7);
    }
    release(hole);
}

// Addresses that no program has: the kernel refuses them before it looks at the connection. And lengths that no buffer has.
static void beyond(struct end *e)
{
    enum { MUCH = 1 << 16 };
    static char buf[16]; // the stack may lie less than 2 GiB below where addresses end
    char *const nowhere = (char *)-1;
    volatile size_t endless = SIZE_MAX;
    struct iovec two[] = {{buf, 10}, {nowhere, 10}}, empty[] = {{buf, 10}, {nowhere, 0}}, much[] = {{scratch(), MUCH}, {nowhere, 10}};
    struct iovec first_page[] = {{buf, 10}, {NULL, 10}}, one = {buf, SSIZE_MAX}, both[] = {{buf, 10}, {buf, SSIZE_MAX}};
    struct msghdr m = {.msg_iov = two, .msg_iovlen = 2}, sent = {.msg_iov = much, .msg_iovlen = 2};
    struct msghdr named = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = buf, .msg_namelen = -1};
    struct mmsghdr many = {m, 0}, many_sent = {sent, 0}, many_named = {named, 0};
    AT(S) {
        T(recv(FD, nowhere, 10, 0));
        T(recv(FD, nowhere, 0, 0));
        T(recv(FD, nowhere, 10, MSG_TRUNC));
        T(read(FD, nowhere, 10));
        T(read(FD, buf, endless));
        T(recv(FD, buf, endless, MSG_DONTWAIT));
        T(readv(FD, two, 2));
        T(readv(FD, empty, 2));
        T(readv(FD, both, 2));
        T(recvmsg(FD, &m, 0));
        T(recvmmsg(FD, &many, 1, 0, NULL));
        T(recvmsg(FD, &named, 0));
        T(recvmmsg(FD, &many_named, 1, 0, NULL));
    }
    AT(C) {
        T(send(FD, nowhere, 10, 0));
        T(send(FD, nowhere, 0, 0));
        T(write(FD, nowhere, 10));
        T(write(FD, buf, endless));
        T(writev(FD, much, 2));
        T(sendmsg(FD, &sent, 0));
        T(sendmmsg(FD, &many_sent, 1, 0));
        T(send(FD, "0123456789", 10, 0));
    }
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, nowhere, 10, MSG_TRUNC));
        T(recv(FD, nowhere, 10, MSG_TRUNC | MSG_PEEK));
        T(recvmsg(FD, &named, 0));
        T(readv(FD, first_page, 2));
        say(e, "%.10s", buf);
    }
    AT(C) T(send(FD, "0123456789a", 11, 0));
    AT(S) {
        await_bytes(e, FD, 11);
        T(readv(FD, first_page, 2));
        T(readv(FD, &one, 1));
    }
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, buf, endless, 0));
    }
    AT(C) {
        T(shutdown(FD, SHUT_WR));
        T(send(FD, nowhere, 10, 0));
        T(writev(FD, much, 2));
        T(send(FD, NULL, 10, MSG_NOSIGNAL));
    }
}

// TCP sends nothing of what a fault ends within the first 32 KiB, however little room there is.
static void half_sends(struct end *e)
{
    enum { ROOM = 1 << 16 };
    static const size_t valid[] = {100, 4096, 20000};
    struct timeval limit = {5, 0};
    int sndbuf = 4097;
    char *at = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at + ROOM, ROOM, PROT_NONE);
    for (int small = 0; small < 2; small++)
        for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) {
            AT(C) {
                if (small)
                    MUST(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf));
                MUST(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
                T(send(FD, at + ROOM - valid[i], valid[i] + 1, 0));
            }
            AT(S) T(recv(FD, scratch(), SCRATCH, MSG_DONTWAIT));
        }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, scratch(), SCRATCH, 0));
    munmap(at, 2 * ROOM);
}

// Structures of calls by number that only the kernel may touch first.
static void structures_by_number(struct end *e)
{
    char *hole = edge();
    sigset_t mask;
    sigemptyset(&mask);
    struct {
        const sigset_t *mask;
        size_t size;
    } right = {&mask, 8}, wrong = {&mask, 4}, none = {NULL, 4};
    struct timespec now = {0};
    fd_set set;
    FD_ZERO(&set);
#define SELECT(last) ({ FD_SET(FD, &set); syscall(SYS_pselect6, FD + 1, &set, NULL, NULL, &now, last); })
    T(syscall(SYS_clone3, hole, 64));
    T(syscall(SYS_clone3, hole - 8, 64));
    T(syscall(SYS_clone3, NULL, 64));
    T(syscall(SYS_clone3, &right, 8));
    meet(e);
    produce(e, FD, 100, e->role);
    await_bytes(e, FD, 100);
    T(SELECT(hole));
    T(SELECT(hole - 8));
    T(SELECT(&wrong));
    T(SELECT(&none));
    T(SELECT(&right));
    T(SELECT(NULL));
    expect(e, FD, 100, !e->role);
    release(hole);
}

// Frames of a large transfer, the target of which ends too early.
static void large_half_buffers(struct end *e)
{
    const size_t n = 300000;
    char *hole = edge();
    if (e->role == C) {
        produce(e, FD, n, 3);
    } else {
        await_bytes(e, FD, 200000 > SCRATCH ? SCRATCH : 200000);
        // All or part of what fits may come; not more, and nothing is lost.
        size_t done = 0;
        int good = 1, bad = 0;
        while (done < n) {
            ssize_t r = recv(FD, hole - 3 * page, 10 * page, 0);
            if (r == -1 && errno == EFAULT) {
                bad++;
                r = recv(FD, hole - 1 - page, page + 1, 0);
                good &= r > 0 && check(hole - 1 - page, r, done, 3) < 0;
            } else {
                good &= r > 0 && r <= 3 * page && check(hole - 3 * page, r, done, 3) < 0;
            }
            if (r <= 0)
                break;
            done += r;
        }
        say(e, "all came: %d, intact: %d, refused: %d", done == n, good, bad > 0);
    }
    meet(e);
    release(hole);
}

static void forbidden(struct end *e)
{
    char *hole = edge(), buf[16];
    int file = memfd_create("short", MFD_CLOEXEC);
    MUST(ftruncate(file, page));
    char *mapped = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    AT(C) {
        mprotect(hole - page, page, PROT_NONE);
        T(send(FD, hole - page, 8, 0));
        T(send(FD, hole - page - 4, 8, 0));
        mprotect(hole - page, page, PROT_READ);
        T(send(FD, hole - page, 8, 0));
        // Behind the end of a file: SIGBUS for whoever touches it.
        T(send(FD, mapped + page, 8, 0));
        T(send(FD, mapped + page - 4, 8, 0));
        T(send(FD, mapped, 8, 0));
    }
    AT(S) {
        await_bytes(e, FD, 16);
        mprotect(hole - page, page, PROT_READ);
        T(recv(FD, hole - page, 8, 0));
        T(recv(FD, hole - page - 1, 8, 0));
        mprotect(hole - page, page, PROT_NONE);
        T(read(FD, hole - page, 8));
        T(read(FD, mapped + page, 8));
        T(read(FD, mapped + page - 2, 8));
        T(recv(FD, buf, 16, 0));
    }
    munmap(mapped, 2 * page);
    close(file);
    release(hole);
}

// ---- Dispositions ----------------------------------------------------------

static sigjmp_buf back;
static char *touched;
static volatile int faults;
static struct end *who;
static char *alternate;

static void returns(int sig)
{
    (void)sig;
    faults++;
}

static void leaps(int sig, siginfo_t *info, void *context)
{
    char here;
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    faults++;
    say(who, "signal %d, code %d, at the address %d, here %d, blocked %d %d, then %d, alternate %d", sig, info->si_code,
        info->si_addr == touched, ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] != 0, sigismember(&now, sig),
        sigismember(&now, SIGWINCH), sigismember(&((ucontext_t *)context)->uc_sigmask, sig),
        alternate && &here > alternate && &here < alternate + 65536);
    siglongjmp(back, 1);
}

// Makes the page good and goes on.
static void repairs(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    faults++;
    mprotect((char *)((uintptr_t)info->si_addr & -page), page, PROT_READ | PROT_WRITE);
}

static const char *name(void *handler)
{
    return handler == (void *)SIG_DFL ? "default" : handler == (void *)SIG_IGN ? "ignore" : handler == (void *)returns ? "returns"
        : handler == (void *)leaps ? "leaps" : handler == (void *)repairs ? "repairs" : "?";
}

static void show(struct end *e, const char *what, const struct sigaction *a)
{
    say(e, "%s %s, flags %x, mask %lx, restorer %d", what, name((void *)a->sa_handler), a->sa_flags, *(unsigned long *)&a->sa_mask,
        a->sa_restorer != NULL);
}

static void ask(struct end *e, int sig)
{
    struct sigaction now;
    T(sigaction(sig, NULL, &now));
    show(e, "is", &now);
}

static void set(struct end *e, int sig, void *handler, int flags)
{
    struct sigaction a = {.sa_handler = handler, .sa_flags = flags}, old;
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGWINCH);
    T(sigaction(sig, &a, &old));
    show(e, "was", &old);
    ask(e, sig);
}

static void faulting(struct end *e, char *at)
{
    touched = at;
    who = e;
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)at = 1;
        say(e, "no fault");
    }
}

static void handlers(struct end *e)
{
    char *hole = edge(), buf[16];
    static const int flags[] = {SA_SIGINFO, SA_SIGINFO | SA_RESTART | SA_ONSTACK, SA_SIGINFO | SA_NODEFER | SA_ONSTACK,
                                SA_SIGINFO | SA_RESETHAND, SA_SIGINFO | SA_RESETHAND | SA_NODEFER};
    stack_t stack = {.ss_size = 65536}, none = {.ss_flags = SS_DISABLE};
    AT(C) put(FD, "0123456789", 10);
    AT(S) {
        await_bytes(e, FD, 10);
        stack.ss_sp = alternate = malloc(65536);
        sigaltstack(&stack, NULL);
        ask(e, SIGSEGV);
        ask(e, SIGBUS);
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
            set(e, SIGSEGV, leaps, flags[i]);
            // The program's faults are the program's, the copy's are not.
            T(recv(FD, hole, 10, 0));
            faulting(e, hole);
            ask(e, SIGSEGV);
            T(recv(FD, hole - 1, 10, 0));
            set(e, SIGSEGV, leaps, flags[i]);
            faulting(e, (char *)16);
            set(e, SIGSEGV, leaps, flags[i]);
            if (sigsetjmp(back, 1) == 0)
                raise(SIGSEGV);
        }
        set(e, SIGSEGV, repairs, SA_SIGINFO);
        mprotect(hole - page, page, PROT_NONE);
        T(recv(FD, hole - 8, 10, 0));
        faults = 0;
        hole[-1] = 1;
        say(e, "repaired, %d", faults);
        faults = 0;
        T(recv(FD, hole - 8, 8, MSG_PEEK));
        T(recv(FD, hole, 8, MSG_PEEK));
        say(e, "not called %d", faults);
        set(e, SIGSEGV, SIG_IGN, SA_RESTART);
        T(raise(SIGSEGV));
        set(e, SIGSEGV, returns, 0);
        T(raise(SIGSEGV));
        T(siginterrupt(SIGSEGV, 0));
        ask(e, SIGSEGV);
        T(siginterrupt(SIGSEGV, 1));
        ask(e, SIGSEGV);
        say(e, "%s", name(signal(SIGSEGV, SIG_DFL)));
        ask(e, SIGSEGV);
        T(siginterrupt(SIGSEGV, 0));
        ask(e, SIGSEGV);
        say(e, "%s", name(signal(SIGSEGV, returns)));
        ask(e, SIGSEGV);
        say(e, "%s", name(sysv_signal(SIGSEGV, returns)));
        ask(e, SIGSEGV);
        T(raise(SIGSEGV));
        ask(e, SIGSEGV);
        say(e, "%s", name(sigset(SIGSEGV, returns)));
        say(e, "%s", name(sigset(SIGSEGV, SIG_DFL)));
        ask(e, SIGSEGV);
        set(e, SIGBUS, returns, SA_RESETHAND | SA_ONSTACK);
        T(raise(SIGBUS));
        set(e, SIGBUS, SIG_DFL, 0);
        say(e, "faults %d", faults);
        T(recv(FD, hole, 10, 0));
        T(recv(FD, buf, 16, 0));
        sigaltstack(&none, NULL);
        free(alternate);
        alternate = NULL;
    }
    release(hole);
}

// How a process dies of its faults; and how its children do.
static void deaths(struct end *e)
{
    static const char *const ways[] = {"touches", "raises", "kills", "jumps", "bus", "twice", "ignores", "handler", "copies", "vfork"};
    char *hole = edge();
    struct rlimit no_core = {0, 0};
    AT(C) put(FD, "0123456789", 10);
    AT(S) {
        await_bytes(e, FD, 10);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            struct kid kid = spawn(e);
            if (kid.pid == 0) {
                setrlimit(RLIMIT_CORE, &no_core);
                say(e, "%s", ways[i]);
                switch (i) {
                case 0: *(volatile char *)hole = 1; break;
                case 1: raise(SIGSEGV); break;
                case 2: kill(getpid(), SIGBUS); break;
                case 3: ((void (*)(void))hole)(); break;
                case 4: {
                    int file = memfd_create("empty", MFD_CLOEXEC);
                    *(volatile char *)mmap(NULL, page, PROT_WRITE, MAP_SHARED, file, 0) = 1;
                    break;
                }
                case 5:
                    set(e, SIGSEGV, returns, SA_RESETHAND);
                    *(volatile char *)hole = 1;
                    break;
                case 6:
                    signal(SIGSEGV, SIG_IGN);
                    raise(SIGSEGV);
                    say(e, "ignored");
                    *(volatile char *)hole = 1;
                    break;
                case 7:
                    signal(SIGSEGV, returns);
                    signal(SIGSEGV, SIG_DFL);
                    *(volatile char *)(uintptr_t)0x8000000000000000 = 1; // not even an address
                    break;
                case 8:
                    T(recv(FD, hole, 1, MSG_PEEK));
                    T(recv(FD, hole - 1, 1, MSG_PEEK));
                    _exit(5);
                case 9: {
                    pid_t child = vfork();
                    if (child == 0) {
                        signal(SIGSEGV, SIG_DFL);
                        signal(SIGBUS, SIG_IGN);
                        *(volatile char *)hole = 1;
                        _exit(0);
                    }
                    int status = 0;
                    MUST(waitpid(child, &status, 0));
                    say(e, "vforked: %x", status);
                    ask(e, SIGSEGV);
                    ask(e, SIGBUS);
                    T(recv(FD, hole, 1, MSG_PEEK));
                    raise(SIGBUS);
                }
                }
                say(e, "should not be here");
                _exit(0);
            }
            reap(e, &kid);
        }
    }
    AT(C) T(send(FD, "more", 4, 0));
    AT(S) {
        await_bytes(e, FD, 14);
        T(recv(FD, hole - 20, 20, 0));
    }
    release(hole);
}

// ---- Signals at any moment -------------------------------------------------

static volatile int entered, left, over;

struct gadfly {
    struct end *e;
    pthread_t victim, thread;
};

// Once in each call, at a random moment; again as long as the call lasts, since
// a signal that came just before it is lost, as ever.
static void *sting(void *arg)
{
    struct gadfly *g = arg;
    unsigned state = 1;
    struct timespec t;
    for (int round = 1; !over; round++) {
        while (entered < round && !over)
            sched_yield();
        state = state * 1103515245 + 12345;
        clock_gettime(CLOCK_MONOTONIC, &t);
        long until = t.tv_nsec + (state >> 8) % 90000;
        do
            clock_gettime(CLOCK_MONOTONIC, &t);
        while (t.tv_nsec < until && until - t.tv_nsec < 100000);
        while (left < round && !over) {
            pthread_kill(g->victim, SIGUSR1);
            for (int i = 0; i < 200 && left < round; i++)
                nanosleep(&(struct timespec){0, 10000}, NULL);
        }
    }
    return NULL;
}

static void begin(struct end *e, struct gadfly *g)
{
    sigset_t one;
    *g = (struct gadfly){e, pthread_self(), 0};
    entered = left = over = 0;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    if (pthread_create(&g->thread, NULL, sting, g))
        abort();
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

static void any_moment(struct end *e)
{
    enum { ROUNDS = 400 };
    static const char *const calls[] = {"recv", "read", "poll", "ppoll", "select", "epoll_wait", "recvmsg", "recv in time"};
    AT(S) {
        int set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            char buf[8];
            int interrupted = 0, ends = 0;
            struct iovec v = {buf, 8};
            struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
            struct pollfd p = {FD, POLLIN, 0};
            struct timeval limit = {i == 7 ? 1000 : 0, 0};
            struct gadfly gadfly;
            // What waits for readiness is never restarted, nor what has a limit.
            handle(SIGUSR1, count_hit, i < 2 || i == 6 ? 0 : SA_RESTART);
            MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
            begin(e, &gadfly);
            for (int round = 1; round <= ROUNDS; round++) {
                long r = 0;
                fd_set fds;
                FD_ZERO(&fds);
                FD_SET(FD, &fds);
                entered = round;
                switch (i) {
                case 0: case 7: r = recv(FD, buf, 8, 0); break;
                case 1: r = read(FD, buf, 8); break;
                case 2: r = poll(&p, 1, -1); break;
                case 3: r = ppoll(&p, 1, &(struct timespec){1000, 0}, NULL); break;
                case 4: r = select(FD + 1, &fds, NULL, NULL, NULL); break;
                case 5: r = epoll_wait(set, &event, 1, -1); break;
                case 6: r = recvmsg(FD, &m, 0); break;
                }
                interrupted += r == -1 && errno == EINTR;
                left = round;
                ends++;
            }
            over = 1;
            pthread_join(gadfly.thread, NULL);
            say(e, "%s: %d of %d interrupted", calls[i], interrupted, ends);
        }
        close(set);
        handle(SIGUSR1, SIG_IGN, 0);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    char buf[8];
    AT(S) T(recv(FD, buf, 8, 0));
}

// With SA_RESTART a receive that waits goes on waiting.
static void restarts(struct end *e)
{
    enum { ROUNDS = 2000 };
    char c = 'x';
    int good = 0;
    struct gadfly gadfly;
    if (e->role == S) {
        handle(SIGUSR1, count_hit, SA_RESTART);
        begin(e, &gadfly);
        for (int i = 1; i <= ROUNDS; i++) {
            entered = i;
            good += recv(FD, &c, 1, 0) == 1;
            left = i;
            good += send(FD, &c, 1, 0) == 1;
        }
        over = 1;
        pthread_join(gadfly.thread, NULL);
        handle(SIGUSR1, SIG_IGN, 0);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            good += send(FD, &c, 1, 0) == 1;
            good += recv(FD, &c, 1, 0) == 1;
        }
    }
    say(e, "%d of %d", good, 2 * ROUNDS);
    meet(e);
}

DIFF_MAIN(CASE(bad_messages, BARE), CASE(bad_numbers, COLD), CASE(half_buffers, COLD), CASE(beyond, COLD), CASE(half_sends, COLD), CASE(structures_by_number, TWO | COLD), CASE(large_half_buffers, TWO), CASE(forbidden, COLD), CASE(handlers, COLD),
          CASE(deaths, 0), CASE(any_moment, COLD), CASE(restarts, TWO | COLD))
