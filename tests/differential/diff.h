// The frame of a differential program: roles, steps, cases. See README.md.
#ifndef DIFF_H
#define DIFF_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "via.h"
#include "say.h"

// ---- Families of addresses -------------------------------------------------

enum { V4, V6, MAPPED, DUAL, FAMILIES };
const char *const family_names[] = {"v4", "v6", "mapped", "dual"};

union address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage storage;
};

// The server's IPv4 address: this host's own, unless it is on another one.
static const char *server_address(void)
{
    const char *address = getenv("DIFF_ADDRESS");
    return address ? address : "127.0.0.1";
}

// What a client of this family connects to.
static socklen_t target(int fam, int port, union address *a)
{
    memset(a, 0, sizeof *a);
    if (fam == V4 || fam == DUAL) {
        a->in.sin_family = AF_INET;
        a->in.sin_port = htons(port);
        inet_pton(AF_INET, server_address(), &a->in.sin_addr);
        return sizeof a->in;
    }
    a->in6.sin6_family = AF_INET6;
    a->in6.sin6_port = htons(port);
    char mapped[sizeof "::ffff:" + INET_ADDRSTRLEN];
    snprintf(mapped, sizeof mapped, "::ffff:%s", server_address());
    inet_pton(AF_INET6, fam == V6 ? "::1" : mapped, &a->in6.sin6_addr);
    return sizeof a->in6;
}

static int tcp_socket(int fam, int flags)
{
    return socket(fam == V4 || fam == DUAL ? AF_INET : AF_INET6, SOCK_STREAM | flags, 0);
}

// A listener for this family on a port that the kernel chooses (or on *port).
// Backlog BIND_ONLY does not listen; SHARED listens on a port for several.
enum { BIND_ONLY = -1, SHARED = -2 };
static int tcp_listener(int fam, int flags, int backlog, int *port)
{
    union address a;
    socklen_t n;
    int on = 1;
    memset(&a, 0, sizeof a);
    if (fam == V4) {
        n = target(V4, *port, &a);
    } else {
        a.in6.sin6_family = AF_INET6;
        a.in6.sin6_port = htons(*port);
        if (fam == V6)
            a.in6.sin6_addr = in6addr_loopback;
        n = sizeof a.in6;
    }
    int fd = socket(a.sa.sa_family, SOCK_STREAM | flags, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on))
        return -1;
    if (backlog == SHARED)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, &a.sa, n) || (backlog != BIND_ONLY && listen(fd, backlog == SHARED ? 64 : backlog))) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    n = sizeof a;
    if (getsockname(fd, &a.sa, &n))
        return -1;
    *port = ntohs(a.sa.sa_family == AF_INET ? a.in.sin_port : a.in6.sin6_port);
    return fd;
}

__attribute__((unused)) static int tcp_connect(int fd, int fam, int port)
{
    union address a;
    socklen_t n = target(fam, port, &a);
    return connect(fd, &a.sa, n);
}

// ---- The control channel between the roles ---------------------------------

static void ctl_lost(struct end *e)
{
    say(e, "the other role is gone");
    _exit(7);
}

static void give(struct end *e, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t r = send(e->ctl, p, n, MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            ctl_lost(e);
        p += r;
        n -= r;
    }
}

static void take(struct end *e, void *data, size_t n)
{
    char *p = data;
    while (n > 0) {
        ssize_t r = read(e->ctl, p, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            ctl_lost(e);
        p += r;
        n -= r;
    }
}

// The other role may go on / wait until the other role says so.
static void go(struct end *e)
{
    if (!e->solo)
        give(e, "g", 1);
}
static void await_go(struct end *e)
{
    char c;
    if (!e->solo)
        take(e, &c, 1);
}
// Both roles have come here.
__attribute__((unused)) static void meet(struct end *e)
{
    go(e);
    await_go(e);
}

// Hand a value from one role to the other; both call it, outside of steps.
__attribute__((unused)) static void share(struct end *e, enum role from, void *data, size_t n)
{
    if (e->solo)
        return;
    if (e->role == from)
        give(e, data, n);
    else
        take(e, data, n);
}

// AT(C) { ... } AT(S) { ... }: steps strictly one after the other. Each role
// runs its own and waits for the other's; a solo case runs all of them in one
// thread. FD is the descriptor of the side whose step it is. Never leave a step
// by break or return.
static int step_begin(struct end *e, enum role role)
{
    if (e->solo) {
        e->role = role;
        e->fd = e->fds[role];
        return 1;
    }
    if (e->role == role)
        return 1;
    await_go(e);
    return 0;
}
static int step_end(struct end *e)
{
    if (e->solo)
        e->fds[e->role] = e->fd;
    go(e);
    return 0;
}
#define AT(r) for (int on_ = step_begin(e, r); on_; on_ = step_end(e))
#define FD (e->fd)

// Another connection, by the same listener, in the place of the one that the case had.
__attribute__((unused)) static void connect_anew(struct end *e)
{
    int on = 1;
    if (e->role == S) {
        go(e);
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    } else {
        await_go(e);
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    MUST(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

// ---- Waiting for states that can be seen -----------------------------------

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void nap(void)
{
    struct timespec t = {0, 500000};
    nanosleep(&t, NULL);
}

// How long to wait for a state that must come; once one has not, less.
static volatile int patience = 5000;
#define PATIENCE_MS patience
#define IN_VAIN(...) (patience = 300, say(e, __VA_ARGS__))

// The events poll reports for fd once any of `want` is among them. (Of a reset the kernel tells the error first, and the rest a
// moment later.)
__attribute__((unused)) static unsigned await_events(struct end *e, int fd, short want)
{
    struct pollfd p = {fd, want, 0};
    long long end = now_ms() + PATIENCE_MS;
    int r;
    for (;;) {
        r = poll(&p, 1, PATIENCE_MS);
        if (r > 0 ? (p.revents & want) || now_ms() > end : r == 0 || errno != EINTR)
            break;
        if (r > 0)
            nap();
    }
    if (r <= 0)
        IN_VAIN("waited in vain for %s", events(want));
    return p.revents;
}

// The connection is over, in both directions, and poll tells all of that.
__attribute__((unused)) static void await_over(struct end *e)
{
    struct pollfd p = {FD, POLLRDHUP, 0};
    const short all = POLLHUP | POLLRDHUP;
    long long end = now_ms() + PATIENCE_MS;
    while ((p.revents & all) != all && now_ms() < end) {
        if (p.revents)
            nap();
        poll(&p, 1, PATIENCE_MS);
    }
    if ((p.revents & all) != all)
        IN_VAIN("waited in vain for the end");
}

// The same, and the kernel's socket is closed: it has the peer's last word.
__attribute__((unused)) static void await_closed(struct end *e)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    long long end = now_ms() + PATIENCE_MS;
    await_over(e);
    while (getsockopt(FD, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state != TCP_CLOSE && now_ms() < end)
        nap();
}

// At least n bytes can be read.
__attribute__((unused)) static int await_bytes(struct end *e, int fd, int n)
{
    int have = 0;
    long long end = now_ms() + PATIENCE_MS;
    while (ioctl(fd, FIONREAD, &have) == 0 && have < n) {
        if (now_ms() > end) {
            IN_VAIN("waited in vain for %d bytes, have %d", n, have);
            break;
        }
        nap();
    }
    return have;
}

// What was sent is acknowledged, also the end of the stream. The kernel ends a connection with a FIN before the reset if what is
// unread was not; and it takes one whose end was for connected until then.
__attribute__((unused)) static void await_acknowledged(struct end *e)
{
    int unacknowledged = 0;
    long long end = now_ms() + PATIENCE_MS;
    while (ioctl(FD, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0 && now_ms() < end)
        nap();
}

// Thread `tid` of process `pid` sleeps: its state is S and its count of
// voluntary switches stands still.
__attribute__((unused)) static void await_sleep(struct end *e, pid_t pid, pid_t tid)
{
    char path[64], text[2048];
    long long end = now_ms() + PATIENCE_MS;
    long last = -1;
    int calm = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, tid);
    while (calm < 4) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        char *state = strstr(text, "State:\t"), *count = strstr(text, "\nvoluntary_ctxt_switches:");
        long switches = count ? atol(count + 25) : 0;
        calm = state && state[7] == 'S' && switches == last ? calm + 1 : 0;
        last = switches;
        if (now_ms() > end) {
            IN_VAIN("waited in vain for a thread to sleep");
            return;
        }
        nap();
    }
}

// One role says that its next call blocks; the other waits until it does.
__attribute__((unused)) static void will_block(struct end *e) { go(e); }
__attribute__((unused)) static void await_blocked(struct end *e)
{
    await_go(e);
    await_sleep(e, e->peer_pid, e->peer_tid);
}

// Thread `tid` of process `pid`, which gets SIGSTOP, is stopped, wherever it is.
__attribute__((unused)) static int await_stop(struct end *e, pid_t pid, pid_t tid)
{
    char path[64], text[512];
    long long end = now_ms() + PATIENCE_MS;
    int stopped = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    while (!stopped && now_ms() < end) {
        int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        stopped = strstr(text, ") T ") != NULL;
    }
    if (!stopped)
        IN_VAIN("waited in vain for a thread to stop");
    return stopped;
}

// The other role's process is stopped until SIGCONT.
__attribute__((unused)) static void stop_peer(struct end *e)
{
    kill(e->peer_pid, SIGSTOP);
    say(e, "stopped: %d", await_stop(e, e->peer_pid, e->peer_pid));
}

// ---- Bytes -----------------------------------------------------------------

// Not in thread-local storage, which small stacks must have room for.
enum { SCRATCH = 65536 };
__attribute__((unused)) static unsigned char *scratch(void)
{
    static __thread unsigned char *buf;
    if (!buf && !(buf = malloc(SCRATCH)))
        abort();
    return buf;
}

static unsigned char pattern(size_t i, unsigned seed)
{
    return (unsigned char)(i * 31 + (i >> 8) * 17 + (i >> 16) * 7 + seed * 101);
}

__attribute__((unused)) static void fill(void *buf, size_t n, size_t at, unsigned seed)
{
    unsigned char *p = buf;
    for (size_t i = 0; i < n; i++)
        p[i] = pattern(at + i, seed);
}

// The offset of the first wrong byte, or -1.
__attribute__((unused)) static long check(const void *buf, size_t n, size_t at, unsigned seed)
{
    const unsigned char *p = buf;
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(at + i, seed))
            return (long)i;
    return -1;
}

// A system call that libc does not see.
__attribute__((unused)) static long past_libc(long number, long a, long b, long c, const void *d, long f)
{
#ifdef __x86_64__
    long result;
    register const void *fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long n __asm__("x8") = number;
    register long x __asm__("x0") = a, y __asm__("x1") = b, z __asm__("x2") = c, v __asm__("x4") = f;
    register const void *w __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x) : "r"(n), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
    return x;
#endif
}

// All n bytes, by blocking or non-blocking descriptors alike; less only at an
// end or an error. Returns how many.
__attribute__((unused)) static size_t put(int fd, const void *buf, size_t n)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = send(fd, (const char *)buf + done, n - done, MSG_NOSIGNAL);
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLOUT, 0};
            poll(&p, 1, PATIENCE_MS);
            continue;
        }
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        done += r;
    }
    return done;
}
__attribute__((unused)) static size_t get(int fd, void *buf, size_t n)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = read(fd, (char *)buf + done, n - done);
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            poll(&p, 1, PATIENCE_MS);
            continue;
        }
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        done += r;
    }
    return done;
}

// A child of the client's end has a connection of its own, on which it has asked `times` times.
__attribute__((unused)) static int child_asks(struct end *e, int times)
{
    char answer[4];
    close(e->ctl);
    int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
    MUST(tcp_connect(fd, e->fam, e->port));
    for (int i = 0; i < times; i++) {
        put(fd, "ping", 4);
        get(fd, answer, 4);
    }
    return fd;
}

// The server's end of that connection, which is FD from now on.
__attribute__((unused)) static void answer_child(struct end *e, int times)
{
    char question[4];
    FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < times; i++) {
        get(FD, question, 4);
        put(FD, "pong", 4);
    }
}

// Receive n bytes of the pattern and say whether they are intact.
__attribute__((unused)) static void expect(struct end *e, int fd, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    size_t done = 0;
    while (done < n) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        size_t r = get(fd, buf, want);
        long bad = check(buf, r, done, seed);
        if (bad >= 0) {
            say(e, "byte %zu of %zu differs", done + bad, n);
            return;
        }
        done += r;
        if (r < want) {
            say(e, "only %zu of %zu bytes", done, n);
            return;
        }
    }
    say(e, "%zu bytes intact", n);
}
__attribute__((unused)) static void produce(struct end *e, int fd, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    size_t done = 0;
    while (done < n) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        fill(buf, want, done, seed);
        if (put(fd, buf, want) < want) {
            say(e, "sending stopped: %s", errname(errno));
            return;
        }
        done += want;
    }
}

__attribute__((unused)) static int nonblocking(int fd, int on)
{
    int flags = fcntl(fd, F_GETFL, 0);
    return fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

// Take n bytes of the pattern in calls of changing size and say if all came.
// Unlike expect() it never asks for more than there is to come.
__attribute__((unused)) static void drain(struct end *e, int fd, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    size_t done = 0, step = 1;
    long bad = -1;
    while (done < n && bad < 0) {
        step = (step * 13 + 4099) % SCRATCH + 1;
        size_t want = step < n - done ? step : n - done;
        ssize_t r = recv(fd, buf, want, 0);
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            if (poll(&p, 1, PATIENCE_MS) == 0)
                break;
            continue;
        }
        if (r <= 0)
            break;
        bad = check(buf, r, done, seed);
        done += r;
    }
    say(e, "drained: %s, %s", done == n ? "all" : "short", bad < 0 ? "intact" : "garbled");
}

// Nothing that the kernel still has in hand will make room: all that was sent is
// acknowledged, and what waits, waits for a window that is shut.
__attribute__((unused)) static int settled(int fd)
{
    uint32_t info[64] = {0}; // struct tcp_info; older headers lack its later fields
    socklen_t n = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) || n < 232)
        return 0;
    uint32_t unacked = info[6], unsent = info[36], window = info[57];
    return unacked == 0 && (unsent == 0 || window == 0);
}

// Write the pattern, from its byte `done` on, until nothing more goes in. Returns
// where it ended; how much that is differs legally, so never print it.
__attribute__((unused)) static size_t stuff_from(struct end *e, int fd, unsigned seed, size_t done)
{
    unsigned char *buf = scratch();
    for (int calm = 0; calm < 2;) {
        long long end = now_ms() + 250;
        while (calm > 0 && !settled(fd) && now_ms() < end)
            nap();
        fill(buf, SCRATCH, done, seed);
        ssize_t r = send(fd, buf, SCRATCH, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r > 0) {
            done += r;
            calm = 0;
        } else if (r < 0 && errno == EAGAIN) {
            calm++;
        } else {
            say(e, "stuffing ended: %s", r < 0 ? errname(errno) : "0");
            break;
        }
    }
    return done;
}

__attribute__((unused)) static size_t stuff(struct end *e, int fd, unsigned seed)
{
    return stuff_from(e, fd, seed, 0);
}

// Whether what the kernel has not sent yet waits for a window that it has not probed.
__attribute__((unused)) static int is_probe_due(int fd)
{
    uint32_t info[64] = {0};
    socklen_t n = sizeof info;
    uint8_t backoff;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) || n < 232)
        return 0;
    memcpy(&backoff, (char *)info + offsetof(struct tcp_info, tcpi_backoff), 1);
    return info[36] > 0 && backoff == 0;
}

// The same, for longer than the kernel takes to probe the window that is shut: the probe finds some room at times.
__attribute__((unused)) static size_t stuff_for_good(struct end *e, int fd, unsigned seed)
{
    size_t before, done = 0;
    do {
        before = done;
        done = stuff_from(e, fd, seed, done);
        for (long long end = now_ms() + PATIENCE_MS; is_probe_due(fd) && now_ms() < end;)
            nap();
    } while (done > before);
    return done;
}

// ---- Child processes -------------------------------------------------------

struct kid {
    pid_t pid;
    int lines;
};

// Fork; in the child (pid 0) say() goes to the parent's output through a pipe.
__attribute__((unused)) static struct kid spawn(struct end *e)
{
    int p[2];
    struct kid kid;
    static struct out out;
    MUST(pipe2(p, O_CLOEXEC));
    kid.pid = MUST(fork());
    if (kid.pid == 0) {
        close(p[0]);
        out.fd = p[1];
        e->out = &out;
        e->pid = e->tid = getpid();
        return kid;
    }
    close(p[1]);
    kid.lines = p[0];
    return kid;
}

// Take over what the child said and how it ended.
__attribute__((unused)) static void reap(struct end *e, struct kid *kid)
{
    char buf[4096];
    ssize_t n;
    int status = 0;
    while ((n = read(kid->lines, buf, sizeof buf)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        out_bytes(e->out, buf, n);
    }
    close(kid->lines);
    MUST(waitpid(kid->pid, &status, 0));
    if (WIFSIGNALED(status))
        say(e, "child died by signal %d", WTERMSIG(status));
    else
        say(e, "child exited with %d", WEXITSTATUS(status));
}

// ---- Cases -----------------------------------------------------------------

enum {
    TWO = 1,     // both ends at once: needs two threads or processes
    SPLIT = 2,   // needs two processes
    COLD = 4,    // also run without the warm-up
    ALL = 8,     // run for every family of addresses
    BARE = 16,   // make no connection; the case does
    ONLY_COLD = 32,
    PIDFD = 64,  // needs pidfd_getfd, which the seccomp filters of containers may refuse
    APART = 128, // needs unshare, likewise
    // Counts edges, the turns of a set's members, or knows how much room there is: a change of way
    // makes the kernel tell an edge once more, and gives a full connection room. Or uses a number that
    // it has closed, which the library's own descriptors have for a moment.
    STEADY = 256,
    BUSY = 512, // makes so many calls that it takes minutes where each may pause
    FAULTS = 1024, // needs userfaultfd, which may be refused, too
    TRACES = 2048, // needs ptrace, likewise
};

struct test {
    const char *name;
    void (*run)(struct end *);
    unsigned flags;
    const char *known; // why it cannot be right yet when both ends are shunted
};
#define CASE(name, flags) {#name, name, flags, NULL}
#define KNOWN(name, flags, why) {#name, name, flags, why}

struct side {
    struct end end;
    struct out out;
    int lfd[FAMILIES], port[FAMILIES];
    const struct test *tests;
    size_t count;
};

static void warm_up(struct end *e)
{
    char buf[16];
    for (int i = 0; i < 6; i++) {
        size_t n = i < 3 ? 1 : 16;
        AT(C) put(FD, "0123456789abcdef", n);
        AT(S) {
            if (get(FD, buf, n) != n)
                say(e, "warm-up failed");
            put(FD, buf, n);
        }
        AT(C) if (get(FD, buf, n) != n) say(e, "warm-up failed");
    }
}

static void dial(struct end *e)
{
    FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(FD, e->fam, e->port));
}

static void answer(struct end *e)
{
    FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
}

static void join_ends(struct end *e)
{
    if (e->solo) {
        AT(C) dial(e);
        AT(S) answer(e);
    } else {
        // At the same time: under --upgrade=sync the two wait for each other.
        if (e->role == C)
            dial(e);
        else
            answer(e);
        meet(e);
    }
    if (e->warm)
        warm_up(e);
}

static void part_ends(struct end *e)
{
    if (!e->solo)
        meet(e);
    AT(C) if (FD >= 0) { close(FD); FD = -1; }
    AT(S) if (FD >= 0) { close(FD); FD = -1; }
}

static void run_one(struct side *side, const struct test *t, int fam, int warm)
{
    struct end *e = &side->end;
    e->name = t->name;
    e->fam = fam;
    e->warm = warm;
    e->fd = e->fds[S] = e->fds[C] = -1;
    e->lfd = side->lfd[fam];
    e->port = side->port[fam];
    if (!(t->flags & BARE))
        join_ends(e);
    t->run(e);
    part_ends(e);
}

static int pidfd_getfd_works(void)
{
    int process = syscall(SYS_pidfd_open, getpid(), 0);
    int copy = syscall(SYS_pidfd_getfd, process, 1, 0);
    if (copy >= 0)
        close(copy);
    close(process);
    return copy >= 0;
}

// For faults of the program's own alone, which needs no rights.
static int userfaultfd_works(void)
{
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (faults >= 0)
        close(faults);
    return faults >= 0;
}

static int ptrace_works(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) != 0);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// What a case needs and the kernel refuses here, if anything.
static const char *what_is_refused(const struct test *t)
{
    if ((t->flags & PIDFD) && !pidfd_getfd_works())
        return "pidfd_getfd";
    if ((t->flags & APART) && syscall(SYS_unshare, 0) != 0)
        return "unshare";
    if ((t->flags & FAULTS) && !userfaultfd_works())
        return "userfaultfd";
    if ((t->flags & TRACES) && !ptrace_works())
        return "ptrace";
    return NULL;
}

// Where connections change their way all the time, and threads pause between the steps of that.
static int is_left_out(const struct test *t)
{
    return (getenv("DIFF_RESTLESS") && (t->flags & STEADY)) || (getenv("DIFF_HESITANT") && (t->flags & BUSY));
}

static void run_all(struct side *side)
{
    struct end *e = &side->end;
    const char *only = getenv("DIFF_CASE");
    int together = e->pid == e->peer_pid;
    for (size_t i = 0; i < side->count; i++) {
        const struct test *t = &side->tests[i];
        if (only && (*only == '=' ? strcmp(t->name, only + 1) != 0 : !strstr(t->name, only)))
            continue;
        if ((t->known && !(only && *only == '=')) || is_left_out(t))
            continue;
        if (what_is_refused(t))
            continue;
        if ((e->solo && (t->flags & (TWO | SPLIT))) || (together && (t->flags & SPLIT)))
            continue;
        // Where there is no ::1 a case that would take its turn there runs on IPv4.
        int turn = side->port[i % FAMILIES] ? (int)(i % FAMILIES) : V4;
        for (int fam = 0; fam < FAMILIES; fam++) {
            if (!side->port[fam] || (!(t->flags & ALL) && fam != turn))
                continue;
            if (!(t->flags & ONLY_COLD))
                run_one(side, t, fam, 1);
            if (t->flags & (COLD | ONLY_COLD))
                run_one(side, t, fam, 0);
        }
    }
}

static void on_sigpipe(int sig)
{
    (void)sig;
    sigpipes++;
}

static void open_listeners(struct side *side)
{
    for (int fam = 0; fam < FAMILIES; fam++) {
        side->port[fam] = 0;
        if (fam == DUAL) {
            side->lfd[fam] = side->lfd[MAPPED];
            side->port[fam] = side->port[MAPPED];
        } else if ((side->lfd[fam] = tcp_listener(fam, SOCK_CLOEXEC, 128, &side->port[fam])) < 0) {
            side->port[fam] = 0;
            if (fam != V4 && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT))
                continue;
            fprintf(stderr, "no listener for %s: %s\n", family_names[fam], strerror(errno));
            exit(6);
        }
    }
}

// Tell the other role who we are and where the listeners are.
static void introduce(struct side *side)
{
    struct end *e = &side->end;
    e->pid = getpid();
    e->tid = syscall(SYS_gettid);
    give(e, &e->pid, sizeof e->pid);
    give(e, &e->tid, sizeof e->tid);
    take(e, &e->peer_pid, sizeof e->peer_pid);
    take(e, &e->peer_tid, sizeof e->peer_tid);
    if (e->role == S)
        give(e, side->port, sizeof side->port);
    else
        take(e, side->port, sizeof side->port);
}

static void *side_thread(void *arg)
{
    introduce(arg);
    run_all(arg);
    return NULL;
}

static int unix_end(const char *path, int server)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (server) {
        unlink(path);
        int ok = !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 1);
        int c = ok ? accept4(fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        close(fd);
        return c;
    }
    // The server may not even have begun yet on a busy machine.
    for (long long end = now_ms() + 10 * PATIENCE_MS; now_ms() < end; nap())
        if (!connect(fd, (struct sockaddr *)&a, sizeof a))
            return fd;
    return -1;
}

static int usage(const char *prog)
{
    fprintf(stderr, "usage: %s server PORTFILE | client PORTFILE | both | list\n", prog);
    return 2;
}

static int diff_main(int argc, char **argv, const struct test *tests, size_t count)
{
    static struct side side[2];
    struct sigaction sa = {.sa_handler = on_sigpipe, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &sa, NULL);
    for (int i = 0; i < 2; i++) {
        side[i].tests = tests;
        side[i].count = count;
        side[i].end.role = i;
        side[i].end.out = &side[i].out;
        side[i].out.fd = -1;
        memset(side[i].lfd, -1, sizeof side[i].lfd);
    }
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (size_t i = 0; i < count; i++) {
            const char *refused = what_is_refused(&tests[i]);
            printf("%s\t%s\t%s\t%s\n", tests[i].name, tests[i].known ? tests[i].known : "",
                   is_left_out(&tests[i]) ? "left out" : "", refused ? refused : "");
        }
        return 0;
    }
    if (argc == 3 && (!strcmp(argv[1], "server") || !strcmp(argv[1], "client"))) {
        struct side *s = &side[argv[1][0] == 'c'];
        s->out.fd = 1;
        if (s->end.role == S)
            open_listeners(s);
        s->end.ctl = unix_end(argv[2], s->end.role == S);
        if (s->end.ctl < 0) {
            fprintf(stderr, "no control channel at %s\n", argv[2]);
            return 6;
        }
        introduce(s);
        run_all(s);
        return 0;
    }
    if (argc != 2 || strcmp(argv[1], "both"))
        return usage(argv[0]);
    int ctl[2];
    pthread_t threads[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl))
        return 6;
    open_listeners(&side[S]);
    for (int i = 0; i < 2; i++) {
        side[i].end.ctl = ctl[i];
        if (pthread_create(&threads[i], NULL, side_thread, &side[i]))
            return 6;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    raw_write(1, side[S].out.text, side[S].out.used);
    raw_write(1, side[C].out.text, side[C].out.used);
    // Once more, with one thread for both ends.
    static const char title[] = "one thread\n";
    raw_write(1, title, sizeof title - 1);
    side[S].end.solo = 1;
    side[S].end.pid = side[S].end.peer_pid = getpid();
    side[S].out.fd = 1;
    run_all(&side[S]);
    return 0;
}

#define DIFF_MAIN(...) \
    static const struct test all_tests[] = {__VA_ARGS__}; \
    int main(int argc, char **argv) \
    { \
        return diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests); \
    }

#endif
