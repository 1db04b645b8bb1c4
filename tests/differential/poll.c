// poll, ppoll, select and pselect: every event, mixed with other descriptors.
// path: shunted 20%
// timeout: 60
// variant: fortify -O2 -D_FORTIFY_SOURCE=2
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <sys/resource.h>

static volatile nfds_t four = 4;
#define EVERY (POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND)

// Every mask by itself and together, by poll and by select.
static void look(struct end *e)
{
    static const short masks[] = {0, POLLIN, POLLOUT, POLLRDHUP, POLLPRI, POLLERR | POLLHUP | POLLNVAL, EVERY};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct pollfd p = {FD, masks[i], -1};
        int r = poll(&p, 1, 0);
        say(e, "%s -> %d %s", events(masks[i]), r, events(p.revents));
    }
    fd_set r, w, x;
    FD_ZERO(&r); FD_ZERO(&w); FD_ZERO(&x);
    FD_SET(FD, &r), FD_SET(FD, &w), FD_SET(FD, &x);
    struct timeval zero = {0, 0};
    int n = select(FD + 1, &r, &w, &x, &zero);
    say(e, "select %d: read %d write %d except %d", n, !!FD_ISSET(FD, &r), !!FD_ISSET(FD, &w), !!FD_ISSET(FD, &x));
}

static void idle(struct end *e)
{
    AT(C) look(e);
    AT(S) look(e);
}

static void readable(struct end *e)
{
    char buf[8];
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        look(e);
        T(recv(FD, buf, 1, 0));
        look(e);
        T(recv(FD, buf, 8, MSG_PEEK));
        look(e);
        T(recv(FD, buf, 8, 0));
        look(e);
    }
}

static void half_closed(struct end *e)
{
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        look(e);
    }
    AT(C) look(e);
    AT(S) T(shutdown(FD, SHUT_WR));
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        look(e);
    }
    AT(S) look(e);
}

static void read_side_closed(struct end *e)
{
    AT(S) {
        T(shutdown(FD, SHUT_RD));
        look(e);
    }
    AT(C) look(e);
}

static void ended_with_data(struct end *e)
{
    AT(C) {
        T(send(FD, "abc", 3, 0));
        close(FD), FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        T(recv(FD, (char[8]){0}, 8, 0));
        look(e);
        T(recv(FD, (char[8]){0}, 8, 0));
        look(e);
    }
}

static void reset(struct end *e)
{
    AT(C) {
        struct linger l = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(FD), FD = -1;
    }
    AT(S) {
        await_over(e);
        look(e);
        T(recv(FD, (char[8]){0}, 8, 0));
        look(e);
    }
}

// What `poll` tells unasked is nothing to `select`.
static void selected_for_nothing(struct end *e)
{
    AT(C) {
        struct linger l = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(FD), FD = -1;
    }
    AT(S) {
        int p[2];
        fd_set in, except;
        MUST(pipe2(p, O_CLOEXEC));
        close(p[1]);
        await_over(e);
        for (int i = 0; i < 2; i++) {
            struct timeval limit = {0, 100000};
            long long began = now_ms();
            FD_ZERO(&in);
            FD_ZERO(&except);
            FD_SET(i ? p[0] : FD, &except);
            T(select(FD + 8, NULL, NULL, &except, &limit));
            say(e, "waited %d", now_ms() - began >= 90);
        }
        close(p[0]);
        // The error is there.
        struct timeval limit = {0, 100000};
        FD_SET(FD, &in);
        T(select(FD + 1, &in, NULL, &except, &limit));
    }
}

static void full(struct end *e)
{
    size_t total = 0;
    AT(C) {
        total = stuff(e, FD, 1);
        look(e);
        struct pollfd p = {FD, POLLOUT, 0};
        T(poll(&p, 1, 20));
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 1);
    AT(C) {
        await_events(e, FD, POLLOUT);
        look(e);
    }
}

// A writer asleep in poll or select is woken when room appears.
static void full_wakes(struct end *e)
{
    for (int how = 0; how < 3; how++) {
        size_t total = 0;
        if (e->role == C)
            total = stuff(e, FD, 1);
        share(e, C, &total, sizeof total);
        if (e->role == C) {
            struct pollfd p = {FD, POLLOUT | POLLIN, 0};
            fd_set w;
            FD_ZERO(&w);
            FD_SET(FD, &w);
            will_block(e);
            switch (how) {
            case 0: T(poll(&p, 1, -1)); break;
            case 1: T(select(FD + 1, NULL, &w, NULL, NULL)); break;
            case 2: T(poll(&p, 1, 9000)); break;
            }
            await_go(e);
        } else {
            await_blocked(e);
            drain(e, FD, total, 1);
            go(e);
        }
    }
}

static void mixed(struct end *e)
{
    AT(S) {
        int p[2], ev = eventfd(0, EFD_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        MUST(pipe2(p, O_CLOEXEC));
        struct pollfd set[] = {
            {FD, POLLIN | POLLOUT, 0}, {p[0], POLLIN, 0},      {p[1], POLLOUT, 0},   {ev, POLLIN, 0},
            {timer, POLLIN, 0},        {e->lfd, POLLIN, 0},    {-1, POLLIN, 9},      {FD, POLLIN, 0},
            {FD, POLLOUT, 0},          {FD, 0, 0},             {-FD, POLLIN, 9},     {1 << 19, POLLIN, 0},
        };
        const int n = sizeof set / sizeof *set;
        for (int round = 0; round < 4; round++) {
            if (round == 1)
                MUST(write(p[1], "x", 1));
            if (round == 2) {
                struct itimerspec soon = {{0, 0}, {0, 1}};
                MUST(eventfd_write(ev, 1));
                MUST(timerfd_settime(timer, 0, &soon, NULL));
                await_events(e, timer, POLLIN);
            }
            if (round == 3)
                MUST(close(p[0]));
            for (int i = 0; i < n; i++)
                set[i].revents = 0;
            T(poll(set, n, 0));
            for (int i = 0; i < n; i++)
                say(e, "%d: %s", i, events(set[i].revents));
        }
        close(p[1]), close(ev), close(timer);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        struct pollfd set[] = {{-1, POLLIN, 0}, {FD, POLLIN, 0}, {FD, POLLIN | POLLOUT, 0}, {e->lfd, POLLIN, 0}};
        T(poll(set, four, -1));
        for (int i = 0; i < 4; i++)
            say(e, "%d: %s", i, events(set[i].revents));
    }
}

// Asleep on a connection and on other descriptors: each of them wakes.
static void each_wakes(struct end *e)
{
    int p[2];
    char buf[8];
    if (e->role == S) {
        MUST(pipe2(p, O_CLOEXEC));
    }
    struct pest pest;
    for (int i = 0; i < 4; i++) {
        if (e->role == S) {
            struct pollfd set[] = {{FD, POLLIN, 0}, {p[0], POLLIN, 0}, {e->lfd, POLLIN, 0}};
            handle(SIGUSR1, count_hit, 0);
            will_block(e);
            T(poll(set, 3, -1));
            for (int k = 0; k < 3; k++)
                say(e, "%d: %s", k, events(set[k].revents));
            if (set[0].revents)
                T(recv(FD, buf, 8, 0));
            if (set[2].revents)
                T(close(accept(e->lfd, NULL, NULL)));
            if (i == 3) {
                pest_start(e, &pest, SIGUSR1, 1, 0);
                T(poll(set, 3, -1));
                pest_end(&pest);
            }
        } else {
            await_blocked(e);
            if (i & 1) {
                int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
                MUST(tcp_connect(fd, e->fam, e->port));
                T(recv(fd, buf, 8, 0));
                close(fd);
            } else {
                T(send(FD, "abc", 3, 0));
            }
        }
    }
    if (e->role == S) {
        close(p[0]), close(p[1]);
    }
}

static void time_limits(struct end *e)
{
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        struct timespec t = {0, 15000000};
        struct timeval tv = {0, 15000};
        fd_set r;
        long long start = now_ms();
        T(poll(&p, 1, 15));
        T(ppoll(&p, 1, &t, NULL));
        FD_ZERO(&r); FD_SET(FD, &r);
        T(select(FD + 1, &r, NULL, NULL, &tv));
        say(e, "set %d, left %ld", !!FD_ISSET(FD, &r), (long)tv.tv_sec * 1000000 + tv.tv_usec);
        FD_SET(FD, &r);
        T(pselect(FD + 1, &r, NULL, NULL, &t, NULL));
        say(e, "left as it was: %d", t.tv_nsec == 15000000);
        say(e, "at least 60 ms: %d", now_ms() - start >= 59);
        T(poll(NULL, 0, 1));
        T(poll(&p, 0, 1));
        tv = (struct timeval){0, 1000};
        T(select(0, NULL, NULL, NULL, &tv));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        fd_set r;
        struct timeval tv = {100, 0};
        FD_ZERO(&r); FD_SET(FD, &r);
        T(select(FD + 1, &r, NULL, NULL, &tv));
        say(e, "time left: %d", tv.tv_sec >= 90 && (tv.tv_sec < 100 || tv.tv_usec == 0));
    }
}

static void bad_arguments(struct end *e)
{
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        struct timespec bad = {0, 2000000000}, negative = {-1, 0};
        struct timeval badv = {-1, 0};
        fd_set r;
        T(ppoll(&p, 1, &bad, NULL));
        T(ppoll(&p, 1, &negative, NULL));
        T(poll((struct pollfd *)8, 1, 0));
#ifndef _FORTIFY_SOURCE // which would rightly abort
        T(poll(&p, 10000000, 0));
#endif
        FD_ZERO(&r); FD_SET(FD, &r);
        T(select(FD + 1, &r, NULL, NULL, &badv));
        T(select(-1, &r, NULL, NULL, NULL));
        T(pselect(FD + 1, &r, NULL, NULL, &bad, NULL));
        T(select(FD + 1, (fd_set *)8, NULL, NULL, &(struct timeval){0, 0}));
        int gone = MUST(dup(FD));
        close(gone);
        FD_ZERO(&r); FD_SET(gone, &r);
        T(select(gone + 1, &r, NULL, NULL, &(struct timeval){0, 0}));
        say(e, "still set %d", !!FD_ISSET(gone, &r));
        p.fd = gone;
        T(poll(&p, 1, -1));
        say(e, "%s", events(p.revents));
    }
}

// The mask is in force exactly as long as the call.
static void masks(struct end *e)
{
    AT(S) {
        sigset_t block, old, none;
        sigemptyset(&none);
        sigemptyset(&block);
        sigaddset(&block, SIGUSR1);
        handle(SIGUSR1, count_hit, 0);
        hits = 0;
        pthread_sigmask(SIG_BLOCK, &block, &old);
        struct pollfd p = {FD, POLLIN, 0};
        fd_set r;
        FD_ZERO(&r); FD_SET(FD, &r);
        struct timespec zero = {0, 0};
        pthread_kill(pthread_self(), SIGUSR1);
        T(ppoll(&p, 1, NULL, &none));
        say(e, "%d signals", (int)hits);
        pthread_kill(pthread_self(), SIGUSR1);
        T(pselect(FD + 1, &r, NULL, NULL, NULL, &none));
        say(e, "%d signals", (int)hits);
        pthread_kill(pthread_self(), SIGUSR1);
        T(ppoll(&p, 1, &zero, &none));
        say(e, "%d signals", (int)hits);
        pthread_kill(pthread_self(), SIGUSR1);
        T(ppoll(&p, 1, &zero, &block));
        T(poll(&p, 1, 0));
        say(e, "%d signals", (int)hits);
        T(ppoll(&p, 1, &zero, NULL));
        say(e, "%d signals", (int)hits);
        p.events = POLLOUT;
        T(ppoll(&p, 1, NULL, &none));
        say(e, "%d signals", (int)hits);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        say(e, "%d signals", (int)hits);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        // Ready and pending at once: readiness wins, the signal is still taken.
        sigset_t block, old, none;
        sigemptyset(&none);
        sigemptyset(&block);
        sigaddset(&block, SIGUSR1);
        hits = 0;
        await_bytes(e, FD, 3);
        pthread_sigmask(SIG_BLOCK, &block, &old);
        pthread_kill(pthread_self(), SIGUSR1);
        struct pollfd p = {FD, POLLIN, 0};
        T(ppoll(&p, 1, NULL, &none));
        say(e, "%s, %d signals", events(p.revents), (int)hits);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        say(e, "%d signals", (int)hits);
    }
}

// Descriptors above those that select can name.
static void high_number(struct end *e)
{
    AT(S) {
        struct rlimit before, enough;
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        enough = before;
        if (enough.rlim_cur < 2048)
            enough.rlim_cur = enough.rlim_max < 2048 ? enough.rlim_max : 2048;
        MUST(setrlimit(RLIMIT_NOFILE, &enough));
        int high = MUST(fcntl(FD, F_DUPFD_CLOEXEC, 1500));
        struct pollfd p = {high, POLLIN | POLLOUT, 0};
        T(poll(&p, 1, 0));
        say(e, "%s", events(p.revents));
        close(high);
        MUST(setrlimit(RLIMIT_NOFILE, &before));
    }
}

struct sleeper {
    struct end *e;
    int fd, stop, select, result;
    pid_t tid;
};

// Sleeps on a descriptor until the pipe says that it is enough.
static void *sleeps_on(void *arg)
{
    struct sleeper *s = arg;
    struct pollfd p[] = {{s->stop, POLLIN, 0}, {s->fd, POLLIN, 0}};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(s->fd, &r), FD_SET(s->stop, &r);
    int most = s->fd > s->stop ? s->fd : s->stop;
    __atomic_store_n(&s->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    s->result = s->select ? select(most + 1, &r, NULL, NULL, NULL) : poll(p, 2, -1);
    return NULL;
}

static pthread_t begin_sleeper(struct sleeper *s)
{
    pthread_t t;
    if (pthread_create(&t, NULL, sleeps_on, s))
        abort();
    while (!__atomic_load_n(&s->tid, __ATOMIC_ACQUIRE))
        nap();
    await_sleep(s->e, s->e->pid, s->tid);
    return t;
}

// A descriptor is closed under a thread that polls it, and its number names
// another connection when the thread leaves.
static void number_reused(struct end *e)
{
    char c;
    for (int select = 0; select < 2; select++) {
        int first = FD, stop[2];
        struct sleeper s = {.e = e, .fd = FD, .select = select};
        pthread_t t;
        if (e->role == S) {
            MUST(pipe2(stop, O_CLOEXEC));
            s.stop = stop[0];
            t = begin_sleeper(&s);
            await_go(e); // the other side has its descriptor
            close(FD);
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            say(e, "same number %d", FD == first);
        } else {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(FD, e->fam, e->port));
            go(e);
        }
        warm_up(e);
        if (e->role == S) {
            MUST(write(stop[1], "x", 1));
            pthread_join(t, NULL);
            say(e, "woken: %d", s.result);
            close(stop[0]), close(stop[1]);
        }
        for (int i = 0; i < 3; i++) {
            if (e->role == S) {
                struct pollfd p = {FD, POLLIN, 0};
                will_block(e);
                T(poll(&p, 1, PATIENCE_MS));
                T(recv(FD, &c, 1, 0));
            } else {
                await_blocked(e);
                T(send(FD, "x", 1, 0));
            }
        }
        meet(e);
        if (e->role == C)
            close(first);
    }
}

static void *waits_in_set(void *arg)
{
    struct sleeper *s = arg;
    struct epoll_event ev = {0};
    __atomic_store_n(&s->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    s->result = epoll_wait(s->fd, &ev, 1, PATIENCE_MS) == 1 ? (int)ev.events : 0;
    return NULL;
}

// The same with an epoll set.
static void set_reused(struct end *e)
{
    AT(S) {
        int stop[2], ep = MUST(epoll_create1(EPOLL_CLOEXEC)), old = ep;
        struct epoll_event ev = {.events = EPOLLIN};
        MUST(pipe2(stop, O_CLOEXEC));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        struct sleeper s = {.e = e, .fd = ep, .stop = stop[0]};
        pthread_t t = begin_sleeper(&s);
        close(ep);
        ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        say(e, "same number %d", ep == old);
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        MUST(write(stop[1], "x", 1));
        pthread_join(t, NULL);
        say(e, "woken: %d", s.result);
        // A thread that sleeps in the new set hears of a change.
        struct sleeper w = {.e = e, .fd = ep};
        MUST(pthread_create(&t, NULL, waits_in_set, &w));
        while (!__atomic_load_n(&w.tid, __ATOMIC_ACQUIRE))
            nap();
        await_sleep(e, e->pid, w.tid);
        ev.events = EPOLLIN | EPOLLOUT;
        long long start = now_ms();
        MUST(epoll_ctl(ep, EPOLL_CTL_MOD, FD, &ev));
        pthread_join(t, NULL);
        say(e, "%s, at once %d", events(w.result), now_ms() - start < PATIENCE_MS / 2);
        close(ep), close(stop[0]), close(stop[1]);
    }
}

// A hundred entries, two of which matter.
static void large_set(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        struct pollfd set[100];
        await_bytes(e, FD, 3);
        for (int i = 0; i < 100; i++)
            set[i] = (struct pollfd){i == 50 ? FD : -1, POLLIN, -1};
        set[99] = (struct pollfd){FD, POLLOUT, 0};
        T(poll(set, 100, 1000));
        int others = 0;
        for (int i = 0; i < 99; i++)
            others += i != 50 && set[i].revents != 0;
        say(e, "%s %s %d", events(set[50].revents), events(set[99].revents), others);
    }
}

// One thread polls, answers, polls again: no event is missed or left over.
static void conversation(struct end *e)
{
    char c;
    int bad = 0;
    for (int i = 0; i < 500; i++) {
        struct pollfd p = {FD, POLLIN, 0};
        fd_set r;
        FD_ZERO(&r); FD_SET(FD, &r);
        if (e->role == C) {
            c = i;
            bad += write(FD, &c, 1) != 1;
        }
        bad += (i & 1 ? poll(&p, 1, 5000) : select(FD + 1, &r, NULL, NULL, NULL)) != 1;
        bad += read(FD, &c, 1) != 1 || c != (char)i;
        if (e->role == S)
            bad += write(FD, &c, 1) != 1;
        p = (struct pollfd){FD, POLLIN, 0};
        if (e->role == S && i == 499)
            bad += poll(&p, 1, 0) != 0;
    }
    say(e, "%d bad", bad);
}

// What was readable stays so until it is read, whatever the sender does before and next.
static void stays_readable(struct end *e)
{
    enum { HEAD = 216, ANSWER = 1240 };
    char c = 0, answer[ANSWER];
    int vanished = 0, bad = 0;
    memset(answer, 'a', sizeof answer);
    for (int i = 0; i < 400; i++) {
        int turns = i % 3 ? 0 : 10;
        if (e->role == S) {
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            for (int turn = 0; turn < turns; turn++)
                bad += read(FD, &c, 1) != 1 || write(FD, &c, 1) != 1;
            bad += read(FD, &c, 1) != 1 || send(FD, answer, HEAD, MSG_MORE) != HEAD;
            bad += write(FD, answer + HEAD, ANSWER - HEAD) != ANSWER - HEAD;
            if (i & 1)
                bad += shutdown(FD, SHUT_WR) != 0;
            bad += i & 2 && read(FD, &c, 1) != 0;
            close(FD);
            continue;
        }
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        bad += tcp_connect(FD, e->fam, e->port) != 0;
        for (int turn = 0; turn < turns; turn++)
            bad += write(FD, &c, 1) != 1 || read(FD, &c, 1) != 1;
        bad += write(FD, &c, 1) != 1;
        for (int got = 0; got < ANSWER;) {
            struct pollfd p = {FD, POLLIN, 0};
            bad += poll(&p, 1, 5000) != 1;
            int n = recv(FD, answer, ANSWER, MSG_DONTWAIT);
            vanished += n < 0 && errno == EAGAIN;
            if ((n < 0 && errno != EAGAIN) || n == 0) {
                bad++;
                break;
            }
            got += n > 0 ? n : 0;
        }
        close(FD);
    }
    FD = -1;
    say(e, "%d bad, %d vanished", bad, vanished);
}

// The process may have `n` descriptors from now on; returns how many before.
static rlim_t allow(rlim_t n)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = n;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        abort();
    return before;
}

static void *shuts_down(void *arg)
{
    struct end *e = arg;
    await_sleep(e, e->pid, e->tid);
    shutdown(FD, SHUT_WR);
    return NULL;
}

// The kernel polls as many entries as the process may have descriptors, and not one more.
static void as_many_as_allowed(struct end *e)
{
    enum { MANY = 64 };
    struct pollfd set[MANY];
    size_t total = 0;
    for (int i = 0; i < MANY; i++)
        set[i] = (struct pollfd){i == MANY - 1 ? FD : -1, POLLIN, 0};
    rlim_t before = e->role == S ? allow(MANY) : 0;
    if (e->role == S) {
        will_block(e);
        T(poll(set, MANY, -1));
        T(recv(FD, (char[8]){0}, 8, 0));
        T(poll(set, MANY, 20));
    } else {
        await_blocked(e);
        T(send(FD, "abc", 3, 0));
    }
    set[MANY - 1].events = POLLOUT;
    for (int shut = 0; shut < 2; shut++) {
        if (e->role == S)
            total = stuff(e, FD, 1);
        share(e, S, &total, sizeof total);
        pthread_t t;
        if (e->role == S && shut)
            MUST(pthread_create(&t, NULL, shuts_down, e));
        if (e->role == S) {
            will_block(e);
            T(poll(set, MANY, -1));
            say(e, "%s", events(set[MANY - 1].revents));
        } else {
            await_blocked(e);
        }
        if (e->role == S && shut) {
            pthread_join(t, NULL);
            go(e);
        } else if (e->role == C && shut) {
            await_go(e);
        }
        if (e->role == C)
            drain(e, FD, total, 1);
        meet(e);
    }
    if (e->role == S)
        allow(before);
    else
        T(recv(FD, (char[8]){0}, 8, 0));
}

// Calls on a connection need no descriptor but that, which there is already.
static void hardly_any_allowed(struct end *e)
{
    char buf[8];
    for (int allowed = 0; allowed < 3; allowed++) {
        rlim_t before = e->role == S ? allow(allowed) : 0;
        for (int i = 0; i < 2; i++) {
            if (e->role == S) {
                struct pollfd p = {FD, POLLIN, 0};
                will_block(e);
                if (i == 1 && allowed > 0)
                    T(poll(&p, 1, -1));
                T(recv(FD, buf, 8, 0));
            } else {
                await_blocked(e);
                T(send(FD, "abc", 3, 0));
            }
        }
        size_t total = 0;
        if (e->role == S)
            total = stuff(e, FD, 1);
        share(e, S, &total, sizeof total);
        if (e->role == S) {
            fill(buf, 1, total, 1);
            will_block(e);
            T(send(FD, buf, 1, 0));
            allow(before);
        } else {
            await_blocked(e);
            drain(e, FD, total + 1, 1);
        }
        meet(e);
    }
}

// Unlike poll, select needs no allowance.
static void select_without_allowance(struct end *e)
{
    size_t total = 0;
    int p[2] = {-1, -1};
    fd_set r, w;
    if (e->role == S)
        MUST(pipe2(p, O_CLOEXEC));
    for (int how = 0; how < 3; how++) {
        if (e->role == S && how == 1)
            total = stuff(e, FD, 1);
        share(e, S, &total, sizeof total);
        if (e->role == S) {
            struct timeval none = {0, 0}, little = {0, 30000};
            rlim_t before = allow(0);
            FD_ZERO(&r);
            FD_ZERO(&w);
            FD_SET(FD, &r), FD_SET(p[0], &r);
            T(select(20, &r, NULL, NULL, &none));
            FD_SET(FD, &r), FD_SET(p[0], &r);
            T(select(20, &r, NULL, NULL, &little));
            FD_SET(FD, &r), FD_SET(p[0], &r);
            if (how == 1)
                FD_SET(FD, &w);
            if (how == 2)
                MUST(write(p[1], "x", 1));
            will_block(e);
            T(select(20, &r, &w, NULL, NULL));
            say(e, "connection %d %d, pipe %d", !!FD_ISSET(FD, &r), !!FD_ISSET(FD, &w), !!FD_ISSET(p[0], &r));
            if (how == 0)
                T(recv(FD, (char[8]){0}, 8, 0));
            allow(before);
        } else if (how < 2) {
            await_blocked(e);
            if (how == 1)
                drain(e, FD, total, 1);
            else
                T(send(FD, "abc", 3, 0));
        } else {
            await_go(e);
        }
        meet(e);
    }
    close(p[0]), close(p[1]);
}

// Nor does it for an epoll set, or for numbers past those of an `fd_set`.
static void select_more_without_allowance(struct end *e)
{
    enum { MANY = 2048, WORD = 8 * sizeof(unsigned long) };
    unsigned long bits[MANY / WORD];
    int set = -1, high = -1;
    struct rlimit before, more;
    if (e->role == S) {
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        more = (struct rlimit){before.rlim_max < MANY ? before.rlim_max : MANY, before.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &more));
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &(struct epoll_event){EPOLLIN, {.u64 = 7}}));
        high = MUST(fcntl(FD, F_DUPFD_CLOEXEC, 1100));
    }
    for (int how = 0; how < 2; how++) {
        int fd = how ? high : set;
        if (e->role == S) {
            allow(0);
            for (int sleeps = 0; sleeps < 2; sleeps++) {
                memset(bits, 0, sizeof bits);
                bits[fd / WORD] |= 1ul << fd % WORD;
                if (sleeps)
                    will_block(e);
                T(select(fd + 1, (fd_set *)bits, NULL, NULL, sleeps ? NULL : &(struct timeval){0, 30000}));
                say(e, "%lu", bits[fd / WORD] >> fd % WORD);
            }
            T(recv(FD, (char[8]){0}, 8, 0));
            MUST(setrlimit(RLIMIT_NOFILE, &more));
        } else {
            await_blocked(e);
            T(send(FD, "abc", 3, 0));
        }
        meet(e);
    }
    if (e->role == S) {
        close(set), close(high);
        MUST(setrlimit(RLIMIT_NOFILE, &before));
    }
}

enum { CROWD = 140 };
struct waiter {
    struct end *e;
    pthread_t thread;
    pid_t tid;
    int result;
};

static void *waits_for_room(void *arg)
{
    struct waiter *w = arg;
    struct pollfd p = {w->e->fd, POLLOUT, 0};
    __atomic_store_n(&w->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    int n = poll(&p, 1, -1);
    w->result = n == 1 ? p.revents : -1;
    return NULL;
}

// Many threads wait for room; all of them hear of a shutdown, and of room.
static void room_for_many(struct end *e)
{
    static struct waiter crowd[CROWD];
    for (int shut = 0; shut < 2; shut++) {
        size_t total = 0;
        if (e->role == C) {
            total = stuff(e, FD, 1);
            for (int i = 0; i < CROWD; i++) {
                crowd[i] = (struct waiter){.e = e};
                MUST(pthread_create(&crowd[i].thread, NULL, waits_for_room, &crowd[i]));
            }
            for (int i = 0; i < CROWD; i++) {
                while (!__atomic_load_n(&crowd[i].tid, __ATOMIC_ACQUIRE))
                    nap();
                if (i % 20 == 0 || i == CROWD - 1)
                    await_sleep(e, e->pid, crowd[i].tid);
            }
            if (shut)
                T(shutdown(FD, SHUT_WR));
        }
        share(e, C, &total, sizeof total);
        if (e->role == S && !shut)
            drain(e, FD, total, 1);
        if (e->role == C) {
            int woken = 0;
            for (int i = 0; i < CROWD; i++) {
                pthread_join(crowd[i].thread, NULL);
                woken += crowd[i].result == POLLOUT;
            }
            say(e, "%d woken", woken);
        }
        meet(e);
        if (e->role == S && shut)
            drain(e, FD, total, 1);
    }
}

#ifndef VIA_SYSCALL
extern int __poll(struct pollfd *, nfds_t, int);
extern int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
static void aliases(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        fd_set r;
        FD_ZERO(&r); FD_SET(FD, &r);
        await_bytes(e, FD, 3);
        T(__poll(&p, 1, -1));
        T(__select(FD + 1, &r, NULL, NULL, NULL));
        T(recv(FD, (char[8]){0}, 8, 0));
        T(__poll(&p, 1, 0));
    }
}
#else
static void aliases(struct end *e) { say(e, "not by syscall"); }
#endif

// What poll says can be received can, also while connections leave their rings because another
// program has them for a moment.
static void tells_no_lies(struct end *e)
{
    enum { MANY = 12, ROUNDS = 25, TURNS = 4 };
    struct pollfd p[MANY];
    char c = 0;
    int bad = 0, vanished = 0;
    for (int i = 0; i < MANY; i++) {
        if (e->role == S) {
            p[i].fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        } else {
            p[i].fd = MUST(tcp_socket(e->fam, 0));
            bad += tcp_connect(p[i].fd, e->fam, e->port) != 0;
        }
        p[i].events = POLLIN;
    }
    if (e->role == C) {
        for (int round = 0; round < ROUNDS; round++) {
            for (int turn = 0; turn < TURNS; turn++)
                for (int i = 0; i < MANY; i++)
                    bad += send(p[i].fd, &c, 1, 0) != 1 || recv(p[i].fd, &c, 1, 0) != 1;
            bad += system("true") != 0;
        }
    }
    if (e->role == S) {
        for (int left = MANY * ROUNDS * TURNS; left > 0;) {
            bad += poll(p, MANY, -1) < 1;
            for (int i = 0; i < MANY; i++) {
                if (!(p[i].revents & POLLIN))
                    continue;
                int n = recv(p[i].fd, &c, 1, MSG_DONTWAIT);
                vanished += n < 0 && errno == EAGAIN;
                if (n == 1) {
                    bad += send(p[i].fd, &c, 1, 0) != 1;
                    left--;
                }
            }
        }
    }
    for (int i = 0; i < MANY; i++)
        close(p[i].fd);
    say(e, "%d bad, %d vanished", bad, vanished);
}

DIFF_MAIN(CASE(idle, ALL | COLD), CASE(readable, ALL | COLD), CASE(half_closed, ALL | COLD),
          CASE(read_side_closed, COLD), CASE(ended_with_data, ALL | COLD), CASE(reset, ALL | COLD), CASE(selected_for_nothing, COLD), CASE(full, COLD | STEADY),
          CASE(full_wakes, TWO | COLD), CASE(mixed, COLD), CASE(each_wakes, TWO | COLD), CASE(time_limits, COLD),
          CASE(bad_arguments, 0), CASE(masks, COLD), CASE(high_number, 0), CASE(large_set, 0),
          CASE(number_reused, TWO | COLD), CASE(set_reused, COLD),
          CASE(conversation, TWO | ALL | COLD), CASE(stays_readable, TWO | BARE), CASE(tells_no_lies, TWO | BARE),
          CASE(as_many_as_allowed, SPLIT), CASE(hardly_any_allowed, SPLIT), CASE(room_for_many, SPLIT),
          CASE(select_without_allowance, SPLIT | COLD),
          CASE(select_more_without_allowance, SPLIT | COLD), CASE(aliases, 0))
