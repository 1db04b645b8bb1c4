// Setting connections up: every kind of connect, accept and listener.
// path: shunted (what a socket sends to itself is most, and stays on TCP)
// timeout: 120
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

static void so_error(struct end *e)
{
    int error = -1;
    socklen_t n = sizeof error;
    T(getsockopt(FD, SOL_SOCKET, SO_ERROR, &error, &n));
    say(e, "SO_ERROR %s", error ? errname(error) : "0");
}

// An address with its port replaced by what it should be.
static void show(struct end *e, const char *what, union address *a, socklen_t n, int port)
{
    char text[64] = "?";
    int got = -1;
    if (a->sa.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->in.sin_addr, text, sizeof text);
        got = ntohs(a->in.sin_port);
    } else if (a->sa.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->in6.sin6_addr, text, sizeof text);
        got = ntohs(a->in6.sin6_port);
    }
    say(e, "%s: family %d, %s, length %u, port %s", what, a->sa.sa_family, text, n,
        got == port ? "right" : got == 0 ? "0" : port < 0 && got > 0 ? "some" : "wrong");
}

static void blocking(struct end *e)
{
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        T(tcp_connect(FD, e->fam, e->port));
        so_error(e);
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    AT(C) {
        T(tcp_connect(FD, e->fam, e->port));
        T(listen(FD, 5));
        union address a;
        socklen_t n = target(e->fam, 0, &a);
        T(bind(FD, &a.sa, n));
    }
    AT(S) {
        T(tcp_connect(FD, e->fam, e->port));
        T(listen(FD, 5));
        T(accept(FD, NULL, NULL));
    }
}

static void non_blocking(struct end *e)
{
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct pollfd p = {FD, POLLIN | POLLOUT, 0};
        T(poll(&p, 1, 0));
        say(e, "%s", events(p.revents));
        T(tcp_connect(FD, e->fam, e->port));
        say(e, "%s", events(await_events(e, FD, POLLOUT)));
        so_error(e);
        T(tcp_connect(FD, e->fam, e->port));
        T(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
}

// Select decides, and writing before waiting works too.
static void non_blocking_select(struct end *e)
{
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK);
        T(tcp_connect(FD, e->fam, e->port));
        fd_set w;
        FD_ZERO(&w);
        FD_SET(FD, &w);
        T(select(FD + 1, NULL, &w, NULL, NULL));
        T(send(FD, "first", 5, 0));
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        T(recv(FD, (char[8]){0}, 8, 0));
    }
    warm_up(e);
}

static void refused(struct end *e)
{
    AT(C) {
        // A port that was bound a moment ago and listens no more.
        int port = 0, l = tcp_listener(e->fam, SOCK_CLOEXEC, BIND_ONLY, &port);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, port));
        so_error(e);
        close(FD);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK);
        long r = tcp_connect(FD, e->fam, port);
        say(e, "connect: %s", r == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED) ? "as it should" : "?");
        say(e, "%s", events(await_events(e, FD, POLLOUT)));
        so_error(e);
        so_error(e);
        T(send(FD, "x", 1, 0));
        T(recv(FD, (char[1]){0}, 1, 0));
        // The same socket may try again.
        nonblocking(FD, 0);
        T(tcp_connect(FD, e->fam, e->port)); // tells of the failure once more
        T(tcp_connect(FD, e->fam, e->port));
        close(l);
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
}

static void refused_by_recv(struct end *e)
{
    AT(C) {
        int port = 0, l = tcp_listener(e->fam, SOCK_CLOEXEC, BIND_ONLY, &port);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK);
        T(tcp_connect(FD, e->fam, port) == -1);
        await_events(e, FD, POLLERR);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(recv(FD, (char[1]){0}, 1, 0));
        T(send(FD, "x", 1, 0));
        close(l);
        close(FD), FD = -1;
    }
}

static void dissolved(struct end *e)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    AT(C) {
        T(connect(FD, &none, sizeof none));
        T(send(FD, "x", 1, 0));
        T(recv(FD, (char[1]){0}, 1, 0));
        union address a;
        socklen_t n = sizeof a;
        T(getpeername(FD, &a.sa, &n));
    }
    AT(S) {
        await_events(e, FD, POLLIN);
        T(recv(FD, (char[1]){0}, 1, 0));
        close(FD);
    }
    // The socket can be used for a new connection.
    AT(C) T(tcp_connect(FD, e->fam, e->port));
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    warm_up(e);
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, (char[8]){0}, 8, 0));
}

// Its registration in a set stays, too.
static void dissolved_in_set(struct end *e)
{
    static int set;
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct epoll_event event = {EPOLLIN, {.u32 = 7}};
    AT(C) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(send(FD, "unread", 6, 0));
        T(connect(FD, &none, sizeof none));
        T(epoll_wait(set, &event, 1, 0));
        say(e, "%s", events(event.events));
    }
    AT(S) {
        await_events(e, FD, POLLERR);
        close(FD);
    }
    AT(C) T(tcp_connect(FD, e->fam, e->port));
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        for (int i = 0; i < 40; i++)
            MUST(send(FD, "a", 1, 0));
    }
    AT(C) {
        event = (struct epoll_event){0};
        T(epoll_wait(set, &event, 1, PATIENCE_MS));
        say(e, "%s, %u", events(event.events), event.data.u32);
        T(recv(FD, (char[64]){0}, 40, MSG_WAITALL));
        T(epoll_wait(set, &event, 1, 0));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, NULL));
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, NULL));
        close(set);
    }
}

static void bad_addresses(struct end *e)
{
    AT(C) {
        union address a;
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        socklen_t n = target(e->fam, e->port, &a);
        T(connect(FD, &a.sa, 2));
        T(connect(FD, &a.sa, n - 8));
        T(connect(FD, (struct sockaddr *)8, n));
        T(connect(FD, &a.sa, -1));
        T(connect(FD, &a.sa, 0));
        a.sa.sa_family = AF_UNIX;
        T(connect(FD, &a.sa, n));
        T(connect(-1, &a.sa, n));
        int file = open("/dev/null", O_RDWR | O_CLOEXEC);
        T(connect(file, &a.sa, n));
        T(accept(file, NULL, NULL));
        T(listen(file, 1));
        close(file);
        T(accept(FD, NULL, NULL));
        union address b;
        T(getpeername(FD, &b.sa, &(socklen_t){sizeof b}));
        n = sizeof b;
        T(getsockname(FD, &b.sa, &n));
        show(e, "unbound", &b, n, 0);
        T(getsockname(FD, &b.sa, (socklen_t *)8));
        close(FD), FD = -1;
    }
}

static void names(struct end *e)
{
    union address a;
    socklen_t n;
    int mine = 0;
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        n = sizeof a;
        T(getsockname(FD, &a.sa, &n));
        show(e, "my name", &a, n, -1);
        mine = ntohs(a.in.sin_port);
    }
    share(e, C, &mine, sizeof mine);
    AT(S) {
        n = sizeof a;
        FD = MUST(accept4(e->lfd, &a.sa, &n, SOCK_CLOEXEC));
        show(e, "accepted", &a, n, mine);
    }
    warm_up(e);
    AT(S) {
        int other = MUST(dup(FD));
        n = sizeof a;
        T(getpeername(FD, &a.sa, &n));
        show(e, "peer", &a, n, mine);
        n = sizeof a;
        T(getpeername(other, &a.sa, &n));
        show(e, "peer of dup", &a, n, mine);
        n = sizeof a;
        T(getsockname(FD, &a.sa, &n));
        show(e, "my name", &a, n, e->port);
        n = 4;
        memset(&a, 0x77, sizeof a);
        T(getsockname(FD, &a.sa, &n));
        say(e, "length %u", n);
        n = -1;
        T(getsockname(FD, &a.sa, &n));
        close(other);
        n = sizeof a;
        T(getsockname(e->lfd, &a.sa, &n));
        show(e, "listener", &a, n, e->port);
        T(getpeername(e->lfd, &a.sa, &n));
    }
    AT(C) {
        n = sizeof a;
        T(getpeername(FD, &a.sa, &n));
        show(e, "peer", &a, n, e->port);
        n = sizeof a;
        T(getsockname(FD, &a.sa, &n));
        show(e, "my name", &a, n, mine);
    }
}

static void accept_flags(struct end *e)
{
    union address a;
    socklen_t n;
    for (int i = 0; i < 5; i++) {
        AT(C) {
            FD = tcp_socket(e->fam, SOCK_CLOEXEC);
            T(tcp_connect(FD, e->fam, e->port));
        }
        AT(S) {
            n = i == 4 ? 3 : sizeof a;
            switch (i) {
            case 0: FD = OK(accept(e->lfd, NULL, NULL)); break;
            case 1: FD = OK(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)); break;
            case 2: FD = OK(accept4(e->lfd, NULL, NULL, SOCK_NONBLOCK)); break;
            case 3: FD = OK(accept4(e->lfd, &a.sa, &n, SOCK_CLOEXEC | SOCK_NONBLOCK)); break;
            case 4:
                T(accept4(e->lfd, NULL, NULL, 0x5555));
                FD = OK(accept(e->lfd, &a.sa, &n));
                say(e, "length %u", n);
                break;
            }
            T(fcntl(FD, F_GETFD));
            T(fcntl(FD, F_GETFL));
        }
        warm_up(e);
        AT(C) close(FD), FD = -1;
        AT(S) close(FD), FD = -1;
    }
}

static void accept_would_block(struct end *e)
{
    AT(S) {
        int port = 0, l = tcp_listener(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK, 5, &port);
        T(accept(l, NULL, NULL));
        T(accept4(l, NULL, NULL, SOCK_CLOEXEC));
        T(accept(-1, NULL, NULL));
        T(listen(l, 7));
        T(accept(l, NULL, NULL));
        int value = 0;
        socklen_t n = sizeof value;
        T(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &value, &n));
        say(e, "accepts %d", value);
        close(l);
        T(accept(l, NULL, NULL));
    }
}

static void accept_sleeps(struct end *e)
{
    if (e->role == S) {
        will_block(e);
        FD = OK(accept(e->lfd, NULL, NULL));
        T(recv(FD, (char[8]){0}, 8, 0));
    } else {
        await_blocked(e);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        T(send(FD, "abc", 3, 0));
    }
}

static void listener_of(struct end *e, int *l, int *port)
{
    AT(S) {
        *port = 0;
        *l = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 5, port));
    }
    share(e, S, port, sizeof *port);
}

// Data sent, and the end, before anybody accepts.
static void before_accept(struct end *e)
{
    char buf[8];
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        T(send(FD, "abc", 3, 0));
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        T(recv(FD, buf, 8, 0));
        T(send(FD, "de", 2, 0));
    }
    AT(C) T(recv(FD, buf, 8, 0));
    warm_up(e);
}

static void ended_before_accept(struct end *e)
{
    char buf[8];
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        T(send(FD, "abc", 3, 0));
        T(close(FD)), FD = -1;
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, 0));
        T(send(FD, "x", 1, 0));
    }
}

static void reset_before_accept(struct end *e)
{
    char buf[8];
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, e->port));
        T(send(FD, "abc", 3, 0));
        struct linger l = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        T(close(FD)), FD = -1;
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, 0));
    }
}

// A listener closed with connections waiting resets them.
static void listener_closed(struct end *e)
{
    int l = -1, port = 0;
    listener_of(e, &l, &port);
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, port));
        T(send(FD, "abc", 3, 0));
    }
    AT(S) close(l);
    AT(C) {
        await_over(e);
        say(e, "%s", events(await_events(e, FD, POLLERR)));
        T(recv(FD, (char[4]){0}, 4, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
        close(FD);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, port));
    }
}

// A listener closed after accept: the accepted connection goes on.
static void listener_gone(struct end *e)
{
    int l = -1, port = 0;
    listener_of(e, &l, &port);
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(tcp_connect(FD, e->fam, port));
    }
    AT(S) {
        FD = MUST(accept4(l, NULL, NULL, SOCK_CLOEXEC));
        close(l);
    }
    warm_up(e);
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, (char[8]){0}, 8, 0));
}

// shutdown() of a listener wakes those who accept.
static void listener_shut(struct end *e)
{
    AT(S) {
        int port = 0, l = tcp_listener(e->fam, SOCK_CLOEXEC, 5, &port);
        T(shutdown(l, SHUT_RDWR));
        T(accept(l, NULL, NULL));
        T(listen(l, 5));
        nonblocking(l, 1);
        T(accept(l, NULL, NULL));
        close(l);
    }
}

static void self_connected(struct end *e)
{
    char buf[8];
    AT(C) {
        union address a;
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        socklen_t n = target(e->fam, 0, &a);
        T(bind(FD, &a.sa, n));
        n = sizeof a;
        MUST(getsockname(FD, &a.sa, &n));
        T(connect(FD, &a.sa, n));
        for (int i = 0; i < 10; i++) {
            MUST(send(FD, "ab", 2, 0));
            MUST(recv(FD, buf, 8, 0));
        }
        T(send(FD, "abcdef", 6, 0));
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 3, 0));
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        size_t total = stuff(e, FD, 3);
        drain(e, FD, total, 3);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 8, 0));
        T(send(FD, "x", 1, 0));
        close(FD), FD = -1;
    }
}

// The same pair of addresses again, at once.
static void same_port_again(struct end *e)
{
    int mine = 0, on = 1;
    for (int i = 0; i < 3; i++) {
        AT(C) {
            union address a;
            FD = tcp_socket(e->fam, SOCK_CLOEXEC);
            setsockopt(FD, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            socklen_t n = target(e->fam, mine, &a);
            MUST(bind(FD, &a.sa, n));
            n = sizeof a;
            MUST(getsockname(FD, &a.sa, &n));
            mine = ntohs(a.in.sin_port);
            T(tcp_connect(FD, e->fam, e->port));
        }
        AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        warm_up(e);
        AT(C) T(send(FD, "abc", 3, 0));
        AT(S) T(recv(FD, (char[8]){0}, 8, 0));
        // Reset, so that nothing remains of the connection.
        AT(C) {
            struct linger l = {1, 0};
            setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l);
            close(FD), FD = -1;
        }
        AT(S) {
            T(recv(FD, (char[8]){0}, 8, 0));
            close(FD), FD = -1;
        }
    }
}

// A descriptor number at once used for the next connection.
static void same_number_again(struct end *e)
{
    char buf[8];
    int first[2] = {-1, -1};
    for (int i = 0; i < 6; i++) {
        AT(C) {
            FD = tcp_socket(e->fam, SOCK_CLOEXEC);
            T(tcp_connect(FD, e->fam, e->port));
        }
        AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        AT(C) {
            if (first[C] < 0)
                first[C] = FD;
            say(e, "same number %d", FD == first[C]);
        }
        if (i & 1)
            warm_up(e);
        AT(C) T(send(FD, "abc", 3, 0));
        AT(S) {
            T(recv(FD, buf, 8, 0));
            close(FD), FD = -1;
        }
        AT(C) {
            T(recv(FD, buf, 8, 0));
            close(FD), FD = -1;
        }
    }
}

static void port_in_use(struct end *e)
{
    AT(S) {
        int port = e->port;
        T(tcp_listener(e->fam, SOCK_CLOEXEC, 5, &port));
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        union address a;
        socklen_t n = target(e->fam, e->port, &a);
        T(bind(FD, &a.sa, n));
        close(FD), FD = -1;
    }
}

// Two listeners share a port: the kernel deals the connections out.
static void shared_port(struct end *e)
{
    enum { N = 20 };
    static int l[2], port, c[N], s[N];
    char buf[8];
    AT(S) {
        port = 0;
        for (int i = 0; i < 2; i++)
            l[i] = MUST(tcp_listener(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK, SHARED, &port));
    }
    share(e, S, &port, sizeof port);
    AT(C)
        for (int i = 0; i < N; i++) {
            c[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(c[i], e->fam, port));
        }
    AT(S) {
        int n = 0;
        for (int i = 0; i < 2; i++)
            while (n < N && (s[n] = accept4(l[i], NULL, NULL, SOCK_CLOEXEC)) >= 0)
                n++;
        say(e, "%d accepted", n);
    }
    for (int round = 0; round < 6; round++) {
        AT(C) for (int i = 0; i < N; i++) put(c[i], "ping", 4);
        AT(S)
            for (int i = 0; i < N; i++) {
                get(s[i], buf, 4);
                put(s[i], "pong", 4);
            }
        AT(C) for (int i = 0; i < N; i++) get(c[i], buf, 4);
    }
    AT(C) for (int i = 0; i < N; i++) close(c[i]);
    AT(S) {
        int ends = 0;
        for (int i = 0; i < N; i++) {
            ends += recv(s[i], buf, 8, 0) == 0;
            close(s[i]);
        }
        say(e, "%d ends", ends);
        close(l[0]), close(l[1]);
    }
}

// Children accept from one listener, each serving what it got.
static void prefork(struct end *e)
{
    enum { KIDS = 3, N = 24 };
    int l = -1, port = 0;
    char buf[16];
    AT(S) l = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 64, &port));
    share(e, S, &port, sizeof port);
    if (e->role == S) {
        pid_t kids[KIDS];
        for (int k = 0; k < KIDS; k++)
            if ((kids[k] = MUST(fork())) == 0) {
                close(e->ctl);
                for (;;) {
                    int fd = accept(l, NULL, NULL);
                    ssize_t n;
                    if (fd < 0)
                        _exit(1);
                    while ((n = read(fd, buf, sizeof buf)) > 0)
                        if (put(fd, buf, n) != (size_t)n)
                            _exit(2);
                    close(fd);
                }
            }
        await_go(e);
        for (int k = 0; k < KIDS; k++) {
            int status;
            kill(kids[k], SIGTERM);
            MUST(waitpid(kids[k], &status, 0));
            say(e, "child ended by signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        }
        close(l);
    } else {
        int good = 0;
        for (int i = 0; i < N; i++) {
            int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd, e->fam, port));
            for (int k = 0; k < 20; k++) {
                unsigned char out[16], in[16];
                fill(out, 16, k, i);
                good += put(fd, out, 16) == 16 && get(fd, in, 16) == 16 && check(in, 16, k, i) < 0;
            }
            close(fd);
        }
        say(e, "%d good", good);
        go(e);
    }
}

// By TCP it is acknowledged once the connection waits to be accepted, of which the kernel on another core may be late to hear.
static void await_queued(int fd)
{
    int unacknowledged = 1;
    for (int looks = 0; looks < 200 && ioctl(fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0; looks++)
        nap();
}

// Many at once from one client, accepted in order.
static void burst(struct end *e)
{
    enum { N = 60 };
    static int c[N];
    AT(C)
        for (int i = 0; i < N; i++) {
            c[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(c[i], e->fam, e->port));
            unsigned char id = i;
            MUST(send(c[i], &id, 1, 0));
            await_queued(c[i]);
        }
    AT(S) {
        int in_order = 0;
        for (int i = 0; i < N; i++) {
            unsigned char id = 255;
            int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            MUST(recv(fd, &id, 1, 0));
            in_order += id == i;
            MUST(send(fd, &id, 1, 0));
            close(fd);
        }
        say(e, "%d in order", in_order);
    }
    AT(C) {
        int good = 0;
        for (int i = 0; i < N; i++) {
            unsigned char id[2] = {255, 0};
            good += recv(c[i], id, 2, 0) == 1 && id[0] == i && recv(c[i], id, 1, 0) == 0;
            close(c[i]);
        }
        say(e, "%d good", good);
    }
}

// Sockets of other kinds stay what they are.
static void other_sockets(struct end *e)
{
    char buf[8];
    AT(C) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        T(write(pair[0], "abc", 3));
        T(read(pair[1], buf, 8));
        T(send(pair[1], "de", 2, MSG_NOSIGNAL));
        T(recv(pair[0], buf, 8, 0));
        close(pair[0]);
        T(recv(pair[1], buf, 8, 0));
        T(send(pair[1], "x", 1, 0));
        close(pair[1]);
        union address a;
        int u = MUST(socket(e->fam == V4 || e->fam == DUAL ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        socklen_t n = target(e->fam, 0, &a);
        T(bind(u, &a.sa, n));
        n = sizeof a;
        T(getsockname(u, &a.sa, &n));
        T(connect(u, &a.sa, n));
        T(send(u, "datagram", 8, 0));
        T(recv(u, buf, 3, MSG_TRUNC));
        T(recv(u, buf, 3, MSG_DONTWAIT));
        close(u);
        OK(socket(AF_INET, SOCK_STREAM, 12345));
        OK(socket(12345, SOCK_STREAM, 0));
    }
}

DIFF_MAIN(CASE(blocking, BARE | ALL), CASE(non_blocking, BARE | ALL), CASE(non_blocking_select, BARE),
          CASE(refused, BARE | ALL), CASE(refused_by_recv, BARE), CASE(dissolved, ALL | COLD), CASE(dissolved_in_set, COLD),
          CASE(bad_addresses, BARE | ALL), CASE(names, BARE | ALL), CASE(accept_flags, BARE | ALL),
          CASE(accept_would_block, BARE), CASE(accept_sleeps, BARE | TWO | ALL), CASE(before_accept, BARE | ALL),
          CASE(ended_before_accept, BARE | ALL), CASE(reset_before_accept, BARE), CASE(listener_closed, BARE | ALL),
          CASE(listener_gone, BARE), CASE(listener_shut, BARE), CASE(self_connected, BARE | ALL),
          CASE(same_port_again, BARE), CASE(same_number_again, BARE | SPLIT), CASE(port_in_use, BARE | ALL),
          CASE(shared_port, BARE | ALL), CASE(prefork, BARE | SPLIT | ALL), CASE(burst, BARE | ALL),
          CASE(other_sockets, BARE | ALL))
