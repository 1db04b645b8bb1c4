// An upgrade in the middle of a call that waits, while the rest of the process,
// or its peer, goes on using the connection.
// path: shunted 20%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

static int set_with(int fd, unsigned what)
{
    struct epoll_event ev = {what, {.u64 = 1}};
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev))
        abort();
    return ep;
}

static int pending(int ep, int ms, unsigned *what)
{
    struct epoll_event ev = {0};
    int n = epoll_wait(ep, &ev, 1, ms);
    *what = n > 0 ? ev.events : 0;
    return n;
}

static void events_now(struct end *e, int ep, int ms)
{
    unsigned what;
    int n = pending(ep, ms, &what);
    say(e, "%d events %s", n, events(what));
}

// Calls that change nothing, as many as make the connection's upgrade due, and
// naps in which it can be paired.
static void churn(struct end *e)
{
    char c;
    for (int i = 0; i < 12; i++) {
        recv(FD, &c, 1, MSG_PEEK | MSG_DONTWAIT);
        nap();
    }
}

// Both sides come here; afterwards whatever can be upgraded is.
static void upgrade(struct end *e)
{
    for (int i = 0; i < 3; i++) {
        churn(e);
        meet(e);
    }
}

// Both directions, in order and complete.
static void talk(struct end *e)
{
    if (e->role == C) {
        produce(e, FD, 100000, 3);
        expect(e, FD, 100000, 4);
    } else {
        expect(e, FD, 100000, 3);
        produce(e, FD, 100000, 4);
    }
}

// ---- A thread that waits -----------------------------------------------------

enum { RECV, READ, RECVMSG, POLL, PPOLL, SELECT, LEVEL, EDGE, WAYS };
static const char *const ways[] = {"recv", "read", "recvmsg", "poll", "ppoll", "select", "level", "edge"};

struct waiter {
    struct end *e;
    int how, out;
    pthread_t thread;
    volatile pid_t tid;
    long result;
    unsigned seen;
};

static void *waits(void *arg)
{
    struct waiter *w = arg;
    struct end *e = w->e;
    char buf[64];
    memset(buf, 'x', sizeof buf);
    struct iovec v = {buf, sizeof buf};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {FD, w->out ? POLLOUT : POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(FD, &set);
    int ep = -1;
    if (w->how == LEVEL || w->how == EDGE) {
        ep = set_with(FD, (w->out ? EPOLLOUT : EPOLLIN) | (w->how == EDGE ? EPOLLET : 0));
        // What is ready now is not what the case is about.
        while (w->how == EDGE && pending(ep, 0, &w->seen) == 1)
            ;
    }
    __atomic_store_n(&w->tid, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    switch (w->how) {
    case RECV: w->result = w->out ? send(FD, buf, 1, 0) : recv(FD, buf, 1, 0); break;
    case READ: w->result = w->out ? write(FD, buf, 1) : read(FD, buf, 1); break;
    case RECVMSG:
        v.iov_len = 1;
        w->result = w->out ? sendmsg(FD, &m, 0) : recvmsg(FD, &m, 0);
        break;
    case POLL: w->result = poll(&p, 1, -1), w->seen = p.revents; break;
    case PPOLL: w->result = ppoll(&p, 1, NULL, NULL), w->seen = p.revents; break;
    case SELECT:
        w->result = select(FD + 1, w->out ? NULL : &set, w->out ? &set : NULL, NULL, NULL);
        w->seen = FD_ISSET(FD, &set);
        break;
    case LEVEL:
    case EDGE: w->result = pending(ep, -1, &w->seen); break;
    }
    if (ep >= 0)
        close(ep);
    return NULL;
}

static void begin(struct end *e, struct waiter *w, int how, int out)
{
    memset(w, 0, sizeof *w);
    w->e = e, w->how = how, w->out = out;
    MUST(pthread_create(&w->thread, NULL, waits, w));
    while (!__atomic_load_n(&w->tid, __ATOMIC_SEQ_CST))
        nap();
    await_sleep(e, e->pid, w->tid);
}

static void end(struct end *e, struct waiter *w)
{
    pthread_join(w->thread, NULL);
    say(e, "%s: %ld %s", ways[w->how], w->result, events(w->seen));
}

// The waiter has been told; take what it only saw.
static void take_one(struct end *e, const struct waiter *w)
{
    if (w->how >= POLL)
        T(recv(FD, (char[2]){0}, 1, MSG_DONTWAIT));
}

// ---- Waiting for something to come -------------------------------------------

static void wait_in(struct end *e, int how)
{
    struct waiter w;
    // The second time the upgrade has happened, if it could.
    for (int i = 0; i < 2; i++) {
        if (e->role == S)
            begin(e, &w, how, 0);
        upgrade(e);
        if (e->role == C)
            put(FD, "x", 1);
        else {
            end(e, &w);
            take_one(e, &w);
        }
        meet(e);
    }
    talk(e);
}
static void in_recv(struct end *e) { wait_in(e, RECV); }
static void in_read(struct end *e) { wait_in(e, READ); }
static void in_recvmsg(struct end *e) { wait_in(e, RECVMSG); }
static void in_poll(struct end *e) { wait_in(e, POLL); }
static void in_ppoll(struct end *e) { wait_in(e, PPOLL); }
static void in_select(struct end *e) { wait_in(e, SELECT); }
static void in_level(struct end *e) { wait_in(e, LEVEL); }
static void in_edge(struct end *e) { wait_in(e, EDGE); }

// The end of the stream, and a reset, while a thread waits across the upgrade.
static void end_in_poll(struct end *e)
{
    struct waiter w;
    if (e->role == S)
        begin(e, &w, POLL, 0);
    upgrade(e);
    if (e->role == C) {
        put(FD, "x", 1);
        close(FD), FD = -1;
    } else {
        end(e, &w);
        await_events(e, FD, POLLRDHUP);
        T(recv(FD, (char[4]){0}, 4, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

// While one thread waits across the upgrade, another's wait runs into a time limit.
static void other_gives_up(struct end *e)
{
    struct waiter w;
    for (int how = POLL; how < WAYS; how++) {
        if (e->role == S)
            begin(e, &w, how, 0);
        upgrade(e);
        if (e->role == S) {
            struct timeval t = {0, 10000}, none = {0, 0};
            MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
            T(recv(FD, (char[4]){0}, 1, 0));
            MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
        }
        meet(e);
        if (e->role == C)
            put(FD, "x", 1);
        else {
            end(e, &w);
            take_one(e, &w);
        }
        meet(e);
    }
    talk(e);
}

// While one thread waits across the upgrade, another takes the first byte.
static void other_is_faster(struct end *e)
{
    struct waiter w;
    for (int how = POLL; how < LEVEL; how++) {
        if (e->role == S)
            begin(e, &w, how, 0);
        upgrade(e);
        if (e->role == C)
            put(FD, "a", 1);
        else
            T(recv(FD, (char[4]){0}, 1, 0));
        meet(e);
        if (e->role == C)
            put(FD, "b", 1);
        else {
            end(e, &w);
            T(recv(FD, (char[4]){0}, 1, 0));
        }
        meet(e);
    }
    talk(e);
}

// ---- Waiting for room --------------------------------------------------------

static void wait_out(struct end *e, int how)
{
    struct waiter w;
    size_t total = 0;
    for (int i = 0; i < (how == RECV || how == EDGE ? 2 : 1); i++) {
        if (e->role == C) {
            total = stuff(e, FD, 1);
            begin(e, &w, how, 1);
        }
        share(e, C, &total, sizeof total);
        upgrade(e);
        if (e->role == S) {
            drain(e, FD, total, 1);
            if (how < POLL)
                T(recv(FD, (char[4]){0}, 1, 0));
        } else {
            end(e, &w);
        }
        meet(e);
    }
    talk(e);
}
static void out_send(struct end *e) { wait_out(e, RECV); }
static void out_sendmsg(struct end *e) { wait_out(e, RECVMSG); }
static void out_poll(struct end *e) { wait_out(e, POLL); }
static void out_select(struct end *e) { wait_out(e, SELECT); }
static void out_level(struct end *e) { wait_out(e, LEVEL); }
static void out_edge(struct end *e) { wait_out(e, EDGE); }

// ---- Edges, one-shots, sets of sets ------------------------------------------

// Waits that must find nothing, on both sides of the upgrade.
static void nothing_new(struct end *e, int ep)
{
    unsigned what;
    int found = 0;
    for (int i = 0; i < 3; i++) {
        if (e->role == S)
            for (int k = 0; k < 12; k++) {
                found += pending(ep, 0, &what) != 0;
                nap();
            }
        else
            churn(e);
        meet(e);
    }
    if (e->role == S)
        say(e, "%d repeated", found);
}

// An edge that has been reported is not reported again, whether the bytes behind
// it were read or not; one that has not been, is.
static void edges(struct end *e)
{
    int ep = -1;
    for (int unread = 0; unread < 2; unread++) {
        if (e->role == S && ep < 0) {
            ep = set_with(FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
            events_now(e, ep, 0);
        }
        meet(e);
        if (e->role == C)
            put(FD, "abc", 3);
        else {
            await_bytes(e, FD, 3);
            events_now(e, ep, PATIENCE_MS);
            if (!unread)
                T(recv(FD, (char[8]){0}, 8, 0));
        }
        meet(e);
        nothing_new(e, ep);
    }
    if (e->role == C)
        put(FD, "d", 1);
    else {
        await_bytes(e, FD, 4);
        events_now(e, ep, PATIENCE_MS);
        events_now(e, ep, 0);
        T(recv(FD, (char[8]){0}, 8, 0));
        close(ep);
    }
    meet(e);
    talk(e);
}

// The upgrade finds an edge that no wait has reported yet.
static void edge_waits(struct end *e)
{
    int ep = -1;
    if (e->role == S) {
        ep = set_with(FD, EPOLLIN | EPOLLET);
        events_now(e, ep, 0);
    }
    meet(e);
    if (e->role == C)
        put(FD, "abc", 3);
    else
        await_bytes(e, FD, 3);
    upgrade(e);
    if (e->role == S) {
        events_now(e, ep, 0);
        events_now(e, ep, 0);
    }
    meet(e);
    nothing_new(e, ep);
    if (e->role == C)
        put(FD, "d", 1);
    else {
        await_bytes(e, FD, 4);
        events_now(e, ep, PATIENCE_MS);
        T(recv(FD, (char[8]){0}, 8, 0));
        close(ep);
    }
    meet(e);
    talk(e);
}

static void one_shot(struct end *e)
{
    int ep = -1;
    struct epoll_event ev = {EPOLLIN | EPOLLONESHOT, {.u64 = 2}};
    if (e->role == C)
        put(FD, "abc", 3);
    else {
        ep = set_with(FD, EPOLLIN | EPOLLONESHOT);
        events_now(e, ep, PATIENCE_MS);
    }
    meet(e);
    nothing_new(e, ep);
    if (e->role == S) {
        T(epoll_ctl(ep, EPOLL_CTL_MOD, FD, &ev));
        events_now(e, ep, 0);
        events_now(e, ep, 0);
        T(recv(FD, (char[8]){0}, 8, 0));
        T(epoll_ctl(ep, EPOLL_CTL_MOD, FD, &ev));
    }
    meet(e);
    nothing_new(e, ep);
    if (e->role == C)
        put(FD, "d", 1);
    else {
        events_now(e, ep, PATIENCE_MS);
        T(recv(FD, (char[8]){0}, 8, 0));
        close(ep);
    }
    meet(e);
    talk(e);
}

// A thread polls, or waits on, a set whose only member is upgraded meanwhile.
static void *waits_for_set(void *arg)
{
    struct waiter *w = arg;
    struct pollfd p = {w->out, POLLIN, 0};
    __atomic_store_n(&w->tid, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    if (w->how == POLL)
        w->result = poll(&p, 1, -1), w->seen = p.revents;
    else
        w->result = pending(w->out, -1, &w->seen);
    return NULL;
}

static void in_nested(struct end *e)
{
    for (int how = POLL; how <= LEVEL; how += LEVEL - POLL) {
        struct waiter w = {.e = e, .how = how};
        int in = -1, out = -1;
        if (e->role == S) {
            in = set_with(FD, EPOLLIN), out = set_with(in, EPOLLIN);
            w.out = how == POLL ? in : out;
            MUST(pthread_create(&w.thread, NULL, waits_for_set, &w));
            while (!__atomic_load_n(&w.tid, __ATOMIC_SEQ_CST))
                nap();
            await_sleep(e, e->pid, w.tid);
        }
        upgrade(e);
        // Another thread is faster once: the waiter may see that or not.
        if (e->role == C)
            put(FD, "a", 1);
        else
            T(recv(FD, (char[4]){0}, 1, 0));
        meet(e);
        if (e->role == C)
            put(FD, "b", 1);
        else {
            end(e, &w);
            T(recv(FD, (char[4]){0}, 1, 0));
            close(in), close(out);
        }
        meet(e);
    }
    talk(e);
}

// ---- A registration that comes and goes ---------------------------------------

enum { TURNS = 300 };

static void *answers(void *arg)
{
    struct waiter *w = arg;
    char c;
    for (int i = 0; i < TURNS; i++)
        w->result += get(w->e->fd, &c, 1) == 1 && put(w->e->fd, &c, 1) == 1;
    __atomic_store_n(&w->tid, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

// Taken out of the set, the connection is another thread's, which blocks in it;
// taken back, it is the set's again.
static void comes_and_goes(struct end *e)
{
    struct waiter w = {.e = e};
    char c = 'x';
    int ep = -1, wrong = 0;
    unsigned what;
    for (int round = 0; round < 3; round++) {
        if (e->role == C) {
            for (int i = 0; i < TURNS; i++)
                wrong += put(FD, &c, 1) != 1 || get(FD, &c, 1) != 1;
            say(e, "%d wrong", wrong);
        } else {
            struct epoll_event ev = {EPOLLIN, {.u64 = 1}};
            if (ep < 0)
                ep = set_with(FD, EPOLLIN);
            MUST(epoll_ctl(ep, EPOLL_CTL_DEL, FD, NULL));
            w.result = w.tid = 0;
            MUST(pthread_create(&w.thread, NULL, answers, &w));
            for (int i = 0; !__atomic_load_n(&w.tid, __ATOMIC_SEQ_CST); i++) {
                wrong += pending(ep, i % 2, &what) != 0;
                if (i % 3 == 0) {
                    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
                    MUST(epoll_ctl(ep, EPOLL_CTL_DEL, FD, NULL));
                }
            }
            pthread_join(w.thread, NULL);
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
            say(e, "%ld answered, %d wrong", w.result, wrong);
            events_now(e, ep, 0);
        }
        meet(e);
        if (e->role == C)
            put(FD, "z", 1);
        else {
            events_now(e, ep, PATIENCE_MS);
            T(recv(FD, &c, 1, 0));
        }
        meet(e);
    }
    if (ep >= 0)
        close(ep);
    talk(e);
}

// ---- Ends ----------------------------------------------------------------------

// The answer's doorbell is still on its way when its receiver, which did not need
// it, closes: an end of file all the same, and every byte before it.
static void close_under_doorbell(struct end *e)
{
    enum { TIMES = 60 };
    int ends = 0, bytes = 0;
    char buf[16];
    for (int i = 0; i < TIMES; i++) {
        if (e->role == C) {
            FD = tcp_socket(e->fam, SOCK_CLOEXEC);
            MUST(tcp_connect(FD, e->fam, e->port));
            for (int k = 0; k < 4 + i % 12; k++)
                bytes += put(FD, "ping", 4) + get(FD, buf, 4);
            put(FD, "bye", 3);
            close(FD), FD = -1;
            ends++;
        } else {
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            for (int k = 0; k < 4 + i % 12; k++)
                bytes += get(FD, buf, 4) + put(FD, "pong", 4);
            bytes += get(FD, buf, 3);
            ends += recv(FD, buf, 1, 0) == 0;
            close(FD), FD = -1;
        }
    }
    say(e, "%d ends, %d bytes", ends, bytes);
}

// A peer that has shut down its sending half is killed: a sender hears of it,
// whatever room there was.
static void killed_half_closed(struct end *e)
{
    char buf[16], block[1000] = {0};
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 20);
            shutdown(fd, SHUT_WR);
            get(fd, buf, 1);
            pause();
        }
        await_go(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        go(e);
    } else {
        int sent = 0;
        answer_child(e, 20);
        T(recv(FD, buf, 1, 0));
        for (int i = 0; i < 10; i++)
            sent += send(FD, block, sizeof block, 0) == sizeof block;
        say(e, "%d sent", sent);
        meet(e);
        // No count: while shuntd looks at the peer's socket, the kernel has not closed that yet.
        while (send(FD, block, sizeof block, MSG_NOSIGNAL) > 0)
            ;
        say(e, "ended: %s", errname(errno));
    }
}

static void *polls_for_little(void *arg)
{
    struct waiter *w = arg;
    struct pollfd p = {w->e->fd, w->out ? POLLPRI : 0, 0};
    __atomic_store_n(&w->tid, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    w->result = poll(&p, 1, PATIENCE_MS);
    w->seen = p.revents;
    return NULL;
}

// A peer is killed with bytes unread, while threads poll for nothing since before the upgrade: they are told of the reset.
static void killed_under_poll_for_little(struct end *e)
{
    char buf[4];
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            child_asks(e, 20);
            pause();
        }
        await_go(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        return;
    }
    struct waiter w[2];
    answer_child(e, 1);
    for (int i = 0; i < 2; i++) {
        w[i] = (struct waiter){.e = e, .out = i};
        MUST(pthread_create(&w[i].thread, NULL, polls_for_little, &w[i]));
        while (!__atomic_load_n(&w[i].tid, __ATOMIC_SEQ_CST))
            nap();
        await_sleep(e, e->pid, w[i].tid);
    }
    for (int i = 1; i < 20; i++) {
        get(FD, buf, 4);
        put(FD, "pong", 4);
    }
    put(FD, "unread", 6);
    await_acknowledged(e);
    go(e);
    for (int i = 0; i < 2; i++) {
        pthread_join(w[i].thread, NULL);
        say(e, "%s: %ld, %s", i ? "urgent" : "nothing", w[i].result, w[i].seen & (POLLERR | POLLHUP) ? "told" : "not told");
    }
}

// ---- New connections -------------------------------------------------------------

static void *accepts(void *arg)
{
    struct waiter *w = arg;
    __atomic_store_n(&w->tid, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    w->result = accept4(w->e->lfd, NULL, NULL, SOCK_CLOEXEC);
    return NULL;
}

// A thread sleeps in accept while the listener's first connection is upgraded.
static void in_accept(struct end *e)
{
    struct waiter w = {.e = e};
    int first = FD;
    if (e->role == S) {
        MUST(pthread_create(&w.thread, NULL, accepts, &w));
        while (!__atomic_load_n(&w.tid, __ATOMIC_SEQ_CST))
            nap();
        await_sleep(e, e->pid, w.tid);
    }
    upgrade(e);
    talk(e);
    meet(e);
    if (e->role == C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        MUST(tcp_connect(FD, e->fam, e->port));
    } else {
        pthread_join(w.thread, NULL);
        FD = w.result;
    }
    talk(e);
    close(FD);
    FD = first;
    talk(e);
}

#define IN_THE_MIDDLE (TWO | ONLY_COLD)
DIFF_MAIN(CASE(in_recv, IN_THE_MIDDLE | ALL), CASE(in_read, IN_THE_MIDDLE), CASE(in_recvmsg, IN_THE_MIDDLE),
          CASE(in_poll, IN_THE_MIDDLE | ALL), CASE(in_ppoll, IN_THE_MIDDLE), CASE(in_select, IN_THE_MIDDLE),
          CASE(in_level, IN_THE_MIDDLE | ALL), CASE(in_edge, IN_THE_MIDDLE | ALL), CASE(end_in_poll, IN_THE_MIDDLE),
          CASE(other_gives_up, IN_THE_MIDDLE), CASE(other_is_faster, IN_THE_MIDDLE),
          CASE(out_send, IN_THE_MIDDLE), CASE(out_sendmsg, IN_THE_MIDDLE),
          CASE(out_poll, IN_THE_MIDDLE), CASE(out_select, IN_THE_MIDDLE),
          CASE(out_level, IN_THE_MIDDLE), CASE(out_edge, IN_THE_MIDDLE), CASE(edges, IN_THE_MIDDLE | ALL | STEADY),
          CASE(edge_waits, IN_THE_MIDDLE | STEADY), CASE(one_shot, IN_THE_MIDDLE), CASE(in_nested, IN_THE_MIDDLE),
          CASE(comes_and_goes, TWO | COLD), CASE(close_under_doorbell, TWO | BARE | ALL),
          CASE(killed_half_closed, SPLIT | BARE), CASE(killed_under_poll_for_little, SPLIT | BARE), CASE(in_accept, IN_THE_MIDDLE))
