// epoll: threads that sleep often, and what their peers call them for.
// path: shunted 60%
// timeout: 90
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

enum { OFTEN = 40, FEW = 6 };

static int set_of(struct end *e) { return MUST(epoll_create1(EPOLL_CLOEXEC)); }

static void change(struct end *e, int ep, int op, int fd, unsigned what, uint64_t data)
{
    struct epoll_event ev = {what, {.u64 = data}};
    MUST(epoll_ctl(ep, op, fd, &ev));
}

// One event with this data and these bits, or what came instead.
static int is_told(struct end *e, int ep, uint64_t data, unsigned what)
{
    struct epoll_event got[4];
    int n = epoll_wait(ep, got, 4, PATIENCE_MS);
    if (n == 1 && got[0].data.u64 == data && got[0].events == what)
        return 1;
    IN_VAIN("%d events, the first %llx:%s", n, n > 0 ? (unsigned long long)got[0].data.u64 : 0,
            n > 0 ? events(got[0].events) : "");
    return 0;
}

static int is_quiet(struct end *e, int ep)
{
    struct epoll_event got[4];
    int n = epoll_wait(ep, got, 4, 0);
    if (n != 0)
        say(e, "%d events more, the first %llx:%s", n,
            n > 0 ? (unsigned long long)got[0].data.u64 : 0, n > 0 ? events(got[0].events) : "");
    return n == 0;
}

static void send_when_asleep(struct end *e, int fd, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        await_blocked(e);
        char c = (char)i;
        MUST(write(fd, &c, 1));
    }
}

static int is_next(int fd, int i)
{
    char c;
    return read(fd, &c, 1) == 1 && c == (char)i;
}

// The sleeper's side of send_when_asleep, with a set that has FD alone.
static int hear(struct end *e, int ep, int rounds)
{
    int good = 0;
    for (int i = 0; i < rounds; i++) {
        will_block(e);
        good += is_told(e, ep, 1, EPOLLIN) && is_next(FD, i) && is_quiet(e, ep);
    }
    return good;
}

static void level(struct end *e)
{
    if (e->role == C) {
        send_when_asleep(e, FD, OFTEN);
        meet(e);
        return;
    }
    int ep = set_of(e);
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    say(e, "%d of %d", hear(e, ep, OFTEN), OFTEN);
    close(ep);
    meet(e);
}

static void edge(struct end *e)
{
    if (e->role == C) {
        send_when_asleep(e, FD, OFTEN);
        meet(e);
        return;
    }
    int ep = set_of(e), good = 0;
    unsigned what = EPOLLIN | EPOLLET;
    nonblocking(FD, 1);
    change(e, ep, EPOLL_CTL_ADD, FD, what, 1);
    for (int i = 0; i < OFTEN; i++) {
        if (i > OFTEN / 2) {
            what = EPOLLIN | EPOLLONESHOT;
            change(e, ep, EPOLL_CTL_MOD, FD, what, 1);
        }
        will_block(e);
        char c;
        good += is_told(e, ep, 1, EPOLLIN) && is_next(FD, i) && read(FD, &c, 1) < 0 && errno == EAGAIN;
    }
    say(e, "%d of %d", good, OFTEN);
    close(ep);
    meet(e);
}

// The same seen from outside: through poll, and through a set around the set.
static void outside(struct end *e)
{
    if (e->role == C) {
        send_when_asleep(e, FD, 2 * OFTEN);
        meet(e);
        return;
    }
    int ep = set_of(e), around = set_of(e), good = 0;
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    change(e, around, EPOLL_CTL_ADD, ep, EPOLLIN, 2);
    for (int i = 0; i < 2 * OFTEN; i++) {
        will_block(e);
        struct pollfd p = {ep, POLLIN, 0};
        int told = i % 2 ? poll(&p, 1, PATIENCE_MS) == 1 : is_told(e, around, 2, EPOLLIN);
        good += told && is_told(e, ep, 1, EPOLLIN) && is_next(FD, i) && is_quiet(e, ep)
                && is_quiet(e, around) && poll(&p, 1, 0) == 0;
    }
    say(e, "%d of %d", good, 2 * OFTEN);
    close(around);
    close(ep);
    meet(e);
}

// Messages on the connection, through a pipe, and none in time.
static void among_others(struct end *e)
{
    if (e->role == C) {
        send_when_asleep(e, FD, OFTEN);
        meet(e);
        return;
    }
    int ep = set_of(e), pipes[2], good = 0;
    MUST(pipe2(pipes, O_CLOEXEC));
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    change(e, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 3);
    for (int i = 0; i < OFTEN; i++) {
        struct epoll_event got;
        MUST(write(pipes[1], &(char){(char)i}, 1));
        good += is_told(e, ep, 3, EPOLLIN) && is_next(pipes[0], i);
        good += epoll_wait(ep, &got, 1, 2) == 0;
        // Room for one event: it is the pipe's, whatever else there is to hear.
        MUST(write(pipes[1], &(char){(char)i}, 1));
        nap();
        good += epoll_wait(ep, &got, 1, 0) == 1 && got.data.u64 == 3 && is_next(pipes[0], i);
        will_block(e);
        good += is_told(e, ep, 1, EPOLLIN) && is_next(FD, i) && is_quiet(e, ep);
    }
    say(e, "%d of %d", good, 4 * OFTEN);
    close(pipes[0]);
    close(pipes[1]);
    close(ep);
    meet(e);
}

static void pause_for(long ns)
{
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < ns);
}

// Who falls asleep outside the set just as a message comes.
static void race(struct end *e, int nested)
{
    enum { MANY = 4000 };
    char c = 0;
    if (e->role == C) {
        unsigned delay = 1;
        int good = 0;
        for (int i = 0; i < MANY; i++) {
            delay = delay * 1103515245 + 12345;
            pause_for(delay >> 16 & 0x7fff);
            MUST(write(FD, &c, 1));
            struct pollfd p = {FD, POLLIN, 0};
            if (poll(&p, 1, PATIENCE_MS) != 1) {
                IN_VAIN("no answer to message %d", i);
                break;
            }
            good += read(FD, &c, 1) == 1;
        }
        say(e, "%d of %d", good, MANY);
        MUST(shutdown(FD, SHUT_WR));
        meet(e);
        return;
    }
    int ep = set_of(e), around = set_of(e), ended = 0;
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    change(e, around, EPOLL_CTL_ADD, ep, EPOLLIN, 2);
    nonblocking(FD, 1);
    while (!ended) {
        struct epoll_event got;
        struct pollfd p = {ep, POLLIN, 0};
        if ((nested ? epoll_wait(around, &got, 1, 4 * PATIENCE_MS) : poll(&p, 1, 4 * PATIENCE_MS)) != 1)
            break;
        while (!ended && epoll_wait(ep, &got, 1, 0) == 1) {
            ssize_t n = read(FD, &c, 1);
            ended = n == 0;
            if (n == 1)
                MUST(write(FD, &c, 1));
        }
    }
    say(e, "ended: %d", ended);
    close(around);
    close(ep);
    meet(e);
}

static void race_in_poll(struct end *e) { race(e, 0); }
static void race_in_a_set(struct end *e) { race(e, 1); }

struct sleeper {
    struct end *e;
    int ep, fd;
};

static void *echo_in_a_set(void *arg)
{
    struct sleeper *s = arg;
    struct epoll_event got;
    char c;
    while (epoll_wait(s->ep, &got, 1, -1) == 1 && read(s->fd, &c, 1) == 1)
        if (write(s->fd, &c, 1) != 1)
            break;
    return NULL;
}

// Two threads asleep in two sets whose peers find them behind one door; `both`: each
// connection is in both sets.
static void one_door(struct end *e, int both)
{
    enum { SETS = 64 };
    char c = 'x';
    int fds[2];
    if (e->role == C) {
        int good = 0;
        for (int i = 0; i < 2; i++) {
            fds[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fds[i], e->fam, e->port));
        }
        for (int i = 0; i < OFTEN; i++) {
            nap();
            nap();
            for (int k = 1; k >= 0; k--)
                MUST(write(fds[k], &c, 1));
            for (int k = 0; k < 2; k++) {
                struct pollfd p = {fds[k], POLLIN, 0};
                if (poll(&p, 1, PATIENCE_MS) == 1)
                    good += read(fds[k], &c, 1) == 1;
                else
                    IN_VAIN("round %d: no answer on %d", i, k);
            }
        }
        say(e, "%d of %d", good, 2 * OFTEN);
        close(fds[0]);
        close(fds[1]);
        meet(e);
        return;
    }
    struct sleeper sleepers[2];
    int sets[SETS];
    pthread_t ids[2];
    for (int i = 0; i < 2; i++)
        fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < SETS; i++)
        sets[i] = set_of(e);
    for (int i = 0; i < 2; i++) {
        sleepers[i] = (struct sleeper){e, sets[i ? SETS - 1 : 0], fds[i]};
        change(e, sleepers[i].ep, EPOLL_CTL_ADD, fds[i], EPOLLIN, 1);
        if (both)
            change(e, sets[i ? 0 : SETS - 1], EPOLL_CTL_ADD, fds[i], EPOLLPRI, 2);
    }
    for (int i = 0; i < 2; i++)
        if (pthread_create(&ids[i], NULL, echo_in_a_set, &sleepers[i]))
            abort();
    for (int i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < SETS; i++)
        close(sets[i]);
    close(fds[0]);
    close(fds[1]);
    meet(e);
}

static void two_behind_a_door(struct end *e) { one_door(e, 0); }
static void two_in_two_sets(struct end *e) { one_door(e, 1); }

// A child that has the set for a while, and one that outlives its use.
static void forked(struct end *e)
{
    if (e->role == C) {
        send_when_asleep(e, FD, OFTEN);
        for (int i = 0; i < 2; i++) {
            meet(e);
            send_when_asleep(e, FD, FEW);
        }
        meet(e);
        return;
    }
    int ep = set_of(e);
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    say(e, "%d of %d", hear(e, ep, OFTEN), OFTEN);
    struct kid kid = spawn(e);
    if (kid.pid == 0)
        _exit(0);
    reap(e, &kid);
    meet(e);
    say(e, "%d of %d", hear(e, ep, FEW), FEW);
    kid = spawn(e);
    if (kid.pid == 0)
        for (;;)
            pause();
    meet(e);
    say(e, "%d of %d", hear(e, ep, FEW), FEW);
    MUST(kill(kid.pid, SIGKILL));
    reap(e, &kid);
    close(ep);
    meet(e);
}

// A set after the others: two of them may have to do with the same place in memory.
static void many_sets(struct end *e)
{
    enum { MANY = 70 };
    if (e->role == C) {
        for (int i = 0; i < 3; i++)
            send_when_asleep(e, FD, OFTEN / 2);
        meet(e);
        return;
    }
    int sets[MANY];
    sets[0] = set_of(e);
    change(e, sets[0], EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    say(e, "%d of %d", hear(e, sets[0], OFTEN / 2), OFTEN / 2);
    for (int i = 1; i < MANY; i++)
        sets[i] = set_of(e);
    say(e, "%d of %d", hear(e, sets[0], OFTEN / 2), OFTEN / 2);
    change(e, sets[0], EPOLL_CTL_DEL, FD, 0, 0);
    change(e, sets[MANY - 1], EPOLL_CTL_ADD, FD, EPOLLIN, 1);
    say(e, "%d of %d", hear(e, sets[MANY - 1], OFTEN / 2), OFTEN / 2);
    for (int i = 0; i < MANY; i++)
        close(sets[i]);
    meet(e);
}

struct waiter {
    struct end *e;
    int ep, good;
};

static void *wait_in_turn(void *arg)
{
    struct waiter *w = arg;
    struct end *e = w->e;
    struct epoll_event got;
    while (epoll_wait(w->ep, &got, 1, -1) == 1 && got.data.u64 == 1) {
        char c;
        if (read(FD, &c, 1) != 1 || c == 'z')
            break;
        __atomic_add_fetch(&w->good, 1, __ATOMIC_SEQ_CST);
        MUST(write(FD, &c, 1));
        change(e, w->ep, EPOLL_CTL_MOD, FD, EPOLLIN | EPOLLONESHOT, 1);
    }
    // The others end, too.
    change(e, w->ep, EPOLL_CTL_MOD, FD, EPOLLIN | EPOLLONESHOT, 1);
    return NULL;
}

// Three threads in one set; each message is for whoever comes first.
static void threads(struct end *e)
{
    if (e->role == C) {
        int good = 0;
        for (int i = 0; i < 3 * OFTEN; i++) {
            char c = 'a';
            MUST(write(FD, &c, 1));
            good += read(FD, &c, 1) == 1;
            nap();
        }
        say(e, "%d of %d", good, 3 * OFTEN);
        MUST(write(FD, "zzz", 3));
        meet(e);
        return;
    }
    struct waiter w = {e, set_of(e), 0};
    pthread_t ids[3];
    change(e, w.ep, EPOLL_CTL_ADD, FD, EPOLLIN | EPOLLONESHOT, 1);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&ids[i], NULL, wait_in_turn, &w))
            abort();
    for (int i = 0; i < 3; i++)
        pthread_join(ids[i], NULL);
    say(e, "%d of %d", w.good, 3 * OFTEN);
    close(w.ep);
    meet(e);
}

// What comes on a connection of which nothing is to be reported does not keep the thread from
// what comes on the next one: in `poll` of the set, in a set around it, and in the set itself.
static void called_for_nothing(struct end *e)
{
    enum { WAYS = 3, ROUNDS = WAYS * FEW };
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        for (int i = 0; i < ROUNDS; i++) {
            char c = (char)i;
            await_blocked(e);
            MUST(write(FD, "q", 1));
            nap();
            nap();
            MUST(write(fd, &c, 1));
        }
        meet(e);
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), ep = set_of(e), outer = set_of(e), good = 0;
    change(e, ep, EPOLL_CTL_ADD, FD, EPOLLPRI, 1);
    change(e, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
    change(e, outer, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
    for (int i = 0; i < ROUNDS; i++) {
        struct pollfd p = {ep, POLLIN, 0};
        struct epoll_event got[4];
        will_block(e);
        int n = 1;
        if (i % WAYS == 0)
            n = poll(&p, 1, PATIENCE_MS);
        else if (i % WAYS == 1)
            n = epoll_wait(outer, got, 4, PATIENCE_MS);
        good += n == 1 && is_told(e, ep, 2, EPOLLIN) && is_next(fd, i);
    }
    say(e, "%d of %d", good, ROUNDS);
    await_bytes(e, FD, ROUNDS);
    say(e, "%zd unwanted", read(FD, scratch(), SCRATCH));
    meet(e);
    close(ep), close(outer), close(fd);
}

DIFF_MAIN(CASE(level, TWO | COLD), CASE(edge, TWO | COLD), CASE(outside, TWO | COLD),
          CASE(among_others, TWO | COLD), CASE(forked, SPLIT | COLD), CASE(many_sets, TWO | COLD),
          CASE(threads, TWO | COLD),
          CASE(race_in_poll, TWO), CASE(race_in_a_set, TWO), CASE(two_behind_a_door, TWO | BARE),
          CASE(two_in_two_sets, TWO | BARE), CASE(called_for_nothing, TWO | COLD))
