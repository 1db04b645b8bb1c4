// epoll: calls that come to nothing, come late, or are taken by another thread; sets in sets.
// timeout: 120
#include "diff.h"
#include <sys/resource.h>

enum { OFTEN = 20 };

static int set_of(struct end *e) { return MUST(epoll_create1(EPOLL_CLOEXEC)); }

static void change(struct end *e, int ep, int op, int fd, unsigned what, uint64_t data)
{
    struct epoll_event ev = {what, {.u64 = data}};
    MUST(epoll_ctl(ep, op, fd, &ev));
}

static void send_when_asleep(struct end *e, int fd, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        await_blocked(e);
        MUST(write(fd, &(char){(char)i}, 1));
    }
}

static int is_next(int fd, int i)
{
    char c;
    return read(fd, &c, 1) == 1 && c == (char)i;
}

// The set has one event within that time, of these data.
static int tells(int ep, int ms, uint64_t data)
{
    struct epoll_event got[4];
    return epoll_wait(ep, got, 4, ms) == 1 && got[0].data.u64 == data;
}

// A message that nobody wants makes the set ready for none that watch it: when they are told, the
// set has what they are told of.
static void unwanted(struct end *e)
{
    enum { WAYS = 4, ROUNDS = WAYS * 5 };
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        for (int i = 0; i < ROUNDS; i++) {
            await_blocked(e);
            MUST(write(FD, "q", 1));
            nap();
            nap();
            MUST(write(fd, &(char){(char)i}, 1));
        }
        meet(e);
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), ep = set_of(e), good = 0;
    int level = set_of(e), edge = set_of(e), once = set_of(e);
    change(e, ep, EPOLL_CTL_ADD, FD, 0, 1);
    change(e, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
    change(e, level, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
    change(e, edge, EPOLL_CTL_ADD, ep, EPOLLIN | EPOLLET, 4);
    change(e, once, EPOLL_CTL_ADD, ep, EPOLLONESHOT, 5);
    for (int i = 0; i < ROUNDS; i++) {
        struct pollfd p = {ep, POLLIN, 0};
        if (i % WAYS == 3)
            change(e, once, EPOLL_CTL_MOD, ep, EPOLLIN | EPOLLONESHOT, 5);
        will_block(e);
        int told = i % WAYS == 0   ? poll(&p, 1, PATIENCE_MS) == 1
                   : i % WAYS == 1 ? tells(level, PATIENCE_MS, 3)
                   : i % WAYS == 2 ? tells(edge, PATIENCE_MS, 4)
                                   : tells(once, PATIENCE_MS, 5);
        int there = tells(ep, 0, 2);
        if (!told || !there)
            IN_VAIN("way %d: told %d, there %d", i % WAYS, told, there);
        good += told && there;
        if (!is_next(fd, i))
            say(e, "not %d", i);
    }
    say(e, "%d of %d", good, ROUNDS);
    await_bytes(e, FD, ROUNDS);
    say(e, "%zd unwanted", read(FD, scratch(), SCRATCH));
    meet(e);
    close(ep), close(level), close(edge), close(once), close(fd);
}

// The same of many that follow one another, by TCP: each wakes who looks from outside, while the one before is looked at.
static void unwanted_flood(struct end *e)
{
    enum { WAYS = 4, ROUNDS = WAYS * 5, MANY = 2000 };
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        for (int i = 0; i < ROUNDS; i++) {
            await_blocked(e);
            for (int n = 0; n < MANY; n++)
                MUST(write(FD, "q", 1));
            MUST(write(fd, &(char){(char)i}, 1));
        }
        meet(e);
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), ep = set_of(e), good = 0;
    int level = set_of(e), edge = set_of(e), once = set_of(e);
    change(e, ep, EPOLL_CTL_ADD, FD, 0, 1);
    change(e, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
    change(e, level, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
    change(e, edge, EPOLL_CTL_ADD, ep, EPOLLIN | EPOLLET, 4);
    change(e, once, EPOLL_CTL_ADD, ep, EPOLLONESHOT, 5);
    MUST(setsockopt(FD, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
    for (int i = 0; i < ROUNDS; i++) {
        struct pollfd p = {ep, POLLIN, 0};
        if (i % WAYS == 3)
            change(e, once, EPOLL_CTL_MOD, ep, EPOLLIN | EPOLLONESHOT, 5);
        will_block(e);
        int told = i % WAYS == 0   ? poll(&p, 1, PATIENCE_MS) == 1
                   : i % WAYS == 1 ? tells(level, PATIENCE_MS, 3)
                   : i % WAYS == 2 ? tells(edge, PATIENCE_MS, 4)
                                   : tells(once, PATIENCE_MS, 5);
        int there = tells(ep, 0, 2);
        if (!told || !there)
            IN_VAIN("way %d: told %d, there %d", i % WAYS, told, there);
        good += told && there;
        if (!is_next(fd, i))
            say(e, "not %d", i);
    }
    say(e, "%d of %d", good, ROUNDS);
    await_bytes(e, FD, ROUNDS * MANY);
    say(e, "%zd unwanted", read(FD, scratch(), SCRATCH));
    meet(e);
    close(ep), close(level), close(edge), close(once), close(fd);
}

// One of many sets in a set.
static void many_inside(struct end *e)
{
    enum { MANY = 70 };
    if (e->role == C) {
        send_when_asleep(e, FD, OFTEN);
        meet(e);
        return;
    }
    int sets[MANY], around = set_of(e), good = 0;
    for (int i = 0; i < MANY; i++) {
        sets[i] = set_of(e);
        change(e, around, EPOLL_CTL_ADD, sets[i], EPOLLIN, i);
    }
    change(e, sets[MANY - 1], EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    for (int i = 0; i < OFTEN; i++) {
        will_block(e);
        if (tells(around, PATIENCE_MS, MANY - 1) && tells(sets[MANY - 1], 0, 1))
            good++;
        else
            IN_VAIN("not told of message %d", i);
        if (!is_next(FD, i))
            say(e, "not %d", i);
    }
    say(e, "%d of %d", good, OFTEN);
    for (int i = 0; i < MANY; i++)
        close(sets[i]);
    close(around);
    meet(e);
}

struct waiter {
    struct end *e;
    int ep;
    pthread_t id;
    pid_t tid;
    int told;
};

static void *wait_once(void *arg)
{
    struct waiter *w = arg;
    struct epoll_event got = {0};
    int most = PATIENCE_MS;
    long long end = now_ms() + most;
    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    int n = epoll_wait(w->ep, &got, 1, most);
    // At the end of its time it looks once more.
    w->told = n == 1 && now_ms() < end ? (int)got.data.u32 : -1;
    return NULL;
}

static void begin_wait(struct waiter *w, int ep)
{
    struct end *e = w->e;
    w->ep = ep, w->tid = 0;
    if (pthread_create(&w->id, NULL, wait_once, w))
        abort();
    while (!__atomic_load_n(&w->tid, __ATOMIC_ACQUIRE))
        nap();
    await_sleep(e, getpid(), w->tid);
}

// C sends when it is asked to; what the waiter is told of, and a byte from that connection.
static void end_wait(struct waiter *w, int fd)
{
    struct end *e = w->e;
    meet(e);
    pthread_join(w->id, NULL);
    say(e, "told %d", w->told);
    if (w->told < 0)
        IN_VAIN("not in time");
    MUST(read(fd, &(char){0}, 1));
}

// A set is put into another one and taken out again, while a thread sleeps on that.
static void changed_under_sleeper(struct end *e)
{
    enum { ROUNDS = 3 };
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        for (int i = 0; i < ROUNDS; i++) {
            int at[] = {fd, FD, fd};
            for (int k = 0; k < 3; k++) {
                meet(e);
                MUST(write(at[k], "x", 1));
            }
        }
        meet(e);
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), ep = set_of(e), around = set_of(e);
    struct waiter w = {.e = e};
    change(e, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    change(e, around, EPOLL_CTL_ADD, FD, EPOLLIN, 2);
    for (int i = 0; i < ROUNDS; i++) {
        begin_wait(&w, around);
        change(e, around, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
        end_wait(&w, fd);
        begin_wait(&w, around);
        change(e, around, EPOLL_CTL_DEL, ep, 0, 0);
        end_wait(&w, FD);
        begin_wait(&w, ep);
        end_wait(&w, fd);
    }
    meet(e);
    close(ep), close(around), close(fd);
}

static void is_not_ready(struct end *e, int ep, int around)
{
    struct pollfd p = {ep, POLLIN, 0};
    struct epoll_event got;
    T(poll(&p, 1, 0));
    T(epoll_wait(around, &got, 1, 0));
}

// What is ready is seen from outside by who does not wait, and goes with its connection.
static void gone(struct end *e)
{
    int ep = -1, around = -1;
    AT(C) MUST(write(FD, "x", 1));
    AT(S) {
        ep = set_of(e), around = set_of(e);
        change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
        change(e, around, EPOLL_CTL_ADD, ep, EPOLLIN, 2);
        await_bytes(e, FD, 1);
        for (int i = 0; i < 2; i++) {
            struct pollfd outer = {around, POLLIN, 0};
            struct pollfd inner = {ep, POLLIN, 0};
            struct epoll_event got;
            T(poll(&outer, 1, 0));
            T(poll(&inner, 1, 0));
            T(epoll_wait(around, &got, 1, 0));
            if (i == 0) {
                MUST(read(FD, scratch(), 1));
                close(FD), FD = -1;
            }
        }
        close(ep), close(around);
    }
}

// A call that nobody has taken when the set's last connection is closed, and the set after that.
static void late(struct end *e)
{
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        await_blocked(e);
        stop_peer(e);
        MUST(write(FD, "x", 1));
        MUST(kill(e->peer_pid, SIGCONT));
        send_when_asleep(e, fd, OFTEN);
        meet(e);
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    int ep = set_of(e), around = set_of(e), good = 0, n;
    struct epoll_event got;
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    change(e, around, EPOLL_CTL_ADD, ep, EPOLLIN, 2);
    will_block(e);
    do
        n = epoll_wait(ep, &got, 1, PATIENCE_MS);
    while (n < 0 && errno == EINTR);
    say(e, "%d event", n);
    close(FD), FD = -1;
    is_not_ready(e, ep, around);
    change(e, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    for (int i = 0; i < OFTEN; i++) {
        will_block(e);
        good += tells(ep, PATIENCE_MS, 1) && is_next(fd, i);
    }
    say(e, "%d of %d", good, OFTEN);
    close(ep), close(around), close(fd);
    meet(e);
}

struct shared {
    struct end *e;
    int ep, answers[2];
};

// Tells how many bytes it was told of and got.
static int take_if_told(struct end *e, const struct epoll_event *got, int n)
{
    int taken = 0;
    char c;
    for (int i = 0; i < n; i++)
        taken += got[i].data.u64 == 1 && read(FD, &c, 1) == 1;
    return taken;
}

static void *answer_what_is_told(void *arg)
{
    struct shared *s = arg;
    struct end *e = s->e;
    struct epoll_event got[4];
    for (;;) {
        int n = epoll_wait(s->ep, got, 4, -1);
        for (int i = 0; i < n; i++)
            if (got[i].data.u64 == 9)
                return NULL;
        if (take_if_told(e, got, n))
            MUST(write(s->answers[1], "a", 1));
    }
}

static void spend(unsigned turns)
{
    for (volatile unsigned i = turns; i > 0; i--)
        ;
}

// A thread sleeps in a set that another one looks into, for an event of a pipe, just as a message
// comes: one of the two is told. In the set is a connection that the other end does not use yet.
static void taken(struct end *e)
{
    enum { ROUNDS = 2000, TURNS = 0x3fff };
    if (e->role == S) {
        int idle = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        unsigned turns;
        while (read(FD, &turns, sizeof turns) == sizeof turns && turns != UINT_MAX) {
            spend(turns);
            MUST(write(FD, "m", 1));
        }
        meet(e);
        close(idle);
        return;
    }
    struct shared s = {e, set_of(e), {-1, -1}};
    int idle = MUST(tcp_socket(e->fam, SOCK_CLOEXEC)), pipes[2], stop[2], good = 0;
    MUST(tcp_connect(idle, e->fam, e->port));
    MUST(pipe2(pipes, O_CLOEXEC | O_NONBLOCK));
    MUST(pipe2(stop, O_CLOEXEC));
    MUST(pipe2(s.answers, O_CLOEXEC));
    nonblocking(FD, 1);
    change(e, s.ep, EPOLL_CTL_ADD, FD, EPOLLIN | EPOLLET, 1);
    change(e, s.ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN | EPOLLET, 3);
    change(e, s.ep, EPOLL_CTL_ADD, stop[0], EPOLLIN, 9);
    pthread_t sleeper;
    if (pthread_create(&sleeper, NULL, answer_what_is_told, &s))
        abort();
    unsigned random = 1;
    for (int i = 0; i < ROUNDS; i++) {
        change(e, s.ep, EPOLL_CTL_ADD, idle, EPOLLIN | EPOLLET, 5);
        nap();
        random = random * 1103515245 + 12345;
        unsigned turns = random >> 16 & TURNS;
        MUST(write(FD, &turns, sizeof turns));
        spend(TURNS);
        struct epoll_event got[4];
        MUST(write(pipes[1], "p", 1));
        int told = take_if_told(e, got, epoll_wait(s.ep, got, 4, 0));
        MUST(read(pipes[0], &(char){0}, 1));
        struct pollfd p = {s.answers[0], POLLIN, 0};
        if (!told && poll(&p, 1, PATIENCE_MS) == 1)
            told = read(s.answers[0], &(char){0}, 1) == 1;
        if (!told) {
            IN_VAIN("nobody is told of message %d", i);
            break;
        }
        good++;
        change(e, s.ep, EPOLL_CTL_DEL, idle, 0, 0);
    }
    say(e, "%d of %d", good, ROUNDS);
    MUST(write(stop[1], "s", 1));
    pthread_join(sleeper, NULL);
    MUST(write(FD, &(unsigned){UINT_MAX}, sizeof(unsigned)));
    meet(e);
    for (int i = 0; i < 2; i++)
        close(pipes[i]), close(stop[i]), close(s.answers[i]);
    close(idle), close(s.ep);
}

// A call on a set that is not there changes nothing: an edge that was told is not told again.
static void no_set(struct end *e)
{
    struct epoll_event ev = {EPOLLIN, {.u64 = 2}}, got;
    AT(S) {
        int ep = set_of(e);
        change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        T(epoll_wait(ep, &got, 1, PATIENCE_MS));
        while (epoll_wait(ep, &got, 1, 0) == 1)
            continue;
        T(epoll_ctl(-1, EPOLL_CTL_ADD, FD, &ev));
        T(epoll_ctl(e->lfd + 500, EPOLL_CTL_MOD, FD, &ev));
        T(epoll_wait(ep, &got, 1, 0));
        close(ep);
    }
}

// The data of both members, in the order in which one wait tells of them.
static void say_both(struct end *e, int ep)
{
    struct epoll_event got[2];
    int n, tries = 0;
    do {
        n = epoll_wait(ep, got, 2, PATIENCE_MS);
    } while (n == 1 && ++tries < 1000000);
    say(e, "%d: %d, %d", n, (int)got[0].data.u64, (int)got[1].data.u64);
}

// What came first is told first; what is left unread stays in front of what comes later.
static void in_turn(struct end *e)
{
    AT(C) put(FD, "three", 5);
    AT(S) {
        int ep = set_of(e), pipes[2];
        char c;
        MUST(pipe2(pipes, O_CLOEXEC));
        change(e, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 2);
        change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
        await_bytes(e, FD, 5);
        for (int i = 0; i < 5; i++) {
            MUST(write(pipes[1], "p", 1));
            say_both(e, ep);
            get(FD, &c, 1);
            MUST(read(pipes[0], &c, 1));
        }
        close(ep), close(pipes[0]), close(pipes[1]);
    }
}

// A process whose limit of descriptors is 0 may poll nothing, but it may wait: on a set, on one that contains it, for a time
// that is no whole number of milliseconds, and by select.
static void may_poll_nothing(struct end *e)
{
    enum { WAYS = 4 };
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    int set = -1, around = -1;
    AT(S) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        around = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_ctl(around, EPOLL_CTL_ADD, set, &(struct epoll_event){EPOLLIN, {.u64 = 6}}));
    }
    for (int way = 0; way < WAYS; way++) {
        if (e->role == C) {
            await_blocked(e);
            T(send(FD, "m", 1, 0));
        } else {
            struct timespec odd = {PATIENCE_MS / 1000, 1};
            fd_set read;
            struct rlimit before;
            FD_ZERO(&read);
            FD_SET(FD, &read);
            MUST(getrlimit(RLIMIT_NOFILE, &before));
            will_block(e);
            MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}));
            if (way == 0)
                T(epoll_wait(around, &event, 1, PATIENCE_MS));
            else if (way == 1)
                T(epoll_pwait2(set, &event, 1, &odd, NULL));
            else if (way == 2)
                T(epoll_wait(set, &event, 1, PATIENCE_MS));
            else
                T(select(FD + 1, &read, NULL, NULL, NULL));
            MUST(setrlimit(RLIMIT_NOFILE, &before));
            char c;
            T(recv(FD, &c, 1, 0));
        }
        meet(e);
    }
    AT(S) close(around), close(set);
}

DIFF_MAIN(CASE(unwanted, TWO | COLD), CASE(unwanted_flood, TWO | COLD), CASE(many_inside, TWO | COLD),
          CASE(changed_under_sleeper, SPLIT | COLD), CASE(gone, COLD), CASE(late, SPLIT | COLD),
          CASE(taken, TWO | BUSY), CASE(no_set, STEADY), CASE(in_turn, STEADY), CASE(may_poll_nothing, SPLIT | COLD))
