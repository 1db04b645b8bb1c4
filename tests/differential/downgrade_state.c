// A connection goes back to plain TCP while it ends, while it is watched, and
// while threads sleep in it.
// needs: lending
// path: shunted
// timeout: 60
#include "diff.h"
#include "plain.h"
#include <linux/errqueue.h>
#include <linux/filter.h>

// Put a stream on the connection and take it away again.
static void by_stream(struct end *e)
{
    FILE *f = fdopen(dup(FD), "r");
    if (!f || fclose(f))
        say(e, "no stream");
}

// ---- Ends ------------------------------------------------------------------

static void peer_has_shut(struct end *e)
{
    AT(C) {
        produce(e, FD, MUCH, 1);
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, MUCH, 1);
        tell_it(e, &p, END, 0, 0);
        tell_it(e, &p, SEND, 5000, 2);
        plain_end(e, &p);
        T(recv(FD, (char[1]){0}, 1, 0));
        produce(e, FD, 100, 3);
    }
    AT(C) {
        expect(e, FD, 5000, 2);
        expect(e, FD, 100, 3);
    }
}

static void we_have_shut(struct end *e)
{
    struct plain p = {-1, -1, ""};
    AT(S) {
        produce(e, FD, MUCH, 1);
        T(shutdown(FD, SHUT_WR));
        p = PLAIN(FD);
    }
    AT(C) {
        produce(e, FD, 5000, 2);
        expect(e, FD, MUCH, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 5000, 2);
        tell_it(e, &p, SEND, 1, 0);
        plain_end(e, &p);
        T(send(FD, "x", 1, 0));
    }
    AT(C) produce(e, FD, 100, 3);
    AT(S) expect(e, FD, 100, 3);
}

static void both_have_shut(struct end *e)
{
    AT(C) {
        produce(e, FD, 1000, 1);
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        produce(e, FD, 1000, 2);
        T(shutdown(FD, SHUT_WR));
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
    AT(C) {
        expect(e, FD, 1000, 2);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

// The program's shutdown is everyone's.
static void program_shuts(struct end *e)
{
    AT(S) {
        produce(e, FD, MUCH, 1);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, SEND, 1000, 2);
        tell_it(e, &p, SHUT, 0, 0);
        plain_end(e, &p);
        T(send(FD, "x", 1, 0));
    }
    AT(C) {
        expect(e, FD, MUCH, 1);
        expect(e, FD, 1000, 2);
        T(recv(FD, (char[1]){0}, 1, 0));
        produce(e, FD, 100, 3);
    }
    AT(S) expect(e, FD, 100, 3);
}

// Its news only has been looked at when the peer has ended and the program comes.
static void watched_end(struct end *e, int closes)
{
    int ep = -1;
    AT(S) {
        struct epoll_event ev = {EPOLLIN, {.u32 = 7}};
        ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    }
    AT(C) {
        produce(e, FD, 5000, 1);
        if (closes) {
            T(close(FD));
            FD = -1;
        } else {
            T(shutdown(FD, SHUT_WR));
        }
    }
    AT(S) {
        struct epoll_event got = {0};
        await_events(e, FD, POLLRDHUP);
        T(epoll_wait(ep, &got, 1, -1));
        struct plain p = PLAIN(FD);
        close(ep);
        tell_it(e, &p, RECEIVE, 5000, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}
static void watched_shut(struct end *e) { watched_end(e, 0); }
static void watched_closed(struct end *e) { watched_end(e, 1); }

// The peer has gone on over TCP while what it sent before is unread.
static void unread_before_urgent(struct end *e)
{
    AT(C) {
        produce(e, FD, 5000, 1);
        T(send(FD, "!", 1, MSG_OOB));
        produce(e, FD, 1000, 2);
    }
    AT(S) {
        await_events(e, FD, POLLPRI);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 5000, 1);
        tell_it(e, &p, RECEIVE, 1000, 2);
        plain_end(e, &p);
    }
    goes_on(e);
}

static void unread_before_our_end(struct end *e)
{
    AT(C) produce(e, FD, 5000, 1);
    AT(S) T(shutdown(FD, SHUT_WR));
    AT(C) {
        T(recv(FD, (char[1]){0}, 1, 0));
        produce(e, FD, 1000, 2);
    }
    AT(S) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 5000, 1);
        tell_it(e, &p, RECEIVE, 1000, 2);
        plain_end(e, &p);
    }
    AT(C) produce(e, FD, 1000, 3);
    AT(S) expect(e, FD, 1000, 3);
}

// The peer is gone; what it sent before is the program's.
static void peer_has_closed(struct end *e, size_t n)
{
    AT(C) {
        produce(e, FD, n, 1);
        T(close(FD));
        FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, n, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}
static void closed_and_read(struct end *e) { peer_has_closed(e, 0); }
static void closed_with_few(struct end *e) { peer_has_closed(e, FEW); }
static void closed_with_much(struct end *e) { peer_has_closed(e, 60000); }

static void stream_to_the_end(struct end *e)
{
    FILE *f = NULL;
    AT(C) {
        produce(e, FD, 60000, 1);
        T(close(FD));
        FD = -1;
    }
    AT(S) {
        f = fdopen(dup(FD), "r");
        expect_stream(e, f, 60000, 1);
        T(fgetc(f));
        T(feof(f) != 0);
        T(fclose(f));
    }
}

static void reset(struct end *e, size_t n)
{
    AT(S) produce(e, FD, 10, 2);
    AT(C) {
        await_bytes(e, FD, 10);
        produce(e, FD, n, 1);
        T(close(FD));
        FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLERR);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, n, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(send(FD, "x", 1, 0));
    }
}
static void reset_empty(struct end *e) { reset(e, 0); }
static void reset_with_few(struct end *e) { reset(e, FEW); }

static void shut_right_after(struct end *e)
{
    AT(S) {
        produce(e, FD, MUCH, 1);
        by_stream(e);
        T(shutdown(FD, SHUT_WR));
    }
    AT(C) {
        expect(e, FD, MUCH, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
        produce(e, FD, 100, 2);
    }
    AT(S) expect(e, FD, 100, 2);
}

static void close_right_after(struct end *e)
{
    AT(S) {
        produce(e, FD, MUCH, 1);
        T(fclose(fdopen(FD, "r")));
        FD = -1;
    }
    AT(C) {
        expect(e, FD, MUCH, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

// Unread bytes turn a close into a reset, wherever they lay.
static void close_unread(struct end *e)
{
    AT(C) produce(e, FD, FEW, 1);
    AT(S) {
        await_bytes(e, FD, FEW);
        T(fclose(fdopen(FD, "r")));
        FD = -1;
    }
    AT(C) {
        await_events(e, FD, POLLERR);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

static void abort_right_after(struct end *e)
{
    AT(S) {
        struct linger l = {1, 0};
        by_stream(e);
        T(setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l));
        T(close(FD));
        FD = -1;
    }
    AT(C) {
        await_events(e, FD, POLLERR);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(send(FD, "x", 1, 0));
    }
}

// ---- Options ---------------------------------------------------------------

// A filter that lets everything pass must see, and pass, everything.
static void filter(struct end *e)
{
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        struct sock_filter all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
        struct sock_fprog program = {1, &all};
        produce(e, FD, MUCH, 2);
        T(setsockopt(FD, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
        expect(e, FD, MUCH, 1);
    }
    AT(C) {
        expect(e, FD, MUCH, 2);
        produce(e, FD, 1000, 3);
    }
    AT(S) {
        expect(e, FD, 1000, 3);
        T(setsockopt(FD, SOL_SOCKET, SO_DETACH_FILTER, NULL, 0));
        T(setsockopt(FD, SOL_SOCKET, SO_DETACH_FILTER, NULL, 0));
    }
    goes_on(e);
}

static int is_stamped(int fd, int type)
{
    char c;
    char control[128];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &m, 0) != 1)
        return -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == type)
            return 1;
    return 0;
}

// The kernel starts to stamp some time after it is asked to, so bytes are sent
// until one comes with a stamp.
static void stamps(struct end *e)
{
    int stamped = 0, on = 1, off = 0;
    at_once(e);
    AT(S) T(setsockopt(FD, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on));
    for (int i = 0; i < 2000 && stamped == 0; i++) {
        AT(C) put(FD, "t", 1);
        AT(S) {
            stamped = is_stamped(FD, SCM_TIMESTAMPNS);
            if (!stamped)
                nap();
        }
        share(e, S, &stamped, sizeof stamped);
    }
    AT(S) {
        say(e, "stamped: %d", stamped);
        T(setsockopt(FD, SOL_SOCKET, SO_TIMESTAMPNS, &off, sizeof off));
    }
    AT(C) put(FD, "t", 1);
    AT(S) say(e, "stamped: %d", is_stamped(FD, SCM_TIMESTAMPNS));
    goes_on(e);
}

// The notice comes when the kernel needs the bytes no longer.
static void zero_copy(struct end *e)
{
    static char bytes[20000];
    AT(S) {
        int on = 1;
        fill(bytes, sizeof bytes, 0, 2);
        produce(e, FD, 1000, 1);
        T(setsockopt(FD, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
        T(send(FD, bytes, sizeof bytes, MSG_ZEROCOPY));
    }
    AT(C) {
        expect(e, FD, 1000, 1);
        expect(e, FD, sizeof bytes, 2);
    }
    AT(S) {
        char control[256];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        await_events(e, FD, POLLERR);
        T(recvmsg(FD, &m, MSG_ERRQUEUE));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        struct sock_extended_err *x = h ? (void *)CMSG_DATA(h) : NULL;
        if (x)
            say(e, "%s by %u: %u to %u", errname(x->ee_errno), x->ee_origin, x->ee_info, x->ee_data);
    }
    goes_on(e);
}

// How much has come to the kernel's connection.
static uint64_t come_by_tcp(int fd)
{
    uint64_t info[32] = {0};
    socklen_t n = sizeof info;
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n);
    return info[128 / 8]; // `tcpi_bytes_received`, which is not in every libc's header
}

static void pace(struct end *e, int fd)
{
    unsigned rate = 1 << 30;
    MUST(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
}

static void sends_by_tcp(struct end *e, enum role sender)
{
    uint64_t before = 0;
    AT(!sender) before = come_by_tcp(FD);
    AT(sender) produce(e, FD, 60000, 1);
    AT(!sender) {
        expect(e, FD, 60000, 1);
        say(e, "by TCP: %d", come_by_tcp(FD) - before >= 60000);
    }
    goes_on(e);
}

// What a program lets the kernel send no faster than so is sent by the kernel.
static void paced(struct end *e)
{
    AT(C) pace(e, FD);
    sends_by_tcp(e, C);
}

static void paced_before(struct end *e)
{
    AT(C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        pace(e, FD);
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    sends_by_tcp(e, C);
}

static void paced_listener(struct end *e)
{
    int port = 0, lfd = -1;
    AT(S) {
        lfd = MUST(tcp_listener(V4, SOCK_CLOEXEC, 8, &port));
        pace(e, lfd);
    }
    share(e, S, &port, sizeof port);
    AT(C) {
        FD = MUST(tcp_socket(V4, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, V4, port));
    }
    AT(S) {
        FD = MUST(accept4(lfd, NULL, NULL, SOCK_CLOEXEC));
        close(lfd);
    }
    warm_up(e);
    sends_by_tcp(e, S);
}

static void urgent(struct end *e)
{
    AT(C) {
        produce(e, FD, 60000, 1);
        T(send(FD, "!", 1, MSG_OOB));
        produce(e, FD, 1000, 2);
    }
    AT(S) {
        char c = 0;
        await_events(e, FD, POLLPRI);
        T(recv(FD, &c, 1, MSG_OOB));
        say(e, "%c", c);
        expect(e, FD, 60000, 1);
        expect(e, FD, 1000, 2);
    }
    goes_on(e);
}

static volatile int signals;
static void on_signal(int sig)
{
    (void)sig;
    signals++;
}

static void await_signal(struct end *e, int more_than)
{
    for (long long end = now_ms() + PATIENCE_MS; signals <= more_than; nap())
        if (now_ms() > end) {
            IN_VAIN("waited in vain for a signal");
            return;
        }
}

// A signal for what arrives, before and after the connection has become plain.
// The handler counts for both roles, so only one of them may ask for signals.
static void asynchronous(struct end *e)
{
    int before = 0;
    at_once(e);
    AT(S) {
        struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaction(SIGIO, &sa, NULL);
        T(fcntl(FD, F_SETOWN, getpid()));
        T(fcntl(FD, F_SETFL, fcntl(FD, F_GETFL) | O_ASYNC));
    }
    for (int i = 0; i < 3; i++) {
        AT(S) before = signals;
        AT(C) put(FD, "a", 1);
        AT(S) {
            await_signal(e, before);
            T(recv(FD, (char[4]){0}, 4, 0));
            by_stream(e);
        }
    }
    AT(S) T(fcntl(FD, F_SETFL, fcntl(FD, F_GETFL) & ~O_ASYNC));
    goes_on(e);
}

// ---- Epoll -----------------------------------------------------------------

struct sets {
    int level, edge, outer;
};

static struct sets watch(struct end *e)
{
    struct sets s = {MUST(epoll_create1(EPOLL_CLOEXEC)), MUST(epoll_create1(EPOLL_CLOEXEC)),
                     MUST(epoll_create1(EPOLL_CLOEXEC))};
    struct epoll_event level = {EPOLLIN, {.u32 = 1}}, edge = {EPOLLIN | EPOLLET, {.u32 = 2}};
    struct epoll_event outer = {EPOLLIN, {.u32 = 3}};
    MUST(epoll_ctl(s.level, EPOLL_CTL_ADD, FD, &level));
    MUST(epoll_ctl(s.edge, EPOLL_CTL_ADD, FD, &edge));
    MUST(epoll_ctl(s.outer, EPOLL_CTL_ADD, s.level, &outer));
    return s;
}

static void look_at(struct end *e, const char *name, int set)
{
    struct epoll_event got[4];
    int n = epoll_wait(set, got, 4, 0);
    say(e, "%s: %d %s %u", name, n, n > 0 ? events(got[0].events) : "", n > 0 ? got[0].data.u32 : 0);
}

static void look(struct end *e, struct sets *s)
{
    look_at(e, "level", s->level);
    look_at(e, "edge", s->edge);
    look_at(e, "outer", s->outer);
}

// Bytes that move to TCP arrive there anew, and an edge may be told for them.
static void look_while_moved(struct end *e, struct sets *s)
{
    struct epoll_event edge;
    look_at(e, "level", s->level);
    epoll_wait(s->edge, &edge, 1, 0);
    look_at(e, "outer", s->outer);
}

static void unwatch(struct sets *s)
{
    close(s->level), close(s->edge), close(s->outer);
}

// Level, edge and nested registrations of the side that becomes plain.
static void watched(struct end *e, int by_program, int unread)
{
    struct sets s = {0};
    struct plain p = {-1, -1, ""};
    FILE *f = NULL;
    AT(S) {
        s = watch(e);
        look(e, &s);
    }
    if (unread) {
        AT(C) produce(e, FD, 10, 1);
        AT(S) {
            await_bytes(e, FD, 10);
            look(e, &s);
        }
    }
    AT(S) {
        if (by_program)
            p = PLAIN(FD);
        else
            f = fdopen(dup(FD), "r");
        look_while_moved(e, &s);
        if (unread && by_program)
            tell_it(e, &p, RECEIVE, 10, 1);
        else if (unread)
            expect_stream(e, f, 10, 1);
        look(e, &s);
    }
    for (int i = 0; i < 3; i++) {
        AT(C) produce(e, FD, 5, i);
        AT(S) {
            await_bytes(e, FD, 5);
            look(e, &s);
            look(e, &s);
            if (i == 0)
                expect(e, FD, 5, i);
            else if (by_program)
                tell_it(e, &p, RECEIVE, 5, i);
            else
                expect_stream(e, f, 5, i);
            look(e, &s);
        }
    }
    AT(S) {
        struct epoll_event ev = {EPOLLIN | EPOLLOUT, {.u32 = 4}};
        T(epoll_ctl(s.level, EPOLL_CTL_MOD, FD, &ev));
        look(e, &s);
        T(epoll_ctl(s.edge, EPOLL_CTL_DEL, FD, NULL));
        T(epoll_ctl(s.edge, EPOLL_CTL_DEL, FD, NULL));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        await_events(e, FD, POLLIN);
        look(e, &s);
        if (by_program)
            plain_end(e, &p);
        else
            fclose(f);
        look(e, &s);
        unwatch(&s);
    }
}
static void watched_idle(struct end *e) { watched(e, 0, 0); }
static void watched_unread(struct end *e) { watched(e, 0, 1); }
static void watched_program_idle(struct end *e) { watched(e, 1, 0); }
static void watched_program_unread(struct end *e) { watched(e, 1, 1); }

// Those of its peer.
static void peer_watches(struct end *e, int unread)
{
    struct sets s = {0};
    AT(C) s = watch(e);
    if (unread) {
        AT(S) produce(e, FD, 10, 1);
        AT(C) {
            await_bytes(e, FD, 10);
            look(e, &s);
        }
    }
    AT(S) by_stream(e);
    AT(C) {
        look_while_moved(e, &s);
        if (unread) {
            expect(e, FD, 10, 1);
            look(e, &s);
        }
    }
    for (int i = 0; i < 3; i++) {
        AT(S) {
            struct plain p = PLAIN(FD);
            tell_it(e, &p, SEND, 5, i);
            plain_end(e, &p);
        }
        AT(C) {
            await_bytes(e, FD, 5);
            look(e, &s);
            look(e, &s);
            expect(e, FD, 5, i);
            look(e, &s);
        }
    }
    AT(C) unwatch(&s);
    goes_on(e);
}
static void peer_watches_idle(struct end *e) { peer_watches(e, 0); }
static void peer_watches_unread(struct end *e) { peer_watches(e, 1); }

// A program that sets up io_uring may make its calls there. (Whether the kernel lets
// it depends on the machine.)
static void io_uring(struct end *e)
{
    char parameters[120] = {0};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        int ring = syscall(SYS_io_uring_setup, 1, parameters);
        if (ring >= 0)
            close(ring);
        expect(e, FD, 1000, 1);
    }
    goes_on(e);
}

// A one-shot registration that has fired stays silent until it is armed anew.
static void one_shot(struct end *e)
{
    int set = -1;
    struct epoll_event ev = {EPOLLIN | EPOLLONESHOT, {.u32 = 5}};
    AT(S) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &ev));
    }
    AT(C) produce(e, FD, 10, 1);
    AT(S) {
        await_bytes(e, FD, 10);
        look_at(e, "fired", set);
        by_stream(e);
        look_at(e, "spent", set);
    }
    AT(C) produce(e, FD, 10, 2);
    AT(S) {
        await_bytes(e, FD, 20);
        look_at(e, "spent", set);
        T(epoll_ctl(set, EPOLL_CTL_MOD, FD, &ev));
        look_at(e, "armed", set);
        look_at(e, "spent", set);
        expect(e, FD, 10, 1);
        expect(e, FD, 10, 2);
        close(set);
    }
    goes_on(e);
}

// Room comes back to a sender that waits for it, by the other end's program.
static void room_again(struct end *e)
{
    size_t n = 0;
    int set = -1;
    AT(C) {
        n = stuff(e, FD, 1);
        struct epoll_event ev = {EPOLLOUT | EPOLLET, {.u32 = 6}};
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &ev));
        look_at(e, "full", set);
    }
    share(e, C, &n, sizeof n);
    AT(S) {
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, n, 1);
        plain_end(e, &p);
    }
    AT(C) {
        struct epoll_event got = {0};
        T(epoll_wait(set, &got, 1, PATIENCE_MS));
        say(e, "%s %u", events(got.events), got.data.u32);
        close(set);
        produce(e, FD, 1000, 2);
    }
    AT(S) expect(e, FD, 1000, 2);
    goes_on(e);
}

// ---- Threads ---------------------------------------------------------------

struct thread {
    struct end *e;
    pthread_t thread;
    volatile pid_t tid;
    size_t n;
    long result;
};

static void *receives(void *arg)
{
    struct thread *t = arg;
    char buf[8];
    t->tid = syscall(SYS_gettid);
    t->result = recv(t->e->fd, buf, 8, MSG_WAITALL);
    return NULL;
}

static void *polls(void *arg)
{
    struct thread *t = arg;
    struct pollfd p = {t->e->fd, POLLIN, 0};
    t->tid = syscall(SYS_gettid);
    t->result = poll(&p, 1, -1) == 1 ? p.revents : -1;
    return NULL;
}

static void *waits(void *arg)
{
    struct thread *t = arg;
    struct epoll_event ev = {EPOLLIN | EPOLLET, {.u32 = 9}}, got = {0};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, t->e->fd, &ev);
    t->tid = syscall(SYS_gettid);
    t->result = epoll_wait(set, &got, 1, -1) == 1 ? (long)got.events : -1;
    close(set);
    return NULL;
}

// In a set that has told of what is unread.
static void *waits_for_more(void *arg)
{
    struct thread *t = arg;
    struct epoll_event got = {0};
    t->tid = syscall(SYS_gettid);
    t->result = epoll_wait(t->n, &got, 1, -1) == 1 ? (long)got.events : -1;
    return NULL;
}

static void *sends(void *arg)
{
    struct thread *t = arg;
    char *bytes = malloc(t->n);
    fill(bytes, t->n, 0, 2);
    t->tid = syscall(SYS_gettid);
    t->result = put(t->e->fd, bytes, t->n);
    free(bytes);
    return NULL;
}

static void start_asleep(struct end *e, struct thread *t, void *(*run)(void *))
{
    t->e = e;
    MUST(pthread_create(&t->thread, NULL, run, t));
    while (!t->tid)
        nap();
    await_sleep(e, e->pid, t->tid);
}

// One thread sleeps in recv, one in poll, one in epoll_wait, one in a send without
// room; a fifth makes the connection plain under them.
static void under_sleepers(struct end *e, int by_program)
{
    size_t n = 0;
    if (e->role == S)
        n = stuff(e, FD, 1);
    share(e, S, &n, sizeof n);
    if (e->role == S) {
        struct thread r = {0}, p = {0}, w = {0}, s = {.n = 200000};
        start_asleep(e, &r, receives);
        start_asleep(e, &p, polls);
        start_asleep(e, &w, waits);
        start_asleep(e, &s, sends);
        if (by_program) {
            struct plain q = PLAIN(FD);
            plain_end(e, &q);
        } else {
            by_stream(e);
        }
        await_sleep(e, e->pid, r.tid);
        await_sleep(e, e->pid, p.tid);
        await_sleep(e, e->pid, w.tid);
        go(e);
        pthread_join(s.thread, NULL);
        say(e, "sent %ld", s.result);
        go(e);
        pthread_join(p.thread, NULL);
        say(e, "polled %s", events(p.result));
        pthread_join(w.thread, NULL);
        say(e, "waited for %s", events(w.result));
        pthread_join(r.thread, NULL);
        say(e, "received %ld", r.result);
        T(recv(FD, (char[8]){0}, 8, MSG_WAITALL));
    } else {
        await_go(e);
        drain(e, FD, n, 1);
        expect(e, FD, 200000, 2);
        await_go(e);
        T(send(FD, "received and left", 16, 0)); // what is left, poll sees
    }
    meet(e);
    goes_on(e);
}
static void stream_under_sleepers(struct end *e) { under_sleepers(e, 0); }
static void program_under_sleepers(struct end *e) { under_sleepers(e, 1); }

static void *receives_twice(void *arg)
{
    receives(arg);
    struct thread *t = arg;
    t->n = recv(t->e->fd, (char[8]){0}, 8, 0) < 0 ? errno : 0;
    return NULL;
}

// The connection goes back to TCP under a receive that has a part from shared memory, and is reset: by an end that closes it at once, with a
// byte unread, or with a linger time of zero.
static void reset_behind_part(struct end *e, int by_unread)
{
    struct thread r = {0};
    if (by_unread) {
        AT(S) T(send(FD, "x", 1, 0));
        AT(C) await_bytes(e, FD, 1); // it may wait for an acknowledgement (Nagle)
    }
    AT(S) start_asleep(e, &r, receives_twice);
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) await_sleep(e, e->pid, r.tid);
    AT(C) by_stream(e);
    AT(S) await_sleep(e, e->pid, r.tid);
    AT(C) {
        struct linger at_once = {1, 0};
        if (!by_unread)
            MUST(setsockopt(FD, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        close(FD);
        FD = -1;
    }
    AT(S) {
        pthread_join(r.thread, NULL);
        say(e, "received %ld, then %s", r.result, errname(r.n));
    }
}
static void lingers_not_behind_part(struct end *e) { reset_behind_part(e, 0); }
static void unread_behind_part(struct end *e) { reset_behind_part(e, 1); }

static void hears(int sig) { (void)sig; }

static void *receives_messages(void *arg)
{
    struct thread *t = arg;
    struct iovec parts[2] = {{(char[3]){0}, 3}, {(char[3]){0}, 3}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    t->tid = syscall(SYS_gettid);
    t->result = recvmmsg(t->e->fd, m, 2, 0, NULL);
    return NULL;
}

// A signal ends such a receive, or one of several messages that has some, also if its handler has the kernel restart calls.
static void ended_by_signal(struct end *e, void *(*receive)(void *))
{
    struct thread r = {0};
    AT(S) {
        struct sigaction restarts = {.sa_handler = hears, .sa_flags = SA_RESTART};
        sigaction(SIGUSR1, &restarts, NULL);
        start_asleep(e, &r, receive);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) await_sleep(e, e->pid, r.tid);
    AT(C) by_stream(e);
    AT(S) {
        await_sleep(e, e->pid, r.tid);
        syscall(SYS_tgkill, e->pid, r.tid, SIGUSR1);
        pthread_join(r.thread, NULL);
        say(e, "received %ld", r.result);
    }
}
static void signal_behind_part(struct end *e) { ended_by_signal(e, receives); }
static void signal_behind_message(struct end *e) { ended_by_signal(e, receives_messages); }

// More comes, and wakes who waits for it, before what came first is read; that is
// left to a program, or to who reads after a stream.
static void behind_unread(struct end *e, int by_program)
{
    struct thread w = {0};
    int set = -1;
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        struct epoll_event ev = {EPOLLIN | EPOLLET, {.u32 = 9}}, got = {0};
        await_bytes(e, FD, 1000);
        w.n = set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &ev));
        T(epoll_wait(set, &got, 1, -1));
        start_asleep(e, &w, waits_for_more);
    }
    AT(C) produce(e, FD, MUCH, 2);
    AT(S) {
        pthread_join(w.thread, NULL);
        say(e, "waited for %s", events(w.result));
        close(set);
        struct plain p = {-1, -1, ""};
        if (by_program)
            p = PLAIN(FD);
        else
            by_stream(e);
        if (by_program) {
            tell_it(e, &p, RECEIVE, 1000, 1);
            tell_it(e, &p, RECEIVE, MUCH, 2);
            plain_end(e, &p);
        } else {
            expect(e, FD, 1000, 1);
            expect(e, FD, MUCH, 2);
        }
    }
    goes_on(e);
}
static void program_behind_unread(struct end *e) { behind_unread(e, 1); }
static void stream_behind_unread(struct end *e) { behind_unread(e, 0); }

// A receive that has some of what it waits for goes on with the rest.
static void half_received(struct end *e)
{
    if (e->role == S) {
        struct thread r = {0};
        await_bytes(e, FD, 3);
        start_asleep(e, &r, receives);
        by_stream(e);
        await_sleep(e, e->pid, r.tid);
        go(e);
        pthread_join(r.thread, NULL);
        say(e, "received %ld", r.result);
    } else {
        produce(e, FD, 3, 1);
        await_go(e);
        produce(e, FD, 5, 1);
    }
    meet(e);
    goes_on(e);
}

static void *converses(void *arg)
{
    struct thread *t = arg;
    unsigned char buf[64];
    for (size_t i = 0; i < t->n; i++) {
        size_t n = 1 + i % 64;
        if (t->e->role == C)
            fill(buf, n, i, 1), put(t->e->fd, buf, n);
        t->result += get(t->e->fd, buf, n) == n && check(buf, n, i, 1) < 0;
        if (t->e->role == S)
            put(t->e->fd, buf, n);
    }
    return NULL;
}

// Two threads converse while a third makes the connection plain, again and again.
static void under_traffic(struct end *e)
{
    struct thread t = {.e = e, .n = 3000};
    at_once(e);
    MUST(pthread_create(&t.thread, NULL, converses, &t));
    for (int i = 0; i < 30; i++) {
        by_stream(e);
        nap();
    }
    pthread_join(t.thread, NULL);
    say(e, "%ld good", t.result);
    meet(e);
    goes_on(e);
}

// `shunt downgrade`, which lies beside the library, if there is one.
static void by_command(struct end *e)
{
    const char *library = getenv("LD_PRELOAD"), *end = library ? strstr(library, "libshunt.so") : NULL;
    if (!end)
        return;
    const char *begin = end;
    while (begin > library && begin[-1] != ' ' && begin[-1] != ':')
        begin--;
    char program[512], pid[16];
    snprintf(program, sizeof program, "%.*sshunt", (int)(end - begin), begin);
    snprintf(pid, sizeof pid, "%d", (int)e->pid);
    char *argv[] = {"shunt", "downgrade", pid, NULL};
    posix_spawn_file_actions_t acts;
    posix_spawn_file_actions_init(&acts);
    posix_spawn_file_actions_addopen(&acts, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&acts, 2, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    errno = posix_spawn(&child, program, &acts, NULL, argv, plain_environment());
    if (errno)
        say(e, "not spawned: %s", errname(errno));
    else {
        int status = 0;
        MUST(waitpid(child, &status, 0));
        // It fails with 1 where nothing moves through shared memory (yet).
        if (status != 0 && status != 1 << 8)
            say(e, "shunt downgrade ended with %x", status);
    }
    posix_spawn_file_actions_destroy(&acts);
}

// Somebody else wishes it, while two threads converse.
static void wished_under_traffic(struct end *e)
{
    struct thread t = {.e = e, .n = 3000};
    at_once(e);
    MUST(pthread_create(&t.thread, NULL, converses, &t));
    if (e->role == S)
        by_command(e);
    pthread_join(t.thread, NULL);
    say(e, "%ld good", t.result);
    meet(e);
    goes_on(e);
}

// The same while both ends have much to read: whoever waits first sees to it.
static void wished_unread(struct end *e)
{
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        produce(e, FD, MUCH, 2);
        by_command(e);
        await_events(e, FD, POLLIN);
        expect(e, FD, MUCH, 1);
    }
    AT(C) expect(e, FD, MUCH, 2);
    goes_on(e);
}

static void *receives_all(void *arg)
{
    struct thread *t = arg;
    unsigned char *buf = malloc(SCRATCH);
    for (size_t done = 0; done < t->n;) {
        ssize_t r = recv(t->e->fd, buf, SCRATCH, 0);
        if (r <= 0 || check(buf, r, done, 2) >= 0)
            break;
        done += r;
        t->result = done;
    }
    free(buf);
    return NULL;
}

// The same with a stream of bytes in each direction.
static void under_load(struct end *e)
{
    struct thread r = {.e = e, .n = 20000000}, s = r;
    MUST(pthread_create(&r.thread, NULL, receives_all, &r));
    MUST(pthread_create(&s.thread, NULL, sends, &s));
    for (int i = 0; i < 5; i++) {
        by_stream(e);
        nap();
    }
    pthread_join(r.thread, NULL);
    pthread_join(s.thread, NULL);
    say(e, "received %ld, sent %ld", r.result, s.result);
    meet(e);
    goes_on(e);
}

// ---- Descriptors -----------------------------------------------------------

// A daemon keeps only its standard descriptors and goes on with the connection.
static void daemon_closes_all(struct end *e, int how)
{
    at_once(e);
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            setsid();
            dup2(FD, 0);
            if (how == 0)
                closefrom(3);
            else if (how == 1)
                close_range(3, ~0U, 0);
            else
                for (int fd = 3; fd < 2048; fd++)
                    close(fd);
            char *argv[] = {"cat", NULL};
            int good = echo_there(0, 20);
            dup2(0, 1);
            if (good == 20)
                execve("/bin/cat", argv, plain_environment());
            _exit(good);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        unsigned char buf[32];
        int good = 0;
        for (int i = 0; i < 20; i++) {
            fill(buf, 32, i, 1);
            put(FD, buf, 32);
            good += get(FD, buf, 32) == 32 && check(buf, 32, i, 2) < 0;
        }
        say(e, "%d good", good);
        for (int i = 0; i < 20; i++) {
            produce(e, FD, 100, i);
            expect(e, FD, 100, i);
        }
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}
static void daemon_closefrom(struct end *e) { daemon_closes_all(e, 0); }
static void daemon_close_range(struct end *e) { daemon_closes_all(e, 1); }
static void daemon_close(struct end *e) { daemon_closes_all(e, 2); }

// What waits on either side is counted right.
static void counts(struct end *e)
{
    int n = 0;
    AT(C) produce(e, FD, 10, 1);
    AT(S) {
        await_bytes(e, FD, 10);
        by_stream(e);
        await_bytes(e, FD, 10);
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        expect(e, FD, 4, 1);
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        T(recv(FD, (char[8]){0}, 6, MSG_DONTWAIT));
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
    }
    goes_on(e);
}

// Every family of calls once, on what is left.
static void all_calls(struct end *e)
{
    char buf[64];
    struct iovec v[2] = {{buf, 3}, {buf + 3, 4}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    struct mmsghdr mm = {.msg_hdr = m};
    at_once(e);
    AT(C) produce(e, FD, 5, 1);
    AT(S) {
        by_stream(e);
        expect(e, FD, 5, 1);
    }
    AT(C) {
        int p[2], file = MUST(memfd_create("bytes", MFD_CLOEXEC));
        fill(buf, 7, 0, 2);
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(file, buf, 7));
        T(write(FD, buf, 7));
        T(writev(FD, v, 2));
        T(sendmsg(FD, &m, 0));
        T(sendmmsg(FD, &mm, 1, 0));
        T(sendfile(FD, file, &(off_t){0}, 7));
        MUST(write(p[1], buf, 7));
        T(splice(p[0], NULL, FD, NULL, 7, 0));
        T(dprintf(FD, "%.0s", "")); // no bytes, no harm
        close(file), close(p[0]), close(p[1]);
    }
    AT(S) {
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        await_bytes(e, FD, 42);
        T(recv(FD, buf, 7, MSG_PEEK));
        T(read(FD, buf, 7));
        say(e, "%ld", check(buf, 7, 0, 2));
        T(readv(FD, v, 2));
        say(e, "%ld", check(buf, 7, 0, 2));
        T(recvmsg(FD, &m, MSG_WAITALL));
        say(e, "%ld", check(buf, 7, 0, 2));
        T(recvmmsg(FD, &mm, 1, 0, NULL));
        say(e, "%ld", check(buf, 7, 0, 2));
        T(recvfrom(FD, buf, 7, MSG_TRUNC, NULL, NULL));
        T(splice(FD, NULL, p[1], NULL, 7, 0));
        T(read(p[0], buf, 64));
        say(e, "%ld", check(buf, 7, 0, 2));
        close(p[0]), close(p[1]);
    }
    goes_on(e);
}

// Sockets cannot be opened anew by name; the attempt changes nothing.
static void by_name(struct end *e)
{
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", FD);
        produce(e, FD, 1000, 2);
        T(open(path, O_RDWR));
        FILE *f = fopen("/dev/null", "r");
        T(freopen(path, "r", f) == NULL);
        expect(e, FD, 1000, 1);
    }
    AT(C) expect(e, FD, 1000, 2);
    goes_on(e);
}

PLAIN_MAIN(CASE(peer_has_shut, COLD), CASE(we_have_shut, COLD), CASE(both_have_shut, COLD), CASE(program_shuts, COLD),
           CASE(watched_shut, COLD), CASE(watched_closed, COLD), CASE(unread_before_urgent, COLD),
           CASE(unread_before_our_end, COLD), CASE(closed_and_read, COLD), CASE(closed_with_few, COLD), CASE(closed_with_much, COLD),
           CASE(stream_to_the_end, COLD), CASE(reset_empty, COLD), CASE(reset_with_few, COLD),
           CASE(shut_right_after, COLD), CASE(close_right_after, COLD), CASE(close_unread, COLD),
           CASE(abort_right_after, COLD), CASE(filter, COLD), CASE(stamps, COLD), CASE(zero_copy, COLD),
           CASE(paced, COLD), CASE(paced_before, BARE), CASE(paced_listener, BARE),
           CASE(urgent, COLD), CASE(asynchronous, COLD), CASE(watched_idle, COLD | ALL | STEADY),
           CASE(watched_unread, COLD | ALL | STEADY), CASE(watched_program_idle, COLD | STEADY), CASE(watched_program_unread, COLD | STEADY),
           CASE(peer_watches_idle, COLD), CASE(peer_watches_unread, COLD), CASE(one_shot, COLD), CASE(room_again, COLD),
           CASE(lingers_not_behind_part, TWO), CASE(unread_behind_part, TWO), CASE(signal_behind_part, TWO), CASE(signal_behind_message, TWO), CASE(stream_under_sleepers, TWO | COLD), CASE(program_under_sleepers, TWO | COLD),
           CASE(half_received, TWO | COLD), CASE(program_behind_unread, COLD), CASE(stream_behind_unread, COLD),
           CASE(under_traffic, TWO | COLD), CASE(wished_under_traffic, TWO | COLD), CASE(wished_unread, COLD), CASE(under_load, TWO | COLD), CASE(daemon_closefrom, SPLIT | COLD),
           CASE(daemon_close_range, SPLIT | COLD), CASE(daemon_close, SPLIT | COLD), CASE(counts, COLD), CASE(all_calls, COLD), CASE(by_name, COLD),
           CASE(io_uring, SPLIT | COLD)) // last: from there on all of the process stays on TCP
