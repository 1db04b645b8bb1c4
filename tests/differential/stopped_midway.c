// A peer that is stopped in the middle of a change of way, for longer than anybody waits for one that goes on: its tracer stops it
// at the barrier (`membarrier`) in the middle of that. Natively it is in no such call, and nothing stops it.
// path: shunted 10%
// timeout: 60
#include "diff.h"
#include <sys/resource.h>
#include <sys/time.h>

// A peer was once given up after 5 s; LATE is the bound of a call that may wait no longer than SOON.
enum { TURNS = 30, UNREAD = 50000, MORE = 3000, STOPPED_MS = 5500, LONG_MS = 20000, SOON_MS = 200, LATE_MS = 4000, FEW = 200, BUSY_MS = 1000 };

// All of these begin at the same time, so that all their peers are stopped at once.
enum how { SLEEPS, BY_POLL, BY_SET, IN_TIME };
static const struct kind {
    const char *name;
    int receives; // The peer has its bytes come by TCP, or else it sends by TCP what is unread.
    enum how how;
} kinds[] = {
    {"withdrawn_from_sleeper", 0, SLEEPS}, {"withdrawn_beside_poll", 0, BY_POLL}, {"withdrawn_beside_set", 0, BY_SET},
    {"withdrawn_from_timed", 0, IN_TIME},  {"recalled_from_sleeper", 1, SLEEPS},  {"recalled_beside_poll", 1, BY_POLL},
    {"recalled_from_timed", 1, IN_TIME},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

// What a role and one of its children tell each other.
struct told {
    _Atomic int go, done;
};

static struct told *new_told(void)
{
    void *told = mmap(NULL, KINDS * sizeof(struct told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return told;
}

static void await(_Atomic int *flag)
{
    while (!*flag)
        usleep(1000);
}

// A child of role C.
static void changes_way(struct end *e, int receives, int port, struct told *told)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC)), on = 1;
    MUST(tcp_connect(fd, e->fam, port));
    for (int i = 0; i < TURNS; i++) {
        put(fd, &i, sizeof i);
        get(fd, &i, sizeof i);
    }
    if (!receives)
        produce(e, fd, UNREAD, 1);
    await(&told->go);
    if (receives)
        MUST(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    else
        MUST(shutdown(fd, SHUT_WR));
    told->done = 1;
    if (receives)
        expect(e, fd, UNREAD, 2);
    expect(e, fd, MORE, 3);
    if (receives)
        put(fd, &on, sizeof on);
    close(fd);
    _exit(0);
}

// Lets it run until it is in the middle, or through.
static int stop_midway(struct end *e, pid_t pid, struct told *told)
{
    struct __ptrace_syscall_info call;
    int status;
    MUST(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD));
    MUST(ptrace(PTRACE_INTERRUPT, pid, 0, 0));
    told->go = 1;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        int enters = WSTOPSIG(status) == (SIGTRAP | 0x80) &&
                     ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY;
        if (enters && call.entry.nr == SYS_membarrier)
            return 1;
        if (told->done) {
            MUST(ptrace(PTRACE_DETACH, pid, 0, 0));
            return 0;
        }
        MUST(ptrace(PTRACE_SYSCALL, pid, 0, 0));
    }
    return 0;
}

// Role C: its children are stopped when both roles meet, and go on a while after that.
static void stops(struct end *e, const int *ports)
{
    struct told *told = new_told();
    struct kid kids[KINDS];
    int is_stopped[KINDS], any = 0;
    for (int i = 0; i < KINDS; i++) {
        kids[i] = spawn(e);
        if (kids[i].pid == 0)
            changes_way(e, kinds[i].receives, ports[i], &told[i]);
    }
    meet(e);
    for (int i = 0; i < KINDS; i++)
        any |= is_stopped[i] = stop_midway(e, kids[i].pid, &told[i]);
    meet(e);
    if (any)
        usleep(STOPPED_MS * 1000);
    for (int i = 0; i < KINDS; i++)
        if (is_stopped[i])
            MUST(ptrace(PTRACE_DETACH, kids[i].pid, 0, 0));
    for (int i = 0; i < KINDS; i++)
        reap(e, &kids[i]);
    munmap(told, KINDS * sizeof *told);
}

static int accepts(struct end *e, int listener, int receives)
{
    int fd = MUST(accept4(listener, NULL, NULL, SOCK_CLOEXEC)), n;
    for (int i = 0; i < TURNS; i++) {
        get(fd, &n, sizeof n);
        put(fd, &n, sizeof n);
    }
    if (receives)
        produce(e, fd, UNREAD, 2);
    return fd;
}

static long long cpu_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000LL + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

// How many bytes of the pattern have come by calls that do not wait, each after a set or poll has told of some.
static void takes_all(struct end *e, int fd, int by_set)
{
    static unsigned char buf[UNREAD];
    struct epoll_event event = {EPOLLIN, {.u32 = 7}};
    struct pollfd p = {fd, POLLIN, 0};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC)), in_vain = 0;
    size_t done = 0;
    if (by_set)
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    while (done < UNREAD && (by_set ? epoll_wait(set, &event, 1, LONG_MS) : poll(&p, 1, LONG_MS)) == 1) {
        ssize_t n = recv(fd, buf + done, UNREAD - done, MSG_DONTWAIT);
        if (n > 0)
            done += n;
        else if (n < 0 && errno == EAGAIN)
            in_vain++;
        else
            break;
    }
    say(e, "%zu bytes, intact: %d, told in vain %s", done, check(buf, done, 0, 1) < 0, in_vain < FEW ? "rarely" : "often");
    close(set);
}

static void withdrawn(struct end *e, int fd, enum how how)
{
    char c;
    if (how == IN_TIME) {
        struct timeval soon = {0, SOON_MS * 1000}, never = {0};
        MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
        long long start = now_ms();
        ssize_t n = recv(fd, &c, 1, MSG_PEEK);
        say(e, "a receive in time: %d, %s", n == 1 || errno == EAGAIN, now_ms() - start < LATE_MS ? "soon" : "late");
        MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
    }
    if (how == BY_POLL || how == BY_SET)
        takes_all(e, fd, how == BY_SET);
    else
        expect(e, fd, UNREAD, 1);
    T(recv(fd, &c, 1, 0));
    produce(e, fd, MORE, 3);
}

// What is sent meanwhile follows what the peer has still to read.
static void recalled(struct end *e, int fd, enum how how)
{
    int n;
    if (how == IN_TIME) {
        struct timeval soon = {0, SOON_MS * 1000}, never = {0};
        MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon));
        long long start = now_ms();
        n = send(fd, "", 0, 0);
        say(e, "a send in time: %d, %s", n == 0 || errno == EAGAIN, now_ms() - start < LATE_MS ? "soon" : "late");
        MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof never));
    }
    nonblocking(fd, how == BY_POLL);
    produce(e, fd, MORE, 3);
    nonblocking(fd, 0);
    T(get(fd, &n, sizeof n));
}

// A child of role S, with a connection of its own.
static void goes_on(struct end *e, const struct kind *kind, int listener, struct told *told)
{
    e->name = kind->name;
    int fd = accepts(e, listener, kind->receives);
    told->done = 1;
    await(&told->go);
    long long used = cpu_ms();
    if (kind->receives)
        recalled(e, fd, kind->how);
    else
        withdrawn(e, fd, kind->how);
    say(e, "the processor was used %s", cpu_ms() - used < BUSY_MS ? "little" : "much");
    close(fd);
    _exit(0);
}

static void peers_are_stopped(struct end *e)
{
    int listeners[KINDS], ports[KINDS] = {0};
    for (int i = 0; i < KINDS && e->role == S; i++)
        listeners[i] = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 1, &ports[i]));
    share(e, S, ports, sizeof ports);
    if (e->role == C) {
        stops(e, ports);
        return;
    }
    struct told *told = new_told();
    struct kid kids[KINDS];
    for (int i = 0; i < KINDS; i++) {
        kids[i] = spawn(e);
        if (kids[i].pid == 0)
            goes_on(e, &kinds[i], listeners[i], &told[i]);
        close(listeners[i]);
    }
    for (int i = 0; i < KINDS; i++)
        await(&told[i].done);
    meet(e);
    meet(e);
    for (int i = 0; i < KINDS; i++)
        told[i].go = 1;
    for (int i = 0; i < KINDS; i++)
        reap(e, &kids[i]);
    munmap(told, KINDS * sizeof *told);
}

DIFF_MAIN(CASE(peers_are_stopped, SPLIT | BARE | TRACES))
