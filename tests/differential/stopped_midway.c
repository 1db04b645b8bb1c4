// A peer that is stopped in the middle of a change of way, for longer than anybody waits for one that goes on: its tracer stops it
// at the barrier (`membarrier`) in the middle of that. Natively it is in no such call, and nothing stops it.
// path: shunted 10%
// timeout: 120
#include "diff.h"
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/time.h>

// A peer was once given up after 5 s; LATE is the bound of a call that may wait no longer than SOON.
enum { TURNS = 30, UNREAD = 50000, MORE = 3000, STOPPED_MS = 5500, LONG_MS = 20000, SOON_MS = 200, LATE_MS = 4000, FEW = 200, BUSY_MS = 1000 };

struct told {
    _Atomic int go, done;
};

// The peer: what it says in the end may wait for the other side.
struct peer {
    struct kid kid;
    struct told *told;
    int is_stopped;
};

static void changes_way(struct end *e, struct told *told, int receives)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    int i, on = 1;
    for (i = 0; i < TURNS; i++) {
        put(fd, &i, sizeof i);
        get(fd, &i, sizeof i);
    }
    if (!receives)
        produce(e, fd, UNREAD, 1);
    while (!told->go)
        usleep(1000);
    if (receives)
        MUST(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    else
        MUST(shutdown(fd, SHUT_WR));
    told->done = 1;
    if (receives)
        expect(e, fd, UNREAD, 2);
    expect(e, fd, MORE, 3);
    if (receives)
        put(fd, &i, sizeof i);
    close(fd);
    _exit(0);
}

// Lets it run until it is in the middle, or through.
static int stop_midway(struct peer *p)
{
    struct __ptrace_syscall_info call;
    pid_t pid = p->kid.pid;
    int status;
    int traced = ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) == 0 && ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0;
    p->told->go = 1;
    if (!traced) {
        while (!p->told->done)
            usleep(1000);
        return 0;
    }
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        int enters = WSTOPSIG(status) == (SIGTRAP | 0x80) &&
                     ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY;
        if (enters && call.entry.nr == SYS_membarrier)
            return 1;
        if (p->told->done) {
            ptrace(PTRACE_DETACH, pid, 0, 0);
            return 0;
        }
        ptrace(PTRACE_SYSCALL, pid, 0, 0);
    }
    return 0;
}

static void begins(struct end *e, struct peer *p, int receives)
{
    p->told = mmap(NULL, sizeof *p->told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    p->kid = spawn(e);
    if (p->kid.pid == 0)
        changes_way(e, p->told, receives);
}

// Role C: the peer is stopped when both meet, and goes on a while after that.
static void stops(struct end *e, int receives)
{
    struct peer p = {0};
    begins(e, &p, receives);
    meet(e);
    p.is_stopped = stop_midway(&p);
    meet(e);
    if (p.is_stopped) {
        usleep(STOPPED_MS * 1000);
        ptrace(PTRACE_DETACH, p.kid.pid, 0, 0);
    }
    meet(e);
    reap(e, &p.kid);
    munmap(p.told, sizeof *p.told);
}

static int accepts(struct end *e)
{
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), n;
    for (int i = 0; i < TURNS; i++) {
        get(fd, &n, sizeof n);
        put(fd, &n, sizeof n);
    }
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

enum how { SLEEPS, BY_POLL, BY_SET, IN_TIME };

static void withdrawn(struct end *e, enum how how)
{
    if (e->role == C) {
        stops(e, 0);
        return;
    }
    int fd = accepts(e);
    char c;
    meet(e);
    meet(e);
    long long used = cpu_ms();
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
    say(e, "the processor was used %s", cpu_ms() - used < BUSY_MS ? "little" : "much");
    meet(e);
    close(fd);
}
static void withdrawn_from_sleeper(struct end *e) { withdrawn(e, SLEEPS); }
static void withdrawn_beside_poll(struct end *e) { withdrawn(e, BY_POLL); }
static void withdrawn_beside_set(struct end *e) { withdrawn(e, BY_SET); }
static void withdrawn_from_timed(struct end *e) { withdrawn(e, IN_TIME); }

// The peer has its bytes come by TCP: what is sent meanwhile follows them.
static void recalled(struct end *e, enum how how)
{
    if (e->role == C) {
        stops(e, 1);
        return;
    }
    int fd = accepts(e), n;
    produce(e, fd, UNREAD, 2);
    meet(e);
    meet(e);
    long long used = cpu_ms();
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
    say(e, "the processor was used %s", cpu_ms() - used < BUSY_MS ? "little" : "much");
    meet(e);
    close(fd);
}
static void recalled_from_sleeper(struct end *e) { recalled(e, SLEEPS); }
static void recalled_beside_poll(struct end *e) { recalled(e, BY_POLL); }
static void recalled_from_timed(struct end *e) { recalled(e, IN_TIME); }

DIFF_MAIN(CASE(withdrawn_from_sleeper, SPLIT | BARE), CASE(withdrawn_beside_poll, SPLIT | BARE),
          CASE(withdrawn_beside_set, SPLIT | BARE), CASE(withdrawn_from_timed, SPLIT | BARE),
          CASE(recalled_from_sleeper, SPLIT | BARE), CASE(recalled_beside_poll, SPLIT | BARE),
          CASE(recalled_from_timed, SPLIT | BARE))
