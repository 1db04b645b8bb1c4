// A connection goes back to plain TCP where payload from before the ring lies in front
// of doorbells, and in other moments that are seldom.
// needs: lending
// path: shunted
// timeout: 60
#include "diff.h"
#include "plain.h"

static void by_stream(struct end *e)
{
    FILE *f = fdopen(dup(FD), "r");
    if (!f || fclose(f))
        say(e, "no stream");
}

struct sleeper {
    pthread_t thread;
    volatile pid_t tid;
    int set, bell;
};

static void *sleeps(void *arg)
{
    struct sleeper *t = arg;
    struct epoll_event got = {0};
    t->tid = syscall(SYS_gettid);
    epoll_wait(t->set, &got, 1, -1);
    return NULL;
}

// Sleeps in a set that is not interested in what is unread, or comes: a doorbell
// follows it.
static void sleep_behind(struct end *e, struct sleeper *t, int n)
{
    struct epoll_event end = {EPOLLRDHUP | EPOLLET, {.u32 = 9}}, in = {EPOLLIN, {.u32 = 8}};
    await_bytes(e, FD, n);
    t->set = MUST(epoll_create1(EPOLL_CLOEXEC));
    t->bell = MUST(eventfd(0, EFD_CLOEXEC));
    MUST(epoll_ctl(t->set, EPOLL_CTL_ADD, FD, &end));
    MUST(epoll_ctl(t->set, EPOLL_CTL_ADD, t->bell, &in));
    MUST(pthread_create(&t->thread, NULL, sleeps, t));
    while (!t->tid)
        nap();
    await_sleep(e, e->pid, t->tid);
}

static void woken(struct end *e, struct sleeper *t)
{
    uint64_t one = 1;
    await_bytes(e, FD, 1);
    raw_write(t->bell, &one, sizeof one);
    pthread_join(t->thread, NULL);
    close(t->set);
    close(t->bell);
}

enum { BITS = 40 };

// In both directions, and both ends become plain at once.
static void both_behind_unread(struct end *e)
{
    struct sleeper t = {0};
    at_once(e);
    for (int i = 0; i < BITS; i++)
        produce(e, FD, 500, e->role), nap();
    meet(e);
    sleep_behind(e, &t, BITS * 500);
    meet(e);
    produce(e, FD, MUCH, e->role);
    woken(e, &t);
    meet(e);
    long long start = now_ms();
    struct plain p = PLAIN(FD);
    if (now_ms() - start > 1500)
        say(e, "that took long");
    for (int i = 0; i < BITS; i++)
        tell_it(e, &p, RECEIVE, 500, !e->role);
    tell_it(e, &p, RECEIVE, MUCH, !e->role);
    plain_end(e, &p);
    meet(e);
    goes_on(e);
}

// A lot of it.
static void behind_lots(struct end *e, size_t lots)
{
    struct sleeper t = {0};
    AT(C) produce(e, FD, lots, 1);
    AT(S) sleep_behind(e, &t, 1000);
    AT(C) produce(e, FD, MUCH, 2);
    AT(S) {
        woken(e, &t);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, lots, 1);
        tell_it(e, &p, RECEIVE, MUCH, 2);
        plain_end(e, &p);
    }
    goes_on(e);
}
static void behind_200k(struct end *e) { behind_lots(e, 200000); }
static void behind_2m(struct end *e) { behind_lots(e, 2000000); }

// More than a send buffer takes that is small by now, of a sender that makes no call any more.
static void behind_small_buffer(struct end *e)
{
    enum { LOTS = 2000000 };
    AT(C) {
        int bytes = 4608;
        produce(e, FD, LOTS, 1);
        MUST(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    }
    AT(S) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, LOTS, 1);
        plain_end(e, &p);
    }
    goes_on(e);
}

// The sender has closed by then, or shut down.
static void ended_behind_unread(struct end *e, int closes)
{
    struct sleeper t = {0};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) sleep_behind(e, &t, 1000);
    AT(C) {
        produce(e, FD, MUCH, 2);
        if (closes) {
            close(FD);
            FD = -1;
        } else {
            T(shutdown(FD, SHUT_WR));
        }
    }
    AT(S) {
        woken(e, &t);
        long long start = now_ms();
        struct plain p = PLAIN(FD);
        if (now_ms() - start > 1500)
            say(e, "that took long");
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, RECEIVE, MUCH, 2);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}
static void closed_behind_unread(struct end *e) { ended_behind_unread(e, 1); }
static void shut_behind_unread(struct end *e) { ended_behind_unread(e, 0); }

// More than the sender gives to the kernel when it ends.
static void ended_behind_lots(struct end *e, int closes)
{
    enum { LOTS = 2500000 };
    AT(C) {
        produce(e, FD, LOTS, 1);
        if (closes) {
            close(FD);
            FD = -1;
        } else {
            T(shutdown(FD, SHUT_WR));
        }
    }
    AT(S) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, LOTS, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}
static void closed_behind_lots(struct end *e) { ended_behind_lots(e, 1); }
static void shut_behind_lots(struct end *e) { ended_behind_lots(e, 0); }

// Who has shut down both halves hands on what it has not read.
static void deaf_behind_unread(struct end *e)
{
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        await_bytes(e, FD, MUCH);
        T(shutdown(FD, SHUT_RDWR));
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, MUCH, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}

// A thread and a program share what the sender has left: no byte comes twice, and none is missing. A thread
// that looks on sees nothing but that.
static _Atomic int looks_on;

static void *tallies(void *conn)
{
    static struct tally all;
    all = tally_there(*(int *)conn);
    looks_on = 0;
    return &all;
}

static void *looks(void *conn)
{
    struct pollfd p = {*(int *)conn, POLLIN | POLLRDHUP, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    unsigned seen = 0;
    if (epoll_ctl(set, EPOLL_CTL_ADD, p.fd, &event))
        seen = POLLERR;
    while (looks_on) {
        if (poll(&p, 1, 0) == 1)
            seen |= p.revents;
        if (epoll_wait(set, &event, 1, 0) == 1)
            seen |= event.events;
    }
    close(set);
    return (void *)(uintptr_t)(seen & (POLLERR | POLLHUP));
}

static void left_to_several(struct end *e)
{
    enum { LOTS = 2500000 };
    AT(C) {
        produce(e, FD, LOTS, 1);
        close(FD), FD = -1;
    }
    AT(S) {
        pthread_t thread, watcher;
        void *seen;
        struct tally *here, there = {0, 0};
        struct report r;
        unsigned char *all = malloc(LOTS);
        long sum = 0;
        int fd = FD;
        fill(all, LOTS, 0, 1);
        for (int i = 0; i < LOTS; i++)
            sum += all[i];
        free(all);
        looks_on = 1;
        MUST(pthread_create(&watcher, NULL, looks, &fd));
        MUST(pthread_create(&thread, NULL, tallies, &fd));
        struct plain p = PLAIN(FD);
        order(&p, TALLY, 0, 0);
        if (get(p.leash, &r, sizeof r) != sizeof r || sscanf(r.text, "%ld %ld", &there.bytes, &there.sum) != 2)
            say(e, "no report");
        MUST(pthread_join(thread, (void **)&here));
        MUST(pthread_join(watcher, &seen));
        if (seen)
            say(e, "%s", events((int)(uintptr_t)seen));
        long bytes = here->bytes + there.bytes;
        say(e, "%s: %s", bytes < LOTS ? "missing" : bytes > LOTS ? "twice" : "all",
            here->sum + there.sum == sum ? "intact" : "others");
        plain_end(e, &p);
    }
}

// The sender becomes plain first, the receiver after it.
static void plain_in_turn(struct end *e, int by_program)
{
    struct sleeper t = {0};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) sleep_behind(e, &t, 1000);
    AT(C) {
        produce(e, FD, MUCH, 2);
        if (by_program) {
            struct plain p = PLAIN(FD);
            tell_it(e, &p, SEND, 1000, 3);
            plain_end(e, &p);
        } else {
            by_stream(e);
            produce(e, FD, 1000, 3);
        }
    }
    AT(S) {
        woken(e, &t);
        long long start = now_ms();
        struct plain p = PLAIN(FD);
        if (now_ms() - start > 1500)
            say(e, "that took long");
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, RECEIVE, MUCH, 2);
        tell_it(e, &p, RECEIVE, 1000, 3);
        plain_end(e, &p);
    }
    goes_on(e);
}
static void program_then_program(struct end *e) { plain_in_turn(e, 1); }
static void stream_then_program(struct end *e) { plain_in_turn(e, 0); }

// A direction leaves the ring before the other has come to it: SO_RCVLOWAT does not
// keep doorbells out.
static void low_water(struct end *e)
{
    int least = 100;
    char buf[200], c;
    AT(C) T(send(FD, "a", 1, 0));
    AT(S) {
        T(recv(FD, &c, 1, 0));
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least));
        T(send(FD, "u", 1, MSG_OOB));
    }
    AT(C) await_events(e, FD, POLLPRI);
    if (e->role == S) {
        will_block(e);
        T(recv(FD, buf, sizeof buf, 0));
    } else {
        await_blocked(e);
        produce(e, FD, 200, 1);
    }
    meet(e);
}

// Options that Shunt keeps from a connection are the kernel's again when it is plain.
static void options_when_plain(struct end *e)
{
    int least = 100;
    AT(C) produce(e, FD, 10, 1);
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        expect(e, FD, 10, 1);
        by_stream(e);
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least));
        T(poll(&p, 1, 0));
    }
    AT(C) produce(e, FD, 10, 2);
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        await_bytes(e, FD, 10);
        T(poll(&p, 1, 0));
        T(recv(FD, scratch(), 200, MSG_DONTWAIT));
    }
    AT(C) produce(e, FD, 200, 3);
    AT(S) {
        struct pollfd p = {FD, POLLIN, 0};
        T(poll(&p, 1, PATIENCE_MS));
    }
}

// Runs a program, which inherits the connection, whenever it is told to.
struct runner {
    pthread_t thread;
    volatile int runs, wanted, is_over;
};

static void *runs_programs(void *arg)
{
    struct runner *r = arg;
    char *argv[] = {"true", NULL};
    while (!r->is_over) {
        pid_t pid;
        if (r->runs == r->wanted) {
            sched_yield();
            continue;
        }
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) == 0)
            waitpid(pid, NULL, 0);
        r->runs++;
    }
    return NULL;
}

enum { LENGTH = 16 };

// What poll, select, epoll and FIONREAD have told once they go on to tell, and receives that do not wait find it.
static int is_still_there(int fd, int set)
{
    char buf[LENGTH];
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event event;
    struct timeval now = {0, 0};
    int told = 0;
    fd_set fds;
    FD_ZERO(&fds);
    FD_SET(fd, &fds);
    return poll(&p, 1, 0) == 1 && p.revents == POLLIN && select(fd + 1, &fds, NULL, NULL, &now) == 1 && epoll_wait(set, &event, 1, 0) == 1 &&
           ioctl(fd, FIONREAD, &told) == 0 && told == LENGTH && recv(fd, buf, LENGTH, MSG_PEEK | MSG_DONTWAIT) == LENGTH;
}

// At any moment while another thread runs a program, each time with another connection. (A machine that is very busy may keep the
// peer from sending in time what was unread, so a few do not count.)
static void told_beside_programs(struct end *e)
{
    enum { TURNS = 60, CALM = 3, FEW = 3 };
    char buf[LENGTH] = "";
    int lost = 0;
    struct runner r = {.runs = 0};
    if (e->role == C) {
        for (int i = 0; i < TURNS; i++) {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(FD, e->fam, e->port));
            for (int k = 0; k < CALM; k++) {
                put(FD, buf, 1);
                get(FD, buf, 1);
            }
            put(FD, buf, LENGTH);
            get(FD, buf, 1);
            close(FD), FD = -1;
        }
        return;
    }
    MUST(pthread_create(&r.thread, NULL, runs_programs, &r));
    for (int i = 0; i < TURNS; i++) {
        struct epoll_event in = {EPOLLIN, {.u32 = 8}};
        int is_there = 1, set = MUST(epoll_create1(EPOLL_CLOEXEC));
        FD = MUST(accept(e->lfd, NULL, NULL));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &in));
        for (int k = 0; k < CALM; k++) {
            get(FD, buf, 1);
            put(FD, buf, 1);
        }
        await_bytes(e, FD, LENGTH);
        r.wanted++;
        do
            is_there &= is_still_there(FD, set);
        while (r.runs != r.wanted);
        lost += !is_there;
        is_there = recv(FD, buf, LENGTH, MSG_DONTWAIT) == LENGTH;
        if (!is_there)
            say(e, "not there at the end");
        put(FD, buf, 1);
        close(set);
        close(FD), FD = -1;
    }
    r.is_over = 1;
    pthread_join(r.thread, NULL);
    say(e, "lost: %s", lost > FEW ? "often" : "seldom");
}

PLAIN_MAIN(CASE(both_behind_unread, TWO | COLD), CASE(behind_200k, SPLIT | COLD), CASE(behind_2m, SPLIT | COLD),
           CASE(behind_small_buffer, SPLIT | COLD),
           CASE(closed_behind_unread, COLD), CASE(shut_behind_unread, COLD),
           CASE(closed_behind_lots, SPLIT | COLD | ALL), CASE(shut_behind_lots, SPLIT | COLD | ALL),
           CASE(deaf_behind_unread, COLD | ALL), CASE(left_to_several, SPLIT | ALL),
           CASE(program_then_program, COLD), CASE(stream_then_program, COLD),
           CASE(low_water, TWO | COLD), CASE(options_when_plain, COLD),
           CASE(told_beside_programs, TWO | BARE | BUSY))
