// epoll: every kind of registration, in every order, alone and nested.
// path: shunted 20%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <sys/resource.h>

#define MAGIC 0xfedcba9876543210ull

static int set_of(void)
{
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (ep < 0)
        abort();
    return ep;
}

static long add(int ep, int fd, unsigned what, uint64_t data)
{
    struct epoll_event ev = {what, {.u64 = data}};
    return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
}
static long mod(int ep, int fd, unsigned what, uint64_t data)
{
    struct epoll_event ev = {what, {.u64 = data}};
    return epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev);
}
static long del(int ep, int fd) { return epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL); }

// Print what a wait reports, sorted by data: the order is checked elsewhere.
static int by_data(const void *a, const void *b)
{
    const struct epoll_event *x = a, *y = b;
    return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}
static int wait_for(struct end *e, int ep, int max, int ms)
{
    struct epoll_event got[64];
    int n = epoll_wait(ep, got, max, ms);
    if (n < 0) {
        say(e, "epoll_wait: %s", errname(errno));
        return n;
    }
    qsort(got, n, sizeof *got, by_data);
    char text[512];
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof text; i++)
        used += snprintf(text + used, sizeof text - used, " %llx:%s", (unsigned long long)got[i].data.u64,
                         events(got[i].events));
    say(e, "%d events%s", n, n ? text : "");
    return n;
}
#define NOW(ep) wait_for(e, ep, 64, 0)
#define SOON(ep) wait_for(e, ep, 64, PATIENCE_MS)

static void level(struct end *e)
{
    char buf[8];
    static int ep;
    AT(S) {
        ep = set_of();
        T(add(ep, FD, EPOLLIN, MAGIC));
        NOW(ep);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 1, 0));
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        NOW(ep);
        T(mod(ep, FD, EPOLLIN | EPOLLOUT, 7));
        NOW(ep);
        NOW(ep);
        T(mod(ep, FD, 0, 8));
        NOW(ep);
        T(mod(ep, FD, EPOLLRDHUP, 9));
        NOW(ep);
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        SOON(ep);
        NOW(ep);
        T(mod(ep, FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, 10));
        NOW(ep);
        T(shutdown(FD, SHUT_WR));
        SOON(ep);
        T(mod(ep, FD, 0, 11));
        NOW(ep);
        close(ep);
    }
}

// The peer's end has come, of which the kernel tells a set twice in a row; what asks for the socket's lock is behind that.
static void await_end(struct end *e)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    await_events(e, FD, POLLRDHUP);
    MUST(getsockopt(FD, IPPROTO_TCP, TCP_INFO, &info, &n));
}

static void edge(struct end *e)
{
    char buf[8];
    static int ep;
    AT(S) {
        ep = set_of();
        T(add(ep, FD, EPOLLIN | EPOLLET | EPOLLRDHUP, MAGIC));
        NOW(ep);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 1, 0));
        NOW(ep);
    }
    // More arrives although not everything was read: a new event.
    AT(C) T(send(FD, "def", 3, 0));
    AT(S) {
        await_bytes(e, FD, 5);
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        NOW(ep);
    }
    AT(C) T(send(FD, "g", 1, 0));
    AT(S) {
        SOON(ep);
        NOW(ep);
        // Modifying re-arms.
        T(mod(ep, FD, EPOLLIN | EPOLLET, 5));
        NOW(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        await_end(e);
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        NOW(ep);
        close(ep);
    }
}

static void edge_both(struct end *e)
{
    char buf[8];
    static int ep;
    AT(S) {
        ep = set_of();
        T(add(ep, FD, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 3));
        NOW(ep);
        NOW(ep);
        // Sending with room left makes no event.
        T(send(FD, "x", 1, 0));
    }
    AT(C) T(recv(FD, buf, 8, 0));
    AT(S) NOW(ep);
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        NOW(ep);
    }
    AT(C) close(FD), FD = -1;
    AT(S) {
        SOON(ep);
        NOW(ep);
        close(ep);
    }
}

// What is added is told once, also by a wait soon after others that have found nothing.
static void edge_added(struct end *e)
{
    AT(C) {
        struct epoll_event ev;
        int ep = set_of(), copies[3];
        T(add(ep, FD, EPOLLIN, 1));
        for (int i = 0; i < 3; i++) {
            copies[i] = MUST(dup(FD));
            for (int looks = 0; looks < 8; looks++)
                MUST(epoll_wait(ep, &ev, 1, 0));
            MUST(add(ep, copies[i], EPOLLOUT | EPOLLET, 2 + i));
            SOON(ep);
            NOW(ep);
        }
        for (int i = 0; i < 3; i++)
            close(copies[i]);
        close(ep);
    }
}

// Upgraded after the first event.
static void edge_both_in_the_middle(struct end *e) { edge_both(e); }

static void edge_full(struct end *e)
{
    size_t total = 0;
    static int ep;
    AT(C) {
        ep = set_of();
        T(add(ep, FD, EPOLLOUT | EPOLLET, 3));
        NOW(ep);
        total = stuff(e, FD, 1);
        T(send(FD, "x", 1, MSG_DONTWAIT));
        // The kernel may have found room once more while it was filled.
        struct epoll_event ev;
        while (epoll_wait(ep, &ev, 1, 0) == 1)
            ;
        T(send(FD, "x", 1, MSG_DONTWAIT));
        NOW(ep);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 1);
    AT(C) {
        SOON(ep);
        T(send(FD, "x", 1, MSG_DONTWAIT));
        close(ep);
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

static void level_full(struct end *e)
{
    size_t total = 0;
    static int ep;
    AT(C) {
        ep = set_of();
        T(add(ep, FD, EPOLLOUT, 3));
        NOW(ep);
        total = stuff(e, FD, 1);
        NOW(ep);
        wait_for(e, ep, 8, 20);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 1);
    AT(C) {
        SOON(ep);
        NOW(ep);
        close(ep);
    }
}

static void take_in(struct end *e, size_t n)
{
    while (n > 0)
        n -= MUST(recv(FD, scratch(), n < SCRATCH ? n : SCRATCH, 0));
}

static int is_told_of_room(int ep, int ms)
{
    struct epoll_event ev[2];
    int told = 0;
    for (int n = epoll_wait(ep, ev, 2, ms); n > 0; n--)
        told |= ev[n - 1].data.u64 == 3;
    return told;
}

// Who waits for room is told of it, also if something else has looked at the connection when there was just enough.
static void looked_at_when_full(struct end *e, unsigned kind, int by_poll)
{
    static int ep, copy, told;
    size_t total = 0;
    AT(C) {
        ep = set_of();
        copy = MUST(dup(FD));
        T(add(ep, FD, EPOLLIN, 2));
        T(add(ep, copy, EPOLLOUT | kind, 3));
        total = stuff(e, FD, 1);
        while (is_told_of_room(ep, 0))
            ;
        T(send(FD, "x", 1, MSG_DONTWAIT));
    }
    share(e, C, &total, sizeof total);
    if (!by_poll) {
        AT(S) T(send(FD, "unread", 6, 0));
        AT(C) {
            await_bytes(e, FD, 6);
            is_told_of_room(ep, 0);
        }
    }
    AT(S) take_in(e, total / 100 * 35);
    AT(C) {
        struct pollfd p = {FD, POLLIN, 0};
        told = 0;
        if (by_poll)
            T(poll(&p, 1, 0));
        else
            for (int i = 0; i < 3; i++)
                told |= is_told_of_room(ep, 0);
    }
    AT(S) take_in(e, total - total / 100 * 35);
    AT(C) {
        T(recv(FD, (char[8]){0}, 8, MSG_DONTWAIT));
        // By edges it may have been told before.
        say(e, "told %d", told || is_told_of_room(ep, PATIENCE_MS));
        close(ep);
        close(copy);
    }
}
static void looked_at_by_poll_when_full(struct end *e)
{
    looked_at_when_full(e, 0, 1);
    looked_at_when_full(e, EPOLLET, 1);
}
static void looked_at_by_set_when_full(struct end *e) { looked_at_when_full(e, EPOLLET, 0); }

static void one_shot(struct end *e)
{
    char buf[8];
    static int ep;
    AT(S) {
        ep = set_of();
        T(add(ep, FD, EPOLLIN | EPOLLONESHOT, 4));
        NOW(ep);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(ep);
        NOW(ep);
    }
    AT(C) T(send(FD, "def", 3, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        NOW(ep);
        T(mod(ep, FD, EPOLLIN | EPOLLONESHOT, 5));
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        T(mod(ep, FD, EPOLLIN | EPOLLONESHOT | EPOLLET, 6));
        NOW(ep);
    }
    AT(C) T(send(FD, "g", 1, 0));
    AT(S) {
        SOON(ep);
        T(recv(FD, buf, 8, 0));
        T(add(ep, FD, EPOLLIN, 1));
        T(del(ep, FD));
        T(del(ep, FD));
    }
    // Disarmed registrations report not even the end.
    AT(C) close(FD), FD = -1;
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(add(ep, FD, EPOLLIN | EPOLLONESHOT, 7));
        SOON(ep);
        NOW(ep);
        close(ep);
    }
}

static void errors(struct end *e)
{
    AT(S) {
        int ep = set_of(), other = set_of(), p[2];
        struct epoll_event ev = {EPOLLIN, {.u64 = 1}};
        MUST(pipe2(p, O_CLOEXEC));
        int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
        T(add(ep, FD, EPOLLIN, 1));
        T(add(ep, FD, EPOLLIN, 1));
        T(mod(ep, e->lfd, EPOLLIN, 1));
        T(del(ep, e->lfd));
        T(add(ep, -1, EPOLLIN, 1));
        T(add(-1, FD, EPOLLIN, 1));
        T(add(ep, ep, EPOLLIN, 1));
        T(add(FD, ep, EPOLLIN, 1));
        T(add(p[0], FD, EPOLLIN, 1));
        int regular = open(".", O_RDONLY | O_CLOEXEC);
        T(add(ep, regular, EPOLLIN, 1));
        T(add(ep, file, EPOLLIN, 1) == 0 || errno == EPERM);
        T(epoll_ctl(ep, 99, FD, &ev));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], NULL));
        T(epoll_ctl(ep, EPOLL_CTL_MOD, FD, (struct epoll_event *)8));
        T(add(ep, other, EPOLLIN, 2));
        T(add(other, ep, EPOLLIN, 2));
        T(add(ep, p[0], EPOLLIN | EPOLLEXCLUSIVE, 3));
        T(mod(ep, p[0], EPOLLIN, 3));
        T(mod(ep, FD, EPOLLIN | EPOLLEXCLUSIVE, 3));
        T(add(ep, p[1], EPOLLEXCLUSIVE | EPOLLONESHOT | EPOLLIN, 3));
        T(add(ep, FD, EPOLLEXCLUSIVE | EPOLLRDHUP | EPOLLIN, 3));
        T(add(ep, FD, EPOLLEXCLUSIVE | EPOLLIN, 3));
        T(epoll_wait(ep, &ev, 0, 0));
        T(epoll_wait(ep, &ev, -1, 0));
        T(epoll_wait(ep, &ev, INT_MAX, 0));
        T(epoll_wait(FD, &ev, 1, 0));
        T(epoll_wait(-1, &ev, 1, 0));
        T(epoll_wait(p[0], &ev, 1, 0));
        T(mod(ep, FD, EPOLLOUT, 3));
        T(epoll_wait(ep, (struct epoll_event *)8, 1, 0));
        T(epoll_wait(ep, &ev, 1, 0));
        OK(epoll_create1(12345));
#ifndef VIA_SYSCALL
        OK(epoll_create(0));
        OK(epoll_create(-1));
#endif
        close(file), close(regular), close(p[0]), close(p[1]), close(ep), close(other);
    }
}

static void too_deep(struct end *e)
{
    AT(S) {
        int set[7];
        for (int i = 0; i < 7; i++)
            set[i] = set_of();
        T(add(set[0], FD, EPOLLOUT, 1));
        for (int i = 1; i < 7; i++)
            T(add(set[i], set[i - 1], EPOLLIN, i));
        for (int i = 0; i < 6; i++)
            NOW(set[i]);
        for (int i = 0; i < 7; i++)
            close(set[i]);
    }
}

// The same of a set whose connection was copied, and closed by the number that was added.
static void too_deep_copied(struct end *e)
{
    AT(S) {
        int set[6], p[2], copy;
        MUST(pipe2(p, O_CLOEXEC));
        for (int i = 0; i < 6; i++)
            set[i] = set_of();
        T(add(set[0], FD, EPOLLOUT, 1));
        copy = MUST(dup(FD));
        MUST(dup2(p[0], FD));
        for (int i = 1; i < 6; i++)
            T(add(set[i], set[i - 1], EPOLLIN, i));
        T(add(set[0], FD, EPOLLIN, 7));
        MUST(write(p[1], "p", 1));
        NOW(set[0]);
        MUST(dup2(copy, FD));
        for (int i = 0; i < 6; i++)
            close(set[i]);
        close(copy), close(p[0]), close(p[1]);
    }
}

// It is heard of in the set around.
static void too_deep_heard(struct end *e)
{
    static int set[6], p[2], copy;
    AT(S) {
        MUST(pipe2(p, O_CLOEXEC));
        for (int i = 0; i < 6; i++)
            set[i] = set_of();
        T(add(set[0], FD, EPOLLIN | EPOLLRDHUP, 1));
        copy = MUST(dup(FD));
        MUST(dup2(p[0], FD));
        for (int i = 1; i < 6; i++)
            T(add(set[i], set[i - 1], EPOLLIN, i));
        NOW(set[1]);
    }
    AT(C) T(send(FD, "news", 4, 0));
    AT(S) {
        SOON(set[1]);
        NOW(set[0]);
        T(recv(copy, (char[8]){0}, 8, 0));
        NOW(set[1]);
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        SOON(set[1]);
        NOW(set[0]);
        MUST(dup2(copy, FD));
        for (int i = 0; i < 6; i++)
            close(set[i]);
        close(copy), close(p[0]), close(p[1]);
    }
}

// And of one whose connection was taken out: it makes nothing ready.
static void too_deep_removed(struct end *e)
{
    AT(S) {
        int set[6];
        for (int i = 0; i < 6; i++)
            set[i] = set_of();
        T(add(set[0], FD, EPOLLOUT, 1));
        NOW(set[0]);
        T(epoll_ctl(set[0], EPOLL_CTL_DEL, FD, NULL));
        for (int i = 1; i < 6; i++)
            T(add(set[i], set[i - 1], EPOLLIN, i));
        T(poll(&(struct pollfd){set[0], POLLIN, 0}, 1, 0));
        NOW(set[1]);
        T(add(set[0], FD, EPOLLOUT, 2));
        NOW(set[1]);
        NOW(set[0]);
        for (int i = 0; i < 6; i++)
            close(set[i]);
    }
}

static void nested(struct end *e)
{
    char buf[8];
    static int in, out;
    AT(S) {
        in = set_of(), out = set_of();
        T(add(in, FD, EPOLLIN, 1));
        T(add(out, in, EPOLLIN, 2));
        NOW(out);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(out);
        struct pollfd p[2] = {{in, POLLIN, 0}, {out, POLLIN, 0}};
        T(poll(p, 2, -1));
        say(e, "%s %s", events(p[0].revents), events(p[1].revents));
        fd_set r;
        FD_ZERO(&r);
        FD_SET(in, &r);
        FD_SET(out, &r);
        T(select((in > out ? in : out) + 1, &r, NULL, NULL, NULL));
        NOW(in);
        NOW(out);
        T(recv(FD, buf, 8, 0));
        NOW(out);
        NOW(in);
        T(poll(p, 2, 0));
        T(mod(out, in, EPOLLIN | EPOLLET, 3));
    }
    AT(C) T(send(FD, "d", 1, 0));
    AT(S) {
        SOON(out);
        NOW(out);
        NOW(in);
        T(recv(FD, buf, 8, 0));
        close(in);
        NOW(out);
        T(add(out, FD, EPOLLIN, 4));
    }
    AT(C) T(send(FD, "e", 1, 0));
    AT(S) {
        SOON(out);
        close(out);
    }
}

// Asleep in an outer set, woken through an inner one.
static void nested_wakes(struct end *e)
{
    if (e->role == S) {
        int in = set_of(), out = set_of();
        struct pollfd p = {out, POLLIN, 0};
        add(in, FD, EPOLLIN, 1);
        add(out, in, EPOLLIN, 2);
        for (int i = 0; i < 3; i++) {
            fd_set r;
            FD_ZERO(&r);
            FD_SET(in, &r);
            will_block(e);
            if (i == 0)
                SOON(out);
            else if (i == 1)
                T(poll(&p, 1, -1));
            else
                T(select(in + 1, &r, NULL, NULL, NULL));
            T(recv(FD, (char[8]){0}, 8, 0));
        }
        close(in), close(out);
    } else {
        for (int i = 0; i < 3; i++) {
            await_blocked(e);
            T(send(FD, "abc", 3, 0));
        }
    }
}

static void several_sets(struct end *e)
{
    char buf[8];
    static int a, b, c;
    AT(S) {
        a = set_of(), b = set_of(), c = set_of();
        T(add(a, FD, EPOLLIN, 1));
        T(add(b, FD, EPOLLIN | EPOLLET, 2));
        T(add(c, FD, EPOLLIN | EPOLLOUT, 3));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(a);
        SOON(b);
        await_bytes(e, FD, 3);
        SOON(c);
        NOW(a);
        NOW(b);
        T(recv(FD, buf, 8, 0));
        NOW(a);
        NOW(b);
        NOW(c);
        T(del(a, FD));
    }
    AT(C) T(send(FD, "def", 3, 0));
    AT(S) {
        SOON(b);
        NOW(a);
        close(b);
        await_bytes(e, FD, 3);
        NOW(c);
        T(recv(FD, buf, 8, 0));
        close(a), close(c);
    }
}

// Two numbers of one connection are two registrations.
static void with_dup(struct end *e)
{
    char buf[8];
    static int ep, other, saved;
    AT(S) {
        ep = set_of(), other = MUST(dup(FD));
        T(add(ep, FD, EPOLLIN, 1));
        T(add(ep, other, EPOLLIN, 2));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        SOON(ep);
        T(mod(ep, other, EPOLLOUT, 3));
        NOW(ep);
        T(del(ep, other));
        NOW(ep);
        // The registration belongs to the connection: it outlives its number.
        T(recv(FD, buf, 8, 0));
        saved = FD;
        close(FD);
        T(del(ep, saved));
        T(mod(ep, saved, EPOLLOUT, 4));
        FD = other;
    }
    AT(C) T(send(FD, "def", 3, 0));
    AT(S) {
        SOON(ep);
        T(add(ep, FD, EPOLLIN, 5));
        NOW(ep);
        close(FD), FD = -1;
        NOW(ep);
        close(ep);
    }
}

static void close_removes(struct end *e)
{
    static int ep;
    AT(S) {
        ep = set_of();
        T(add(ep, FD, EPOLLIN, 1));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(ep);
        int number = FD;
        close(FD);
        NOW(ep);
        T(del(ep, number));
        // The number's next owner starts without a registration.
        int again = MUST(fcntl(e->lfd, F_DUPFD_CLOEXEC, number));
        say(e, "same number: %d", again == number);
        T(mod(ep, again, EPOLLIN, 2));
        T(add(ep, again, EPOLLIN, 3));
        NOW(ep);
        close(again);
        close(ep);
        FD = -1;
    }
    AT(C) {
        await_events(e, FD, POLLERR);
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

static void reset_and_end(struct end *e)
{
    static int lt, et, quiet;
    AT(S) {
        lt = set_of(), et = set_of(), quiet = set_of();
        T(add(lt, FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1));
        T(add(et, FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2));
        T(add(quiet, FD, 0, 3));
        NOW(et);
        NOW(quiet);
    }
    AT(C) {
        struct linger l = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(FD), FD = -1;
    }
    AT(S) {
        await_over(e);
        SOON(lt);
        SOON(et);
        SOON(quiet);
        NOW(et);
        T(recv(FD, (char[4]){0}, 4, 0));
        NOW(lt);
        NOW(et);
        NOW(quiet);
        close(lt), close(et), close(quiet);
    }
}

static void end_after_data(struct end *e)
{
    static int lt, et;
    AT(S) {
        lt = set_of(), et = set_of();
        T(add(lt, FD, EPOLLIN | EPOLLRDHUP, 1));
        T(add(et, FD, EPOLLIN | EPOLLRDHUP | EPOLLET, 2));
    }
    AT(C) {
        T(send(FD, "abc", 3, 0));
        close(FD), FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        SOON(lt);
        SOON(et);
        NOW(et);
        T(recv(FD, (char[4]){0}, 4, 0));
        NOW(lt);
        NOW(et);
        T(recv(FD, (char[4]){0}, 4, 0));
        NOW(lt);
        NOW(et);
        close(lt), close(et);
    }
}

// Registered before the connection exists, and before it is established.
static void before_connect(struct end *e)
{
    static int ep;
    char buf[8];
    AT(C) {
        ep = set_of();
        FD = tcp_socket(e->fam, SOCK_NONBLOCK | SOCK_CLOEXEC);
        T(add(ep, FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP, MAGIC));
        NOW(ep);
        T(tcp_connect(FD, e->fam, e->port));
        SOON(ep);
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    AT(C) NOW(ep);
    AT(S) T(send(FD, "abc", 3, 0));
    AT(C) {
        await_bytes(e, FD, 3);
        NOW(ep);
        T(mod(ep, FD, EPOLLIN | EPOLLET, MAGIC + 1));
        NOW(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
    }
    AT(S) T(send(FD, "def", 3, 0));
    AT(C) {
        SOON(ep);
        NOW(ep);
        T(recv(FD, buf, 8, 0));
        T(del(ep, FD));
        T(del(ep, FD));
        close(ep);
    }
}

// Edge-triggered registration from accept on, across the warm-up.
static void across_warm_up(struct end *e)
{
    static int ep;
    char buf[8];
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        ep = set_of();
        T(add(ep, FD, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
        SOON(ep);
    }
    for (int i = 0; i < 12; i++) {
        AT(C) MUST(send(FD, "ping", 4, 0));
        AT(S) {
            SOON(ep);
            T(recv(FD, buf, 8, 0));
            T(recv(FD, buf, 8, 0));
            NOW(ep);
            T(send(FD, "pong", 4, 0));
        }
        AT(C) get(FD, buf, 4);
    }
    AT(S) T(mod(ep, FD, EPOLLIN, 2));
    AT(C) MUST(send(FD, "ping", 4, 0));
    AT(S) {
        SOON(ep);
        T(epoll_ctl(ep, EPOLL_CTL_DEL, FD, &(struct epoll_event){0}));
        NOW(ep);
        close(ep);
    }
}

// A wait tells of `count` at once.
static void await_told(struct end *e, int ep, int count)
{
    struct epoll_event ev[64];
    long long end = now_ms() + PATIENCE_MS;
    while (epoll_wait(ep, ev, 64, PATIENCE_MS) < count)
        if (now_ms() > end) {
            IN_VAIN("waited in vain for %d events", count);
            return;
        }
}

// Fewer places than ready descriptors: in the end each had its turn. (Those that are still on TCP and those in shared memory
// have half of the places each, so it may not have had as many turns as another one.)
static void rotation(struct end *e)
{
    enum { N = 6 };
    static int more[N], ep;
    AT(C)
        for (int i = 0; i < N; i++) {
            more[i] = tcp_socket(e->fam, SOCK_CLOEXEC);
            MUST(tcp_connect(more[i], e->fam, e->port));
        }
    static int accepted[N];
    AT(S) {
        ep = set_of();
        for (int i = 0; i < N; i++) {
            accepted[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            MUST(add(ep, accepted[i], EPOLLIN, i));
        }
    }
    for (int round = 0; round < 3; round++) {
        AT(C)
            for (int i = 0; i < N; i++)
                MUST(send(more[i], "x", 1, 0));
        AT(S)
            for (int i = 0; i < N; i++)
                await_bytes(e, accepted[i], 1);
        AT(S) {
            int seen[N] = {0}, all = 0;
            struct epoll_event ev[2];
            await_told(e, ep, N);
            for (int i = 0; i < N; i++) {
                int n = epoll_wait(ep, ev, 2, 1000);
                all += n;
                for (int k = 0; k < n; k++)
                    seen[ev[k].data.u64]++;
            }
            say(e, "%d events, seen:%s%s%s%s%s%s", all, seen[0] ? " 0" : "", seen[1] ? " 1" : "", seen[2] ? " 2" : "",
                seen[3] ? " 3" : "", seen[4] ? " 4" : "", seen[5] ? " 5" : "");
            for (int i = 0; i < N; i++)
                MUST(recv(accepted[i], (char[4]){0}, 4, 0));
            NOW(ep);
        }
    }
    AT(C) for (int i = 0; i < N; i++) close(more[i]);
    AT(S) {
        for (int i = 0; i < N; i++)
            close(accepted[i]);
        close(ep);
    }
}

// A signal mask in force exactly as long as the call.
static void masks(struct end *e)
{
    AT(S) {
        int ep = set_of();
        struct epoll_event ev;
        struct timespec zero = {0, 0}, some = {0, 10000000}, bad = {0, 2000000000};
        sigset_t block, old, none;
        sigemptyset(&none);
        sigemptyset(&block);
        sigaddset(&block, SIGUSR1);
        handle(SIGUSR1, count_hit, 0);
        hits = 0;
        add(ep, FD, EPOLLIN, 1);
        pthread_sigmask(SIG_BLOCK, &block, &old);
        pthread_kill(pthread_self(), SIGUSR1);
        T(epoll_wait(ep, &ev, 1, 0));
        say(e, "%d signals", (int)hits);
        T(epoll_pwait(ep, &ev, 1, 0, &block));
        say(e, "%d signals", (int)hits);
        T(epoll_pwait(ep, &ev, 1, -1, &none));
        say(e, "%d signals", (int)hits);
        pthread_kill(pthread_self(), SIGUSR1);
        T(epoll_pwait2(ep, &ev, 1, NULL, &none));
        say(e, "%d signals", (int)hits);
        T(epoll_pwait2(ep, &ev, 1, &zero, &none));
        T(epoll_pwait2(ep, &ev, 1, &some, NULL));
        T(epoll_pwait2(ep, &ev, 1, &bad, NULL));
        T(epoll_pwait(ep, &ev, 1, 10, NULL));
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        close(ep);
    }
}

static void time_limits(struct end *e)
{
    AT(S) {
        int ep = set_of();
        struct epoll_event ev;
        add(ep, FD, EPOLLIN, 1);
        long long start = now_ms();
        T(epoll_wait(ep, &ev, 1, 15));
        T(epoll_pwait(ep, &ev, 1, 15, NULL));
        struct timespec t = {0, 15000000};
        T(epoll_pwait2(ep, &ev, 1, &t, NULL));
        say(e, "at least 45 ms: %d", now_ms() - start >= 44);
        close(ep);
    }
}

struct job {
    struct end *e;
    int ep, fd, what;
};
static void *from_another_thread(void *arg)
{
    struct job *j = arg;
    struct end *e = j->e;
    await_sleep(e, e->pid, e->tid);
    if (j->what == 0)
        add(j->ep, j->fd, EPOLLIN, 1);
    else if (j->what == 1)
        mod(j->ep, j->fd, EPOLLIN | EPOLLOUT, 2);
    else if (j->what == 2)
        mod(j->ep, j->fd, EPOLLOUT | EPOLLONESHOT, 3);
    return NULL;
}

// A thread asleep in a set is woken by what others add to it.
static void changed_while_asleep(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        int ep = set_of();
        pthread_t t;
        struct job j = {e, ep, FD, 0};
        await_bytes(e, FD, 3);
        for (j.what = 0; j.what < 3; j.what++) {
            MUST(pthread_create(&t, NULL, from_another_thread, &j));
            SOON(ep);
            pthread_join(t, NULL);
            if (j.what == 0)
                T(recv(FD, (char[8]){0}, 8, 0));
            if (j.what == 1)
                T(mod(ep, FD, EPOLLIN, 2));
        }
        close(ep);
    }
}

static void data_while_asleep(struct end *e)
{
    for (int i = 0; i < 4; i++) {
        if (e->role == S) {
            int ep = set_of();
            add(ep, FD, EPOLLIN | (i & 1 ? EPOLLET : 0), i);
            add(ep, e->lfd, EPOLLIN, 99);
            will_block(e);
            SOON(ep);
            if (i < 3)
                T(recv(FD, (char[8]){0}, 8, 0));
            close(ep);
        } else {
            await_blocked(e);
            if (i < 3)
                T(send(FD, "abc", 3, 0));
            else
                T(shutdown(FD, SHUT_WR));
        }
    }
}

// A set that has found something in many waits without sleep looks at its sockets
// itself, and has the peer tell again before it sleeps.
static void after_many_waits(struct end *e)
{
    static const unsigned kinds[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP,
                                     EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLOUT};
    char buf[8];
    for (int k = 0; k < 5; k++) {
        int ep = -1, other = -1, found = 0, pipes[2];
        int oneshot = kinds[k] & EPOLLONESHOT;
        if (e->role == S) {
            ep = set_of(), other = set_of();
            if (pipe(pipes) < 0)
                abort();
            T(add(ep, FD, kinds[k], MAGIC + k));
            T(add(ep, pipes[0], EPOLLIN, 1));
        }
        for (int i = 0; i < 100; i++) {
            AT(C) send(FD, "abc", 3, 0);
            AT(S) {
                struct epoll_event got[4] = {{0}};
                await_bytes(e, FD, 3);
                found += epoll_wait(ep, got, 4, 0) == 1 && got[0].data.u64 == MAGIC + k;
                recv(FD, buf, 8, 0);
                if (oneshot)
                    mod(ep, FD, kinds[k], MAGIC + k);
            }
        }
        AT(S) {
            say(e, "%d found", found);
            NOW(ep);
        }
        AT(C) T(send(FD, "ab", 2, 0));
        AT(S) {
            await_bytes(e, FD, 2);
            NOW(ep);
            NOW(ep);
        }
        AT(C) T(send(FD, "c", 1, 0));
        AT(S) {
            await_bytes(e, FD, 3);
            NOW(ep);
            T(recv(FD, buf, 1, 0));
            NOW(ep);
            // What the kernel has is found soon, however busy the socket is.
            T(write(pipes[1], "x", 1));
            struct epoll_event got[4] = {{0}};
            for (long long end = now_ms() + PATIENCE_MS; got[0].data.u64 != 1 && now_ms() < end;)
                if (epoll_wait(ep, got, 4, 0) == 2 && got[1].data.u64 == 1)
                    got[0] = got[1];
            T(got[0].data.u64 == 1);
        }
        AT(C) T(send(FD, "d", 1, 0));
        AT(S) {
            await_bytes(e, FD, 3);
            T(recv(FD, buf, 8, 0));
            T(read(pipes[0], buf, 8));
            NOW(ep);
            NOW(ep);
            // In a second set, and modified.
            T(add(other, FD, EPOLLIN, 5));
            NOW(other);
        }
        AT(C) T(send(FD, "ef", 2, 0));
        AT(S) {
            await_bytes(e, FD, 2);
            NOW(other);
            NOW(ep);
            T(mod(ep, FD, EPOLLIN | (kinds[k] ^ EPOLLET), 9));
            NOW(ep);
            NOW(ep);
            T(recv(FD, buf, 8, 0));
            NOW(ep);
            T(mod(ep, FD, kinds[k], 8));
            NOW(ep);
        }
        // It sleeps, and then sleeps again.
        for (int i = 0; i < 2; i++) {
            if (e->role == S) {
                T(mod(ep, FD, EPOLLIN | EPOLLET, 7));
                will_block(e);
                SOON(ep);
            } else {
                await_blocked(e);
                T(send(FD, "ghi", 3, 0));
            }
            AT(S) T(recv(FD, buf, 8, 0));
        }
        AT(S) close(ep), close(other), close(pipes[0]), close(pipes[1]);
    }
}

// The same until the peer has ended.
static void end_after_many_waits(struct end *e)
{
    char buf[8];
    static int level, edge;
    AT(S) {
        level = set_of(), edge = set_of();
        add(level, FD, EPOLLIN | EPOLLRDHUP, 1);
        add(edge, FD, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
    }
    for (int i = 0; i < 100; i++) {
        AT(C) send(FD, "abc", 3, 0);
        AT(S) {
            struct epoll_event got[2];
            await_bytes(e, FD, 3);
            MUST(epoll_wait(level, got, 2, 0) == 1 && epoll_wait(edge, got, 2, 0) == 1);
            recv(FD, buf, 8, 0);
        }
    }
    AT(C) {
        T(send(FD, "last", 4, 0));
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        NOW(level);
        NOW(edge);
        T(recv(FD, buf, 8, 0));
        NOW(level);
        T(recv(FD, buf, 8, 0));
        close(level), close(edge);
    }
}

// Exclusive registrations in two sets: a sleeper is woken and none is lost.
static void exclusive(struct end *e)
{
    static int a, b;
    AT(S) {
        a = set_of(), b = set_of();
        T(add(a, FD, EPOLLIN | EPOLLEXCLUSIVE, 1));
        T(add(b, FD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 2));
        NOW(a);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        SOON(a);
        T(recv(FD, (char[8]){0}, 8, 0));
        NOW(a);
        T(del(a, FD));
        T(del(b, FD));
        close(a), close(b);
    }
}

// Shunted and kernel descriptors in one set, all ready at once.
static void mixture(struct end *e)
{
    static int ep, p[2], ev, timer, sig;
    sigset_t set, old;
    AT(S) {
        ep = set_of();
        ev = eventfd(0, EFD_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        MUST(pipe2(p, O_CLOEXEC));
        sigemptyset(&set);
        sigaddset(&set, SIGUSR2);
        pthread_sigmask(SIG_BLOCK, &set, &old);
        sig = MUST(signalfd(-1, &set, SFD_CLOEXEC));
        T(add(ep, FD, EPOLLIN, 1));
        T(add(ep, p[0], EPOLLIN, 2));
        T(add(ep, ev, EPOLLIN | EPOLLET, 3));
        T(add(ep, timer, EPOLLIN, 4));
        T(add(ep, sig, EPOLLIN, 5));
        T(add(ep, e->lfd, EPOLLIN, 6));
        T(add(ep, p[1], EPOLLOUT | EPOLLONESHOT, 7));
        NOW(ep);
        MUST(write(p[1], "x", 1));
        NOW(ep);
        MUST(eventfd_write(ev, 1));
        pthread_kill(pthread_self(), SIGUSR2);
        struct itimerspec soon = {{0, 0}, {0, 1}};
        MUST(timerfd_settime(timer, 0, &soon, NULL));
        await_events(e, timer, POLLIN);
        NOW(ep);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        // Next to a shunted socket the kernel is asked about others every 0.6 ms.
        nap();
        NOW(ep);
        T(recv(FD, (char[8]){0}, 8, 0));
        struct signalfd_siginfo info;
        MUST(read(sig, &info, sizeof info));
        NOW(ep);
        close(p[0]), close(p[1]), close(ev), close(timer), close(sig), close(ep);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
}

static long own_microseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// Under constant traffic on the connection, the events of a pipe still come, each of them
// before the thread has run for long (0.6 ms, with a margin).
static void no_starvation(struct end *e)
{
    enum { LATE = 5000 };
    char buf[64];
    if (e->role == S) {
        int ep = set_of(), p[2], pipe_seen = 0, late = 0, rounds = 0;
        long since = own_microseconds();
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "x", 1));
        add(ep, FD, EPOLLIN, 1);
        add(ep, p[0], EPOLLIN, 2);
        struct epoll_event ev;
        int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), timer_seen = 0;
        struct itimerspec soon = {{0, 0}, {0, 1}};
        MUST(timerfd_settime(timer, 0, &soon, NULL));
        add(ep, timer, EPOLLIN, 3);
        while (rounds < 20000) {
            int n = epoll_wait(ep, &ev, 1, 1000);
            if (n != 1)
                break;
            if (ev.data.u64 == 1) {
                if (recv(FD, buf, 1, 0) == 1 && ++rounds % 1000 == 0) {
                    MUST(write(p[1], "x", 1));
                    since = own_microseconds();
                }
            } else if (ev.data.u64 == 2) {
                pipe_seen++;
                late += own_microseconds() - since > LATE;
                MUST(read(p[0], buf, 1));
            } else {
                timer_seen = 1;
            }
        }
        say(e, "%d rounds, pipe seen %d, %d late, timer seen %d", rounds, pipe_seen >= 10, late, timer_seen);
        close(ep), close(p[0]), close(p[1]), close(timer);
    } else {
        memset(buf, 'x', sizeof buf);
        for (int sent = 0; sent < 20000; sent += 32)
            if (put(FD, buf, 32) != 32)
                break;
    }
}

// With room for one event, a pipe and a connection that are always ready share.
static void one_at_a_time(struct end *e)
{
    AT(S) {
        int ep = set_of(), p[2], seen[2] = {0, 0};
        struct epoll_event ev;
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "x", 1));
        add(ep, p[0], EPOLLIN, 0);
        add(ep, FD, EPOLLOUT, 1);
        for (int i = 0; i < 2000; i++)
            if (epoll_wait(ep, &ev, 1, 1000) == 1)
                seen[ev.data.u64]++;
        say(e, "all %d, fair %d", seen[0] + seen[1] == 2000, seen[0] >= 800 && seen[1] >= 800);
        close(ep), close(p[0]), close(p[1]);
    }
}

// Nothing is told twice by one wait, whose room is about what there is to tell while the
// connection's end arrives.
static void once_in_a_wait(struct end *e)
{
    enum { PIPES = 2, ROOM = PIPES + 2 };
    int ep = -1, p[PIPES][2];
    AT(S) {
        ep = set_of();
        for (int i = 0; i < PIPES; i++) {
            MUST(pipe2(p[i], O_CLOEXEC));
            MUST(write(p[i][1], "x", 1));
            add(ep, p[i][0], EPOLLIN, i);
        }
        add(ep, FD, EPOLLIN, PIPES);
    }
    AT(C) shutdown(FD, SHUT_WR);
    AT(S) {
        int seen[PIPES + 1] = {0}, twice = 0;
        long long end = now_ms() + PATIENCE_MS;
        while (seen[PIPES] < 4 && now_ms() < end) {
            struct epoll_event ev[ROOM];
            int n = MUST(epoll_wait(ep, ev, ROOM, 0)), now[PIPES + 1] = {0};
            for (int i = 0; i < n; i++) {
                twice += now[ev[i].data.u64]++;
                seen[ev[i].data.u64]++;
            }
        }
        say(e, "all seen %d, twice %d", seen[0] && seen[1] && seen[2] >= 4, twice);
        for (int i = 0; i < PIPES; i++)
            close(p[i][0]), close(p[i][1]);
        close(ep);
    }
}

// Two hundred connections with reproducible activity.
enum { MANY = 200 };
static void many(struct end *e)
{
    static int fds[2][MANY], ep;
    unsigned seed = 12345;
    if (e->solo || e->role == C || e->role == S) {
        for (int base = 0; base < MANY; base += 50) {
            AT(C)
                for (int i = base; i < base + 50; i++) {
                    fds[C][i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
                    MUST(tcp_connect(fds[C][i], e->fam, e->port));
                }
            AT(S)
                for (int i = base; i < base + 50; i++)
                    fds[S][i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        }
    }
    AT(S) {
        ep = set_of();
        for (int i = 0; i < MANY; i++)
            MUST(add(ep, fds[S][i], i % 3 == 0 ? EPOLLIN | EPOLLET : i % 3 == 1 ? EPOLLIN : EPOLLIN | EPOLLONESHOT, i));
    }
    for (int round = 0; round < 30; round++) {
        unsigned char expected[MANY] = {0};
        int active = 1 + (int)((seed = seed * 1103515245 + 12345) >> 16) % 60;
        int first = (int)(seed >> 20) % MANY;
        for (int k = 0; k < active; k++)
            expected[(first + k * 7) % MANY] = 1;
        AT(C)
            for (int i = 0; i < MANY; i++)
                if (expected[i])
                    MUST(send(fds[C][i], "hello", 5, 0));
        AT(S) {
            unsigned char seen[MANY] = {0};
            struct epoll_event ev[16];
            int want = 0, got = 0, wrong = 0, bytes = 0;
            for (int i = 0; i < MANY; i++)
                want += expected[i];
            while (got < want) {
                int n = epoll_wait(ep, ev, 16, 2000);
                if (n <= 0)
                    break;
                for (int k = 0; k < n; k++) {
                    int i = ev[k].data.u64;
                    char buf[16];
                    wrong += !expected[i] || seen[i]++ || ev[k].events != EPOLLIN;
                    bytes += get(fds[S][i], buf, 5);
                    wrong += recv(fds[S][i], buf, 1, 0) != -1;
                    if (i % 3 == 2)
                        MUST(mod(ep, fds[S][i], EPOLLIN | EPOLLONESHOT, i));
                    got++;
                }
            }
            wrong += epoll_wait(ep, ev, 16, 0);
            say(e, "%d of %d, %d bytes, %d wrong", got, want, bytes, wrong);
        }
    }
    AT(C)
        for (int i = 0; i < MANY; i += 2)
            close(fds[C][i]);
    AT(S) {
        int ends = 0;
        struct epoll_event ev[16];
        for (int n; ends < MANY / 2 && (n = epoll_wait(ep, ev, 16, 2000)) > 0;)
            for (int k = 0; k < n; k++) {
                int i = ev[k].data.u64;
                ends += i % 2 == 0 && recv(fds[S][i], &(char){0}, 1, 0) == 0;
                close(fds[S][i]);
            }
        say(e, "%d ends", ends);
    }
    AT(C)
        for (int i = 1; i < MANY; i += 2)
            close(fds[C][i]);
    AT(S) {
        for (int i = 1; i < MANY; i += 2)
            close(fds[S][i]);
        close(ep);
    }
}

// Several threads in one wait: each message is handled exactly once.
struct pool {
    struct end *e;
    int ep;
    int handled;
};
static void *worker(void *arg)
{
    struct pool *p = arg;
    struct epoll_event ev;
    char c;
    while (epoll_wait(p->ep, &ev, 1, 5000) == 1) {
        if (ev.data.u64 == 99)
            break;
        if (recv(p->e->fd, &c, 1, MSG_DONTWAIT) == 1)
            __atomic_fetch_add(&p->handled, 1, __ATOMIC_RELAXED);
        send(p->e->fd, "k", 1, 0);
        mod(p->ep, p->e->fd, EPOLLIN | EPOLLONESHOT, 1);
    }
    return NULL;
}
static void several_waiters(struct end *e)
{
    if (e->role == S) {
        pthread_t t[3];
        int stop = eventfd(0, EFD_CLOEXEC);
        struct pool p = {e, set_of(), 0};
        add(p.ep, FD, EPOLLIN | EPOLLONESHOT, 1);
        add(p.ep, stop, EPOLLIN, 99);
        for (int i = 0; i < 3; i++)
            MUST(pthread_create(&t[i], NULL, worker, &p));
        await_go(e);
        MUST(eventfd_write(stop, 1));
        for (int i = 0; i < 3; i++)
            pthread_join(t[i], NULL);
        say(e, "%d handled", p.handled);
        close(stop), close(p.ep);
    } else {
        int answers = 0;
        for (int i = 0; i < 300; i++) {
            put(FD, "m", 1);
            answers += get(FD, (char[1]){0}, 1) == 1;
        }
        say(e, "%d answers", answers);
        go(e);
    }
}

static void edge_loop(struct end *e)
{
    const size_t n = 4 << 20;
    if (e->role == S) {
        static unsigned char buf[40000];
        int ep = set_of();
        nonblocking(FD, 1);
        add(ep, FD, EPOLLIN | EPOLLET | EPOLLRDHUP, 1);
        size_t done = 0;
        long bad = -1;
        struct epoll_event ev;
        while (done < n && bad < 0 && epoll_wait(ep, &ev, 1, 5000) == 1) {
            ssize_t r;
            while ((r = recv(FD, buf, sizeof buf, 0)) > 0 && bad < 0) {
                bad = check(buf, r, done, 9);
                done += r;
            }
        }
        say(e, "%zu bytes, %ld", done, bad);
        close(ep);
    } else {
        produce(e, FD, n, 9);
    }
}

// Something comes that is not registered: for a wait from outside the set is not ready.
static void selected_for_nothing(struct end *e)
{
    for (int i = 0; i < 2; i++) {
        if (e->role == S) {
            int ep = set_of();
            struct timeval limit = {0, 300000};
            struct pollfd p = {ep, POLLIN | POLLRDNORM, 0};
            fd_set in;
            FD_ZERO(&in);
            FD_SET(ep, &in);
            T(add(ep, FD, EPOLLRDHUP, 1));
            will_block(e);
            T(i ? poll(&p, 1, 300) : select(ep + 1, &in, NULL, NULL, &limit));
            close(ep);
        } else {
            await_blocked(e);
            T(send(FD, "unread", 6, 0));
        }
        meet(e);
    }
}

struct pair {
    struct end *e;
    int ep, seen;
    pthread_mutex_t lock;
    pthread_cond_t both;
};
static void *handles_one(void *arg)
{
    struct pair *p = arg;
    struct end *e = p->e;
    struct epoll_event ev[8];
    char c;
    do
        MUST(epoll_wait(p->ep, ev, 8, -1));
    while (recv(FD, &c, 1, MSG_DONTWAIT) != 1);
    pthread_mutex_lock(&p->lock);
    p->seen++;
    pthread_cond_broadcast(&p->both);
    while (p->seen < 2)
        pthread_cond_wait(&p->both, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

// Two messages come at once. The thread that takes the first one waits until another one has taken the second.
static void left_for_another(struct end *e)
{
    if (e->role == S) {
        struct pair p = {e, set_of(), 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
        pthread_t threads[2];
        T(add(p.ep, FD, EPOLLIN, 1));
        for (int i = 0; i < 20; i++) {
            p.seen = 0;
            for (int t = 0; t < 2; t++)
                MUST(pthread_create(&threads[t], NULL, handles_one, &p));
            go(e);
            for (int t = 0; t < 2; t++)
                pthread_join(threads[t], NULL);
        }
        say(e, "handled");
        close(p.ep);
    } else {
        for (int i = 0; i < 20; i++) {
            await_go(e);
            usleep(i % 4 * 1000); // now they sleep, and now they are about to
            MUST(send(FD, "ab", 2, 0));
        }
    }
}

struct outsider {
    struct end *e;
    int ep, around; // sleeps in `poll` on ep, or on the set around it
    pid_t tid;
    int told;
};
// A thread that runs only when nobody else wants its core.
static void *sleeps_outside(void *arg)
{
    struct outsider *o = arg;
    struct end *e = o->e;
    struct pollfd p = {o->ep, POLLIN, 0};
    struct epoll_event ev;
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    __atomic_store_n(&o->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    o->told = MUST(o->around < 0 ? poll(&p, 1, PATIENCE_MS) : epoll_wait(o->around, &ev, 1, PATIENCE_MS));
    return NULL;
}

// A byte comes for a thread that sleeps outside of the set. Before that one runs, another thread is told of the byte again and again,
// and leaves it there.
static void told_before_outsider_runs(struct end *e)
{
    enum { ROUNDS = 8, LOOKS = 60, PAUSE_NS = 20000 };
    if (e->role == C) {
        for (int i = 0; i < ROUNDS; i++) {
            await_go(e);
            MUST(send(FD, "x", 1, 0));
        }
        return;
    }
    cpu_set_t all, one;
    int ep = set_of(), around = set_of(), missed = 0;
    T(add(ep, FD, EPOLLIN, 1));
    T(add(around, ep, EPOLLIN, 2));
    MUST(sched_getaffinity(0, sizeof all, &all));
    CPU_ZERO(&one);
    CPU_SET(MUST(sched_getcpu()), &one);
    MUST(sched_setaffinity(0, sizeof one, &one));
    for (int i = 0; i < ROUNDS; i++) {
        struct outsider o = {e, ep, i % 2 ? around : -1, 0, 0};
        struct epoll_event ev;
        pthread_t thread;
        long long end = now_ms() + PATIENCE_MS;
        MUST(pthread_create(&thread, NULL, sleeps_outside, &o));
        while (!__atomic_load_n(&o.tid, __ATOMIC_ACQUIRE))
            nap();
        await_sleep(e, getpid(), o.tid);
        go(e);
        while (MUST(epoll_wait(ep, &ev, 1, 0)) == 0 && now_ms() < end)
            ;
        for (int k = 0; k < LOOKS; k++) {
            struct timespec now, from;
            clock_gettime(CLOCK_MONOTONIC, &from);
            do
                clock_gettime(CLOCK_MONOTONIC, &now);
            while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < PAUSE_NS);
            missed += MUST(epoll_wait(ep, &ev, 1, 0)) != 1;
        }
        pthread_join(thread, NULL);
        if (o.told != 1)
            IN_VAIN("round %d: the thread outside sleeps on", i);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
    MUST(sched_setaffinity(0, sizeof all, &all));
    say(e, "missed by %d looks", missed);
    close(around), close(ep);
}

// Both ends use edges only, small messages, thousands of turns.
static void edge_conversation(struct end *e)
{
    int ep = set_of(), bad = 0;
    char c;
    nonblocking(FD, 1);
    add(ep, FD, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    meet(e);
    for (int i = 0; i < 1000; i++) {
        struct epoll_event ev;
        if (e->role == C) {
            c = i;
            bad += send(FD, &c, 1, 0) != 1;
        }
        while (recv(FD, &c, 1, 0) != 1)
            if (epoll_wait(ep, &ev, 1, 5000) != 1) {
                bad++;
                break;
            }
        bad += c != (char)i;
        if (e->role == S)
            bad += send(FD, &c, 1, 0) != 1;
    }
    say(e, "%d bad", bad);
    close(ep);
}

// One wait reports as many descriptors as the program has room for.
static void crowd(struct end *e)
{
    enum { CROWD = 5000 };
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        struct rlimit limit;
        MUST(getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = limit.rlim_max;
        MUST(setrlimit(RLIMIT_NOFILE, &limit));
        int ep = set_of(), one = MUST(eventfd(1, EFD_CLOEXEC));
        static int fds[CROWD];
        static struct epoll_event got[2 * CROWD];
        await_bytes(e, FD, 3);
        T(add(ep, FD, EPOLLIN, MAGIC));
        for (int i = 0; i < CROWD; i++) {
            fds[i] = MUST(fcntl(one, F_DUPFD_CLOEXEC, 0));
            MUST(add(ep, fds[i], EPOLLIN, i));
        }
        T(epoll_wait(ep, got, 2 * CROWD, PATIENCE_MS));
        T(epoll_wait(ep, got, 2 * CROWD, 0));
        for (int i = 0; i < CROWD; i++)
            close(fds[i]);
        close(one);
        // Whoever reads /proc/PID/fd just now keeps the file open for a moment.
        int left = 0;
        long long end = now_ms() + PATIENCE_MS;
        do
            left = epoll_wait(ep, got, 2 * CROWD, 0);
        while (left != 1 && now_ms() < end);
        say(e, "left: %d", left);
        close(ep);
    }
}

// The last socket has left the set; what happens to it is no longer the set's.
static void left_alone(struct end *e)
{
    int ep = -1;
    struct pollfd p = {-1, POLLIN, 0};
    AT(S) {
        p.fd = ep = set_of();
        T(add(ep, FD, EPOLLIN, MAGIC));
        T(epoll_wait(ep, &(struct epoll_event){0}, 1, 0));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        say(e, "%d", wait_for(e, ep, 8, 1000));
        T(recv(FD, (char[8]){0}, 8, 0));
        // Asleep on it for a moment, so that the other end has reason to ring.
        say(e, "%d", wait_for(e, ep, 8, 20));
        T(del(ep, FD));
    }
    AT(C) {
        T(send(FD, "def", 3, 0));
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        await_bytes(e, FD, 3);
        say(e, "%d", wait_for(e, ep, 8, 0));
        say(e, "%d", wait_for(e, ep, 8, 20));
        T(poll(&p, 1, 0));
        T(recv(FD, (char[8]){0}, 8, 0));
        say(e, "%d", wait_for(e, ep, 8, 0));
        close(ep);
    }
}

DIFF_MAIN(CASE(left_alone, COLD), CASE(once_in_a_wait, COLD), CASE(level, ALL | COLD), CASE(edge, ALL | COLD | STEADY), CASE(edge_both, ALL | STEADY),
          CASE(edge_both_in_the_middle, ONLY_COLD | STEADY), CASE(edge_added, COLD | STEADY),
          CASE(edge_full, COLD | STEADY),
          CASE(level_full, COLD | STEADY), CASE(looked_at_by_poll_when_full, COLD | STEADY),
          CASE(looked_at_by_set_when_full, COLD | STEADY), CASE(left_for_another, TWO | COLD), CASE(told_before_outsider_runs, TWO | COLD),
          CASE(selected_for_nothing, TWO | COLD), CASE(one_shot, ALL | COLD), CASE(errors, COLD),
          CASE(too_deep, 0), CASE(too_deep_copied, 0), CASE(too_deep_removed, 0), CASE(too_deep_heard, COLD),
         
          CASE(nested, COLD | STEADY), CASE(nested_wakes, TWO | COLD), CASE(several_sets, COLD | STEADY), CASE(with_dup, COLD),
          CASE(close_removes, COLD), CASE(reset_and_end, ALL | COLD | STEADY), CASE(end_after_data, COLD | STEADY),
          CASE(before_connect, BARE | ALL | STEADY), CASE(across_warm_up, BARE | ALL | STEADY), CASE(rotation, STEADY), CASE(masks, COLD),
          CASE(time_limits, COLD), CASE(changed_while_asleep, COLD), CASE(data_while_asleep, TWO | ALL | COLD),
          CASE(after_many_waits, TWO | STEADY), CASE(end_after_many_waits, COLD),
          CASE(exclusive, COLD), CASE(mixture, COLD), CASE(no_starvation, TWO | COLD), CASE(one_at_a_time, COLD), CASE(many, BARE), CASE(crowd, COLD),
          CASE(several_waiters, TWO | COLD), CASE(edge_loop, TWO | COLD), CASE(edge_conversation, TWO | COLD))
