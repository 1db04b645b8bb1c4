// Calls that end early: time limits, signals, low-water marks, cancellation.
// path: shunted 30%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include <sys/resource.h>
#include "pest.h"
#include <setjmp.h>
#include <sys/time.h>

static void limit(struct end *e, int option, int ms)
{
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    if (setsockopt(FD, SOL_SOCKET, option, &t, sizeof t))
        say(e, "setsockopt: %s", errname(errno));
}

// Make the call and say whether it took about `ms` milliseconds at least. The kernel counts ticks from
// the last that it has seen, which may be some milliseconds ago on a busy virtual machine.
#define TIMED(call, ms) \
    do { \
        long long start_ = now_ms(); \
        TELL(#call, call, 0); \
        say(e, "at least about %d ms: %d", ms, now_ms() - start_ >= (ms) / 2); \
    } while (0)

static void receive_limit(struct end *e)
{
    char buf[8];
    struct iovec v = {buf, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    AT(S) {
        limit(e, SO_RCVTIMEO, 30);
        struct timeval t;
        socklen_t n = sizeof t;
        T(getsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &t, &n));
        say(e, "long enough %d, length %u", t.tv_usec >= 16000, n);
        TIMED(recv(FD, buf, 8, 0), 30);
        TIMED(read(FD, buf, 8), 30);
        TIMED(readv(FD, &v, 1), 30);
        TIMED(recvmsg(FD, &m, 0), 30);
        TIMED(recv(FD, buf, 8, MSG_PEEK), 30);
        TIMED(recv(FD, buf, 8, MSG_WAITALL), 30);
        T(recv(FD, buf, 8, MSG_DONTWAIT));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        TIMED(recv(FD, buf, 8, MSG_WAITALL), 30);
        TIMED(recv(FD, buf, 8, 0), 30);
        limit(e, SO_RCVTIMEO, 0);
    }
    AT(C) T(send(FD, "de", 2, 0));
    AT(S) T(recv(FD, buf, 8, 0));
}

// A limit that does not run out changes nothing.
static void generous_limit(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        limit(e, SO_RCVTIMEO, 8000);
        will_block(e);
        T(recv(FD, buf, 8, 0));
        will_block(e);
        T(recv(FD, buf, 2, MSG_WAITALL));
    } else {
        await_blocked(e);
        T(send(FD, "a", 1, 0));
        await_blocked(e);
        T(send(FD, "b", 1, 0));
        T(send(FD, "c", 1, 0));
    }
}

static void limit_by_dup(struct end *e)
{
    char buf[8];
    AT(S) {
        int other = MUST(dup(FD));
        limit(e, SO_RCVTIMEO, 20);
        TIMED(recv(other, buf, 8, 0), 20);
        close(other);
    }
}

static void bad_limits(struct end *e)
{
    AT(S) {
        struct timeval t = {0, 2000000};
        T(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
        t = (struct timeval){-1, 0};
        T(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
        TIMED(recv(FD, (char[1]){0}, 1, 0), 0);
        T(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &t, 3));
        T(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, NULL, sizeof t));
    }
}

static void send_limit(struct end *e)
{
    size_t total = 0;
    const size_t n = 40 << 20;
    AT(C) {
        unsigned char *big = malloc(n);
        fill(big, n, 0, 3);
        limit(e, SO_SNDTIMEO, 100);
        ssize_t r = send(FD, big, n, 0);
        say(e, "a part: %d", r > 0 && r < (ssize_t)n);
        total = stuff_from(e, FD, 3, r);
        limit(e, SO_SNDTIMEO, 60);
        TIMED(write(FD, big, 1), 60);
        free(big);
        limit(e, SO_SNDTIMEO, 0);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 3);
    AT(C) T(write(FD, "x", 1));
    AT(S) T(read(FD, (char[2]){0}, 2));
}

enum { CROWD = 140 };
struct sender {
    struct end *e;
    pthread_t thread;
    long long took;
    int error;
};

static void *sends_in_vain(void *arg)
{
    struct sender *s = arg;
    long long start = now_ms();
    s->error = send(s->e->fd, "x", 1, MSG_NOSIGNAL) == -1 ? errno : 0;
    s->took = now_ms() - start;
    return NULL;
}

// Senders without any patience, and very many with little.
static void send_without_patience(struct end *e)
{
    static struct sender crowd[CROWD];
    size_t total = 0;
    AT(C) {
        struct timeval negative = {-1, 0};
        total = stuff_for_good(e, FD, 3);
        T(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &negative, sizeof negative));
        T(send(FD, "x", 1, 0));
        limit(e, SO_SNDTIMEO, 200);
        int late = 0, early = 0;
        for (int i = 0; i < CROWD; i++) {
            crowd[i] = (struct sender){.e = e};
            MUST(pthread_create(&crowd[i].thread, NULL, sends_in_vain, &crowd[i]));
        }
        for (int i = 0; i < CROWD; i++) {
            pthread_join(crowd[i].thread, NULL);
            late += crowd[i].error == EAGAIN;
            early += crowd[i].took < 100;
        }
        say(e, "%d timed out, %d early", late, early);
        limit(e, SO_SNDTIMEO, 0);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 3);
    AT(C) T(write(FD, "x", 1));
    AT(S) T(read(FD, (char[2]){0}, 2));
}

static void interrupted(struct end *e)
{
    char buf[8];
    struct iovec v = {buf, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    AT(S) {
        handle(SIGUSR1, count_hit, 0);
        PESTERED(recv(FD, buf, 8, 0), SIGUSR1, 1);
        PESTERED(read(FD, buf, 8), SIGUSR1, 1);
        PESTERED(readv(FD, &v, 1), SIGUSR1, 1);
        PESTERED(recvmsg(FD, &m, 0), SIGUSR1, 1);
        PESTERED(recvfrom(FD, buf, 8, 0, NULL, NULL), SIGUSR1, 1);
        PESTERED(recv(FD, buf, 8, MSG_PEEK), SIGUSR1, 1);
        PESTERED(recv(FD, buf, 8, MSG_WAITALL), SIGUSR1, 1);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        PESTERED(recv(FD, buf, 8, MSG_WAITALL), SIGUSR1, 1);
        limit(e, SO_RCVTIMEO, 8000);
        PESTERED(recv(FD, buf, 8, 0), SIGUSR1, 1);
        handle(SIGUSR1, count_hit, SA_RESTART);
        PESTERED(recv(FD, buf, 8, 0), SIGUSR1, 1);
        limit(e, SO_RCVTIMEO, 0);
    }
    AT(C) T(send(FD, "de", 2, 0));
    AT(S) T(recv(FD, buf, 8, 0));
}

static void restarted(struct end *e)
{
    char buf[8];
    struct iovec v = {buf, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    for (int i = 0; i < 5; i++) {
        if (e->role == S) {
            struct pest pest;
            handle(SIGUSR1, count_hit, SA_RESTART);
            pest_start(e, &pest, SIGUSR1, 3, 1);
            switch (i) {
            case 0: T(recv(FD, buf, 8, 0)); break;
            case 1: T(read(FD, buf, 8)); break;
            case 2: T(recvmsg(FD, &m, 0)); break;
            case 3: T(recv(FD, buf, 3, MSG_WAITALL)); break;
            case 4: T(readv(FD, &v, 1)); break;
            }
            pest_end(&pest);
        } else {
            await_go(e);
            T(send(FD, "abc", 3, 0));
        }
    }
}

// An ignored signal, or one with its default of nothing, disturbs no call.
static void ignored(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        struct pest pest;
        handle(SIGUSR1, SIG_IGN, 0);
        handle(SIGCHLD, SIG_DFL, 0);
        pest_start(e, &pest, SIGUSR1, 2, 0);
        go(e);
        T(recv(FD, buf, 8, 0));
        pest_end(&pest);
        pest_start(e, &pest, SIGCHLD, 2, 0);
        go(e);
        T(recv(FD, buf, 8, 0));
        pest_end(&pest);
    } else {
        for (int i = 0; i < 2; i++) {
            await_blocked(e);
            struct timespec pause = {0, 30000000};
            nanosleep(&pause, NULL);
            T(send(FD, "abc", 3, 0));
        }
    }
}

// The other role's process is stopped in its sleep, and goes on.
static void stop_and_continue(struct end *e)
{
    stop_peer(e);
    kill(e->peer_pid, SIGCONT);
}

static void stopped(struct end *e)
{
    char buf[8];
    for (int how = 0; how < 2; how++) {
        if (e->role == S) {
            struct pollfd p = {FD, POLLIN, 0};
            will_block(e);
            if (how)
                T(poll(&p, 1, 8000));
            T(recv(FD, buf, 3, 0));
        } else {
            await_blocked(e);
            stop_and_continue(e);
            T(send(FD, "abc", 3, 0));
        }
    }
}

// A socket call with a time limit ends then (signal(7)).
static void stopped_with_limit(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        limit(e, SO_RCVTIMEO, 8000);
        will_block(e);
        T(recv(FD, buf, 3, 0));
        limit(e, SO_RCVTIMEO, 0);
        go(e);
    } else {
        await_blocked(e);
        stop_and_continue(e);
        await_go(e);
    }
}

static void send_interrupted(struct end *e)
{
    size_t total = 0;
    const size_t n = 40 << 20;
    AT(C) {
        unsigned char *big = malloc(n);
        fill(big, n, 0, 4);
        handle(SIGUSR1, count_hit, 0);
        struct pest pest;
        pest_start(e, &pest, SIGUSR1, 1, 0);
        ssize_t r = send(FD, big, n, 0);
        pest_end(&pest);
        total = r;
        say(e, "a part: %d", r > 0 && r < (ssize_t)n);
        free(big);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 4);
}

static void full_send_interrupted(struct end *e)
{
    size_t total = 0;
    AT(C) {
        handle(SIGUSR1, count_hit, 0);
        total = stuff_for_good(e, FD, 4);
        PESTERED(send(FD, "x", 1, 0), SIGUSR1, 1);
        PESTERED(write(FD, "x", 1), SIGUSR1, 1);
        limit(e, SO_SNDTIMEO, 8000);
        handle(SIGUSR1, count_hit, SA_RESTART);
        PESTERED(send(FD, "x", 1, 0), SIGUSR1, 1);
        limit(e, SO_SNDTIMEO, 0);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 4);
}

// Neither poll nor its like are ever restarted.
static void waiting_interrupted(struct end *e)
{
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        struct epoll_event ev = {EPOLLIN, {.u64 = 77}}, got;
        int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        fd_set r;
        for (int i = 0; i < 2; i++) {
            handle(SIGUSR1, count_hit, i ? SA_RESTART : 0);
            PESTERED(poll(&p, 1, -1), SIGUSR1, 1);
            PESTERED(poll(&p, 1, 8000), SIGUSR1, 1);
            PESTERED(ppoll(&p, 1, NULL, NULL), SIGUSR1, 1);
            PESTERED(epoll_wait(ep, &got, 1, -1), SIGUSR1, 1);
            PESTERED(epoll_wait(ep, &got, 1, 8000), SIGUSR1, 1);
            PESTERED(epoll_pwait(ep, &got, 1, -1, NULL), SIGUSR1, 1);
            FD_ZERO(&r);
            FD_SET(FD, &r);
            PESTERED(select(FD + 1, &r, NULL, NULL, NULL), SIGUSR1, 1);
            FD_ZERO(&r);
            FD_SET(FD, &r);
            PESTERED(pselect(FD + 1, &r, NULL, NULL, NULL, NULL), SIGUSR1, 1);
        }
        close(ep);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, (char[8]){0}, 8, 0));
}

static struct end *talker;
static void talk(int sig)
{
    (void)sig;
    int saved = errno;
    char c;
    hits++;
    if (recv(talker->fd, &c, 1, MSG_DONTWAIT) != -1)
        hits += 100;
    if (send(talker->fd, "s", 1, MSG_DONTWAIT) != 1)
        hits += 1000;
    errno = saved;
}

// A handler that uses the connection on which it interrupted a call.
static void handler_talks(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        struct pest pest;
        talker = e;
        handle(SIGUSR1, talk, SA_RESTART);
        pest_start(e, &pest, SIGUSR1, 3, 1);
        T(recv(FD, buf, 8, 0));
        pest_end(&pest);
    } else {
        await_go(e);
        T(recv(FD, buf, 3, MSG_WAITALL));
        T(send(FD, "abc", 3, 0));
    }
}

static sigjmp_buf escape;
static void jump_away(int sig)
{
    (void)sig;
    siglongjmp(escape, 1);
}

static long handler_sent, handler_failed;
static void send_one(int sig)
{
    (void)sig;
    int saved = errno;
    if (send(talker->fd, "h", 1, 0) == 1)
        handler_sent++;
    else
        handler_failed++;
    errno = saved;
}

// `poll` looks at no more descriptors than the process may have; here it may have none.
static void restarted_without_poll(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        struct rlimit before, none;
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        none = (struct rlimit){0, before.rlim_max};
        talker = e, handler_sent = handler_failed = 0;
        handle(SIGUSR1, send_one, SA_RESTART);
        MUST(setrlimit(RLIMIT_NOFILE, &none));
        will_block(e);
        T(recv(FD, buf, 8, 0));
        MUST(setrlimit(RLIMIT_NOFILE, &before));
        handle(SIGUSR1, SIG_IGN, 0);
        say(e, "handler sent %ld", handler_sent);
    } else {
        await_blocked(e);
        MUST(kill(e->peer_pid, SIGUSR1));
        T(recv(FD, buf, 8, 0));
        T(send(FD, "abc", 3, 0));
    }
}

// A handler that sends while the thread that it interrupts is sending.
static void handler_sends(struct end *e)
{
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    static unsigned char buf[1 << 16];
    long sent = 0, got = 0, ones = 0, odd = 0;
    if (e->role == S) {
        talker = e, handler_sent = handler_failed = 0;
        memset(buf, 'm', sizeof buf);
        handle(SIGALRM, send_one, SA_RESTART);
        MUST(setitimer(ITIMER_REAL, &often, NULL));
        while (sent < 40000000) {
            ssize_t r = send(FD, buf, sizeof buf, 0);
            if (r <= 0 && errno != EINTR)
                break;
            sent += r > 0 ? r : 0;
        }
        MUST(setitimer(ITIMER_REAL, &never, NULL));
        handle(SIGALRM, SIG_IGN, 0);
        say(e, "all: %d, handler failed %ld, some: %d", sent >= 40000000, handler_failed, handler_sent > 0);
        T(shutdown(FD, SHUT_WR));
    } else {
        ssize_t r;
        while ((r = recv(FD, buf, sizeof buf, 0)) > 0)
            for (ssize_t i = 0; i < r; i++, got++) {
                ones += buf[i] == 'h';
                odd += buf[i] != 'h' && buf[i] != 'm';
            }
        say(e, "end %zd, odd %ld", r, odd);
    }
    sent += handler_sent;
    share(e, S, &sent, sizeof sent);
    share(e, S, &handler_sent, sizeof handler_sent);
    if (e->role == C)
        say(e, "all: %d, of the handler all: %d", got == sent, ones == handler_sent);
}

// A handler that leaves a busy send for good; the connection still works.
static void handler_jumps_out_of_send(struct end *e)
{
    struct itimerval once = {{0, 0}, {0, 700}};
    static unsigned char buf[1 << 20];
    volatile long bad = 0;
    if (e->role == S) {
        handle(SIGALRM, jump_away, SA_RESTART);
        for (volatile int round = 0; round < 60; round++) {
            if (sigsetjmp(escape, 1) == 0) {
                MUST(setitimer(ITIMER_REAL, &once, NULL));
                for (;;)
                    bad += send(FD, buf, sizeof buf, 0) <= 0;
            }
        }
        handle(SIGALRM, SIG_IGN, 0);
        say(e, "bad: %ld", bad);
        T(send(FD, "end", 3, 0));
        T(shutdown(FD, SHUT_WR));
    } else {
        char last[3] = "";
        ssize_t r;
        while ((r = recv(FD, buf, sizeof buf, 0)) > 0)
            for (ssize_t i = 0; i < r; i++)
                last[0] = last[1], last[1] = last[2], last[2] = buf[i];
        say(e, "%.3s", last);
    }
}

static void jump(int sig)
{
    (void)sig;
    hits++;
    siglongjmp(escape, 1);
}

// A handler that leaves a call for good; the connection still works.
static void handler_jumps(struct end *e)
{
    char buf[8];
    volatile int round = 0;
    struct pest pest;
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        handle(SIGUSR1, jump, SA_RESTART);
        for (round = 0; round < 4; round++) {
            pest_start(e, &pest, SIGUSR1, 1, 0);
            if (sigsetjmp(escape, 1) == 0) {
                if (round & 1)
                    poll(&p, 1, -1);
                else
                    recv(FD, buf, 8, 0);
                say(e, "came back");
            }
            pest_end(&pest);
        }
        handle(SIGUSR1, SIG_IGN, 0);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        T(recv(FD, buf, 8, 0));
        T(send(FD, "def", 3, 0));
    }
    AT(C) T(recv(FD, buf, 8, 0));
}

// Transfers go through a storm of signals unharmed.
static void storm(struct end *e)
{
    const size_t n = 8 << 20;
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    handle(SIGALRM, count_hit, SA_RESTART);
    if (e->role == S)
        MUST(setitimer(ITIMER_REAL, &often, NULL));
    meet(e);
    if (e->role == S) {
        expect(e, FD, n, 5);
        produce(e, FD, n, 6);
    } else {
        produce(e, FD, n, 5);
        expect(e, FD, n, 6);
    }
    meet(e);
    if (e->role == S) {
        setitimer(ITIMER_REAL, &never, NULL);
        say(e, "signals came: %d", hits > 0);
    }
}

#ifndef VIA_SYSCALL // syscall(2) is no cancellation point
static void *doomed(void *arg)
{
    struct end *e = arg;
    char buf[8];
    e->tid = syscall(SYS_gettid);
    go(e);
    recv(FD, buf, 8, 0);
    return NULL;
}

// A thread cancelled in recv leaves the connection as it was.
static void cancelled(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        pthread_t t;
        void *result;
        pid_t self = e->tid;
        MUST(pthread_create(&t, NULL, doomed, e));
        await_go(e);
        await_sleep(e, e->pid, e->tid);
        e->tid = self;
        pthread_cancel(t);
        pthread_join(t, &result);
        say(e, "cancelled: %d", result == PTHREAD_CANCELED);
        go(e);
        T(recv(FD, buf, 8, 0));
        T(send(FD, "def", 3, 0));
    } else {
        await_go(e); // the thread runs
        go(e);
        await_go(e); // and is no more
        T(send(FD, "abc", 3, 0));
        T(recv(FD, buf, 8, 0));
    }
}

enum { LARGE = 100 };
struct polled {
    struct end *e;
    int fds[LARGE], select;
};

static void *doomed_among_many(void *arg)
{
    struct polled *a = arg;
    struct end *e = a->e;
    struct pollfd p[LARGE];
    fd_set r;
    FD_ZERO(&r);
    for (int i = 0; i < LARGE; i++) {
        p[i] = (struct pollfd){a->fds[i], POLLIN, 0};
        FD_SET(a->fds[i], &r);
    }
    __atomic_store_n(&e->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    if (a->select)
        select(a->fds[LARGE - 1] + 1, &r, NULL, NULL, NULL);
    else
        poll(p, LARGE, -1);
    return NULL;
}

static long pages(void)
{
    char text[64] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = 0;
    close(fd);
    return atol(text);
}

// Threads cancelled in poll and select of many descriptors leave no memory behind.
static void cancelled_among_many(struct end *e)
{
    AT(S) {
        struct polled a = {.e = e};
        pid_t self = e->tid;
        for (int i = 0; i < LARGE; i++)
            a.fds[i] = MUST(fcntl(FD, F_DUPFD_CLOEXEC, i ? a.fds[i - 1] + 1 : 0));
        for (a.select = 0; a.select < 2; a.select++) {
            long before = 0;
            for (int i = 0; i < 40; i++) {
                pthread_t t;
                e->tid = 0;
                MUST(pthread_create(&t, NULL, doomed_among_many, &a));
                while (!__atomic_load_n(&e->tid, __ATOMIC_ACQUIRE))
                    nap();
                await_sleep(e, e->pid, e->tid);
                pthread_cancel(t);
                pthread_join(t, NULL);
                if (i == 9)
                    before = pages();
            }
            say(e, "grown %d", pages() - before >= 25);
        }
        e->tid = self;
        for (int i = 0; i < LARGE; i++)
            close(a.fds[i]);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, (char[8]){0}, 8, 0));
}
#else
static void cancelled(struct end *e) { say(e, "not by syscall"); }
static void cancelled_among_many(struct end *e) { say(e, "not by syscall"); }
#endif

static void low_water(struct end *e)
{
    char buf[16];
    int mark = 5, one = 1, got = 0;
    socklen_t n = sizeof got;
    AT(S) {
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
        T(getsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &got, &n));
        say(e, "%d", got);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        struct pollfd p = {FD, POLLIN, 0};
        T(poll(&p, 1, 0));
        T(poll(&p, 1, 20));
        T(recv(FD, buf, 16, MSG_DONTWAIT));
        T(recv(FD, buf, 16, MSG_DONTWAIT));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) await_bytes(e, FD, 3);
    AT(C) T(send(FD, "de", 2, 0));
    AT(S) {
        await_bytes(e, FD, 5);
        struct pollfd p = {FD, POLLIN, 0};
        T(poll(&p, 1, 2000));
        T(recv(FD, buf, 2, 0));
        T(poll(&p, 1, 0));
        T(recv(FD, buf, 3, 0));
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
    }
    AT(C) T(send(FD, "x", 1, 0));
    AT(S) {
        await_bytes(e, FD, 1);
        struct pollfd p = {FD, POLLIN, 0};
        T(poll(&p, 1, 2000));
        T(recv(FD, buf, 16, 0));
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    }
    // The end of the stream is reported whatever the mark.
    AT(C) {
        T(send(FD, "yz", 2, 0));
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        await_bytes(e, FD, 2);
        say(e, "%s", events(await_events(e, FD, POLLIN)));
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
    }
}

static void low_water_blocks(struct end *e)
{
    char buf[16];
    int mark = 5;
    if (e->role == S) {
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
        will_block(e);
        T(recv(FD, buf, 16, 0));
        // A receive that asks for less is satisfied with less.
        go(e);
        await_bytes(e, FD, 3);
        T(recv(FD, buf, 3, 0));
    } else {
        await_blocked(e);
        T(send(FD, "abcdef", 6, 0));
        await_go(e);
        T(send(FD, "xyz", 3, 0));
    }
}

// Set while there is less.
static void low_water_behind(struct end *e)
{
    char buf[16];
    int mark = 5;
    AT(C) T(send(FD, "abc", 3, 0));
    if (e->role == S) {
        await_bytes(e, FD, 3);
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
        will_block(e);
        T(recv(FD, buf, 16, 0));
    } else {
        await_blocked(e);
        T(send(FD, "defgh", 5, 0));
    }
}

// Single bytes need the most memory each: a sender must not wait for room while
// the receiver waits for more.
static void low_water_of_small(struct end *e)
{
    enum { BYTES = 300000 };
    int mark = BYTES;
    for (int how = 0; how < 2; how++) {
        if (e->role == C) {
            await_go(e);
            int sent = 0;
            while (sent < BYTES && send(FD, "x", 1, 0) == 1)
                sent++;
            say(e, "sent %d", sent);
        } else {
            T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
            go(e);
            struct pollfd p = {FD, POLLIN, 0};
            struct epoll_event ev = {.events = EPOLLIN};
            int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
            if (how == 0)
                T(poll(&p, 1, 3 * PATIENCE_MS));
            else
                T(epoll_wait(ep, &ev, 1, 3 * PATIENCE_MS));
            int got = 0;
            while (got < BYTES) {
                ssize_t n = recv(FD, scratch(), SCRATCH, MSG_DONTWAIT);
                if (n == 0 || (n < 0 && errno != EAGAIN))
                    break;
                got += n > 0 ? n : 0;
            }
            say(e, "got %d", got);
            close(ep);
        }
        meet(e);
    }
}

// With the default action a write to a closed connection ends the process.
static void killed_by_sigpipe(struct end *e)
{
    AT(C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            handle(SIGPIPE, SIG_DFL, 0);
            T(shutdown(FD, SHUT_WR));
            T(send(FD, "x", 1, MSG_NOSIGNAL));
            say(e, "still here");
            T(write(FD, "x", 1));
            say(e, "should not be here");
            _exit(0);
        }
        reap(e, &kid);
    }
}

// A blocked SIGPIPE stays pending; a blocked signal does not disturb.
static void blocked_sigpipe(struct end *e)
{
    sigset_t set, old, pending;
    AT(C) {
        sigemptyset(&set);
        sigaddset(&set, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &set, &old);
        T(shutdown(FD, SHUT_WR));
        T(write(FD, "x", 1));
        sigpending(&pending);
        say(e, "pending: %d", sigismember(&pending, SIGPIPE));
        struct timespec none = {0, 0};
        siginfo_t info;
        int sig = sigtimedwait(&set, &info, &none);
        say(e, "signal %d, code %d", sig, info.si_code);
        sigpending(&pending);
        say(e, "pending: %d", sigismember(&pending, SIGPIPE));
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
}

static void ignored_sigpipe(struct end *e)
{
    AT(C) {
        struct sigaction old, ign = {.sa_handler = SIG_IGN};
        sigaction(SIGPIPE, &ign, &old);
        T(shutdown(FD, SHUT_WR));
        T(write(FD, "x", 1));
        T(send(FD, "x", 1, 0));
        sigaction(SIGPIPE, &old, NULL);
    }
}

struct waiting {
    int fd;
    pid_t tid;
    ssize_t got;
    int error;
};

static void *receive_until_late(void *of)
{
    struct waiting *w = of;
    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    w->got = recv(w->fd, (char[1]){0}, 1, 0);
    w->error = errno;
    return NULL;
}

static void *send_until_late(void *of)
{
    struct waiting *w = of;
    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    w->got = send(w->fd, "q", 1, 0);
    w->error = errno;
    return NULL;
}

// A call that waits holds the connection, whoever closes its descriptor meanwhile.
static void closed_under_limit(struct end *e, int option, void *(*waits)(void *))
{
    AT(S) {
        pthread_t thread;
        struct waiting w = {FD, 0, 0, 0};
        if (option == SO_SNDTIMEO)
            stuff(e, FD, 1);
        limit(e, option, 700);
        MUST(pthread_create(&thread, NULL, waits, &w));
        while (!__atomic_load_n(&w.tid, __ATOMIC_ACQUIRE))
            sched_yield();
        await_sleep(e, getpid(), w.tid);
        T(close(FD));
        pthread_join(thread, NULL);
        say(e, "%zd %s", w.got, errname(w.error));
        FD = -1;
    }
}
static void closed_under_receive_limit(struct end *e) { closed_under_limit(e, SO_RCVTIMEO, receive_until_late); }
static void closed_under_send_limit(struct end *e) { closed_under_limit(e, SO_SNDTIMEO, send_until_late); }

DIFF_MAIN(CASE(receive_limit, COLD), CASE(generous_limit, TWO | COLD), CASE(limit_by_dup, 0), CASE(closed_under_receive_limit, SPLIT),
          CASE(closed_under_send_limit, SPLIT | STEADY),
          CASE(bad_limits, 0), CASE(send_limit, COLD), CASE(send_without_patience, STEADY), CASE(interrupted, COLD), CASE(restarted, TWO | COLD), CASE(restarted_without_poll, SPLIT | COLD),
          CASE(ignored, TWO), CASE(stopped, SPLIT),
          KNOWN(stopped_with_limit, SPLIT, "signal(7) leaves open whether SIGCONT ends such a call"), CASE(send_interrupted, 0), CASE(full_send_interrupted, STEADY),
          CASE(waiting_interrupted, COLD), CASE(handler_talks, TWO), CASE(handler_jumps, 0),
          CASE(handler_sends, SPLIT | COLD), CASE(handler_jumps_out_of_send, SPLIT | COLD), CASE(storm, TWO | COLD),
          CASE(cancelled, TWO | COLD), CASE(cancelled_among_many, 0), CASE(low_water, ALL | COLD), CASE(low_water_blocks, TWO | COLD), CASE(low_water_behind, TWO | COLD),
          CASE(low_water_of_small, TWO | BUSY), CASE(killed_by_sigpipe, 0),
          CASE(blocked_sigpipe, COLD), CASE(ignored_sigpipe, 0))
