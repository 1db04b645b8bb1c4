// Short connections, one after the other, for which a server waits in poll, select and epoll: what is used again must look
// like what is new.
// path: free
// recycles: some
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

enum { MANY = 40 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

// Every other time the server is asleep when the client connects.
static void before(struct end *e, int i)
{
    if (e->role == S) {
        if (i % 2)
            will_block(e);
        else
            go(e);
    } else {
        if (i % 2)
            await_blocked(e);
        else
            await_go(e);
    }
}

// The client asks, the server answers, and one of them closes first.
static int use(struct end *e, int i)
{
    char buf[16], c;
    int wrong = 0;
    if (e->role == C) {
        put(FD, "question", 8);
        wrong += get(FD, buf, 6) != 6;
    } else {
        wrong += get(FD, buf, 8) != 8;
        put(FD, "answer", 6);
    }
    if (e->role != (i / 3 % 2 ? S : C))
        wrong += differs(e, "recv at the end", recv(FD, &c, 1, 0), 0);
    MUST(close(FD));
    FD = -1;
    return wrong;
}

// Both roles: `await` is how the server waits, before and (a look) after it has accepted.
static void each_by(struct end *e, int (*await)(struct end *, int fd, int i), int flags)
{
    int port = 0, own = -1, wrong = 0;
    if (e->role == S)
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC | flags, 8, &port));
    share(e, S, &port, sizeof port);
    for (int i = 0; i < MANY; i++) {
        before(e, i);
        if (e->role == C) {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(FD, e->fam, port));
        } else {
            wrong += await(e, own, i);
        }
        wrong += use(e, i);
    }
    if (e->role == S)
        MUST(close(own));
    say(e, "wrong: %d", wrong);
}

static int by_poll(struct end *e, int fd, int i)
{
    (void)i;
    struct pollfd p = {fd, POLLIN | POLLRDNORM, 0}, none = {fd, POLLOUT, 0};
    int wrong = differs(e, "poll", poll(&p, 1, PATIENCE_MS), 1);
    wrong += differs(e, "events", p.revents, POLLIN | POLLRDNORM);
    wrong += differs(e, "poll again", poll(&p, 1, 0), 1);
    wrong += differs(e, "poll for room", poll(&none, 1, 0), 0);
    FD = MUST(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    return wrong + differs(e, "poll behind it", poll(&p, 1, 0), 0);
}

static void polled(struct end *e) { each_by(e, by_poll, 0); }

static void polled_nonblocking(struct end *e) { each_by(e, by_poll, SOCK_NONBLOCK); }

static int by_select(struct end *e, int fd, int i)
{
    (void)i;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {PATIENCE_MS / 1000, 0};
    int wrong = differs(e, "select", select(fd + 1, &set, NULL, NULL, &time), 1);
    wrong += differs(e, "set", FD_ISSET(fd, &set) != 0, 1);
    FD = MUST(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    time = (struct timeval){0, 0};
    return wrong + differs(e, "select behind it", select(fd + 1, &set, NULL, NULL, &time), 0);
}

static void selected(struct end *e) { each_by(e, by_select, 0); }

static __thread int set = -1;

// One event of the listener's, with its data; `again`: how many a second look finds. A stop of the process, by a debugger or
// a freezer, ends the first wait with `EINTR` (signal(7)).
static int by_epoll(struct end *e, int fd, unsigned flags, int again)
{
    if (set < 0) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        struct epoll_event event = {EPOLLIN | flags, {.u64 = 77}};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    }
    struct epoll_event told[4];
    int wrong = differs(e, "epoll_wait", MUST(epoll_wait(set, told, 4, PATIENCE_MS)), 1);
    wrong += differs(e, "events", told[0].events, EPOLLIN) + differs(e, "data", told[0].data.u64, 77);
    wrong += differs(e, "again", epoll_wait(set, told, 4, 0), again);
    FD = MUST(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    wrong += differs(e, "more", accept4(fd, NULL, NULL, SOCK_CLOEXEC), -1) + differs(e, "errno", errno, EAGAIN);
    return wrong + differs(e, "behind it", epoll_wait(set, told, 4, 0), 0);
}

static int by_level(struct end *e, int fd, int i)
{
    (void)i;
    return by_epoll(e, fd, 0, 1);
}

static int by_edge(struct end *e, int fd, int i)
{
    (void)i;
    return by_epoll(e, fd, EPOLLET, 0);
}

static int by_exclusive(struct end *e, int fd, int i)
{
    (void)i;
    return by_epoll(e, fd, EPOLLEXCLUSIVE, 1);
}

static void with_set(struct end *e, int (*await)(struct end *, int fd, int i))
{
    each_by(e, await, SOCK_NONBLOCK);
    if (set >= 0)
        MUST(close(set));
    set = -1;
}

static void level(struct end *e) { with_set(e, by_level); }
static void edge(struct end *e) { with_set(e, by_edge); }
static void exclusive(struct end *e) { with_set(e, by_exclusive); }

// One-shot: told once, until it is armed anew.
static int by_one_shot(struct end *e, int fd, int i)
{
    struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u64 = 5}}, told[2];
    if (set < 0)
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, i ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event));
    int wrong = differs(e, "epoll_wait", MUST(epoll_wait(set, told, 2, PATIENCE_MS)), 1);
    wrong += differs(e, "again", epoll_wait(set, told, 2, 0), 0);
    FD = MUST(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    return wrong;
}

static void one_shot(struct end *e) { with_set(e, by_one_shot); }

// A server and a client with all their connections in sets: these leave the sets when they are closed.
static void in_sets(struct end *e)
{
    int port = 0, own = -1, wrong = 0, number = -1;
    set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {EPOLLIN, {.u64 = 0}}, told[4];
    if (e->role == S) {
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK, 8, &port));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, own, &event));
    }
    share(e, S, &port, sizeof port);
    for (int i = 0; i < MANY; i++) {
        char buf[16];
        before(e, i);
        if (e->role == C) {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(FD, e->fam, port));
        } else {
            wrong += differs(e, "listener", MUST(epoll_wait(set, told, 4, PATIENCE_MS)), 1);
            wrong += differs(e, "its data", told[0].data.u64, 0);
            FD = MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        }
        if (i > 0 && e->pid != e->peer_pid)
            wrong += differs(e, "number", FD, number);
        number = FD;
        event = (struct epoll_event){EPOLLIN | EPOLLRDHUP | (i % 3 ? 0 : EPOLLET), {.u64 = 1000 + i}};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        if (e->role == C)
            put(FD, "question", 8);
        wrong += differs(e, "bytes", MUST(epoll_wait(set, told, 4, PATIENCE_MS)), 1);
        wrong += differs(e, "whose", told[0].data.u64, 1000 + i) + differs(e, "what", told[0].events, EPOLLIN);
        if (e->role == S) {
            wrong += differs(e, "question", recv(FD, buf, sizeof buf, 0), 8);
            put(FD, "answer", 6);
            wrong += differs(e, "end", MUST(epoll_wait(set, told, 4, PATIENCE_MS)), 1);
            wrong += differs(e, "as it should", told[0].events, EPOLLIN | EPOLLRDHUP);
            wrong += differs(e, "recv", recv(FD, buf, sizeof buf, 0), 0);
        } else {
            wrong += differs(e, "answer", recv(FD, buf, sizeof buf, 0), 6);
        }
        MUST(close(FD));
        FD = -1;
        wrong += differs(e, "nothing behind it", epoll_wait(set, told, 4, 0), 0);
    }
    if (e->role == S)
        MUST(close(own));
    MUST(close(set));
    set = -1;
    say(e, "wrong: %d", wrong);
}

// A connect that does not wait: done at once or soon, and writable once.
static void connects_without_waiting(struct end *e)
{
    int wrong = 0;
    set = MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < MANY; i++) {
        before(e, i);
        if (e->role == S) {
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        } else {
            struct epoll_event event = {EPOLLOUT | EPOLLET, {.u64 = i}}, told[4];
            // Waits that find nothing make the next ones ask the kernel less often.
            for (int looks = 0; looks < 8; looks++)
                wrong += differs(e, "before", epoll_wait(set, told, 4, 0), 0);
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (tcp_connect(FD, e->fam, e->port) != 0)
                wrong += differs(e, "connect", errno, EINPROGRESS);
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
            wrong += differs(e, "writable", MUST(epoll_wait(set, told, 4, PATIENCE_MS)), 1);
            wrong += differs(e, "events", told[0].events, EPOLLOUT) + differs(e, "data", told[0].data.u64, i);
            int error = -1;
            socklen_t n = sizeof error;
            MUST(getsockopt(FD, SOL_SOCKET, SO_ERROR, &error, &n));
            wrong += differs(e, "error", error, 0);
            wrong += differs(e, "once", epoll_wait(set, told, 4, 0), 0);
            wrong += differs(e, "flags", fcntl(FD, F_GETFL), O_RDWR | O_NONBLOCK);
            nonblocking(FD, 0);
        }
        wrong += use(e, i);
    }
    MUST(close(set));
    set = -1;
    say(e, "wrong: %d", wrong);
}

// What a server was told of and has not accepted is reset when it closes its listener.
static void left_in_the_queue(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        int port = 0, own = -1;
        if (e->role == S)
            own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 8, &port));
        share(e, S, &port, sizeof port);
        for (int n = 0; n < 3; n++) {
            before(e, 1);
            if (e->role == C) {
                FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
                MUST(tcp_connect(FD, e->fam, port));
            } else if (n < 2) {
                wrong += by_poll(e, own, 0);
            } else {
                wrong += differs(e, "told", await_events(e, own, POLLIN), POLLIN);
            }
            if (n < 2)
                wrong += use(e, n);
        }
        // Not before `connect` has returned, which tells of a reset that comes earlier.
        if (e->role == S) {
            await_go(e);
            MUST(close(own));
        } else {
            char c;
            go(e);
            wrong += differs(e, "recv", recv(FD, &c, 1, 0), -1) + differs(e, "errno", errno, ECONNRESET);
            MUST(close(FD));
            FD = -1;
        }
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(polled, BARE | TWO), CASE(polled_nonblocking, BARE | TWO), CASE(selected, BARE | TWO),
          CASE(level, BARE | TWO), CASE(edge, BARE | TWO), CASE(exclusive, BARE | TWO),
          CASE(one_shot, BARE | TWO), CASE(in_sets, BARE | TWO), CASE(connects_without_waiting, BARE | TWO | STEADY),
          CASE(left_in_the_queue, BARE | TWO))
