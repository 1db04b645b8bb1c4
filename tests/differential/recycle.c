// Short connections, one after the other, between the same two sides: what is used again must look like what is new.
// path: free
// recycles: some
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include <sys/syscall.h>

enum { MANY = 200, SOME = 60 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, level, name, &value, &n) ? -errno : value != 0;
}

static void set(struct end *e, int fd, int level, int name, int value)
{
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

// Both sides make a connection, at the same time.
static void join_anew(struct end *e)
{
    if (e->role == C)
        dial(e);
    else
        answer(e);
}

// The client asks, the server answers; `i` tells the connections apart.
static int talk(struct end *e, int i)
{
    char question[32], reply[32], buf[64];
    int n = snprintf(question, sizeof question, "question %d", i);
    int m = snprintf(reply, sizeof reply, "the answer is %d", i * 7);
    if (e->role == C) {
        put(FD, question, n);
        return get(FD, buf, m) != (size_t)m || memcmp(buf, reply, m) != 0;
    }
    int wrong = get(FD, buf, n) != (size_t)n || memcmp(buf, question, n) != 0;
    put(FD, reply, m);
    return wrong;
}

// One side closes; the other one sees the end, and closes too.
static int part(struct end *e, enum role first)
{
    char c;
    int wrong = 0;
    if (e->role != first)
        wrong = differs(e, "recv at the end", recv(FD, &c, 1, 0), 0);
    MUST(close(FD));
    FD = -1;
    return wrong;
}

static void one_after_the_other(struct end *e)
{
    int wrong = 0, number = -1, alone = e->pid != e->peer_pid;
    for (int i = 0; i < MANY; i++) {
        join_anew(e);
        if (i == 0)
            number = FD;
        wrong += alone && FD != number;
        wrong += talk(e, i);
        wrong += part(e, i / 3 % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// Ends that come before, in the middle and behind.
static void without_a_word(struct end *e)
{
    int wrong = 0;
    char c;
    for (int i = 0; i < SOME; i++) {
        join_anew(e);
        if (i % 3 == 0 && e->role == C)
            put(FD, "x", 1);
        if (i % 3 == 0 && e->role == S)
            wrong += get(FD, &c, 1) != 1;
        wrong += part(e, i % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// The peer's name is right, and the same numbers and flags as ever.
static void names(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < SOME; i++) {
        union address a = {0}, b = {0};
        socklen_t n = sizeof a, m = sizeof b;
        if (e->role == C) {
            FD = MUST(tcp_socket(e->fam, i % 2 ? SOCK_CLOEXEC : 0));
            MUST(tcp_connect(FD, e->fam, e->port));
            MUST(getpeername(FD, &a.sa, &n));
            int port = a.sa.sa_family == AF_INET ? ntohs(a.in.sin_port) : ntohs(a.in6.sin6_port);
            wrong += differs(e, "port", port, e->port);
        } else {
            FD = MUST(accept4(e->lfd, &a.sa, &n, i % 2 ? SOCK_CLOEXEC : 0));
            MUST(getpeername(FD, &b.sa, &m));
            wrong += differs(e, "length", n, m) + differs(e, "name", memcmp(&a, &b, n), 0);
        }
        wrong += differs(e, "close-on-exec", fcntl(FD, F_GETFD), i % 2 ? FD_CLOEXEC : 0);
        wrong += differs(e, "flags", fcntl(FD, F_GETFL), O_RDWR);
        wrong += talk(e, i);
        wrong += part(e, C);
    }
    say(e, "wrong: %d", wrong);
}

static int keepalive(int fd, int name)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, IPPROTO_TCP, name, &value, &n) ? -errno : value;
}

// Whatever one connection has been told, the next one has not.
static void options(struct end *e)
{
    static const int names[] = {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT};
    int wrong = 0, first[3];
    for (int i = 0; i < SOME; i++) {
        int before = e->role == C && i % 3 == 0;
        if (e->role == C) {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            if (before)
                set(e, FD, IPPROTO_TCP, TCP_NODELAY, 1);
            MUST(tcp_connect(FD, e->fam, e->port));
        } else {
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC | (i % 7 == 0 ? SOCK_NONBLOCK : 0)));
        }
        wrong += differs(e, "TCP_NODELAY", option(FD, IPPROTO_TCP, TCP_NODELAY), before);
        wrong += differs(e, "SO_KEEPALIVE", option(FD, SOL_SOCKET, SO_KEEPALIVE), 0);
        wrong += differs(e, "SO_REUSEADDR", option(FD, SOL_SOCKET, SO_REUSEADDR), e->role == S);
        wrong += differs(e, "SO_ERROR", option(FD, SOL_SOCKET, SO_ERROR), 0);
        wrong += differs(e, "TCP_CORK", option(FD, IPPROTO_TCP, TCP_CORK), 0);
        for (int k = 0; k < 3; k++) {
            if (i == 0)
                first[k] = keepalive(FD, names[k]);
            wrong += differs(e, "of SO_KEEPALIVE", keepalive(FD, names[k]), first[k]);
        }
        int waits = e->role == C || i % 7 != 0;
        wrong += differs(e, "O_NONBLOCK", !(fcntl(FD, F_GETFL) & O_NONBLOCK), waits);
        nonblocking(FD, 0);
        if (i % 4 == 1)
            set(e, FD, SOL_SOCKET, SO_KEEPALIVE, 1);
        if (i % 5 == 1)
            set(e, FD, SOL_SOCKET, SO_PRIORITY, 3);
        if (i % 3 == 1)
            set(e, FD, IPPROTO_TCP, names[i % 9 / 3], 7);
        if (i % 6 == 3) {
            struct linger none = {0, 0};
            MUST(setsockopt(FD, SOL_SOCKET, SO_LINGER, &none, sizeof none));
            set(e, FD, IPPROTO_TCP, TCP_CORK, 1);
        }
        wrong += talk(e, i);
        if (i % 2)
            set(e, FD, IPPROTO_TCP, TCP_NODELAY, 1);
        if (i % 6 == 2)
            MUST(nonblocking(FD, 1));
        nonblocking(FD, 0);
        wrong += part(e, i % 4 < 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// Another socket takes the number of a new one, and the library sees nothing of it.
static void replace_unseen(struct end *e, int fd)
{
    int one = 1, family = e->fam == V4 || e->fam == DUAL ? AF_INET : AF_INET6;
    int other = past_libc(SYS_socket, family, SOCK_STREAM, 0, NULL, 0);
    MUST(other);
    past_libc(SYS_setsockopt, other, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    past_libc(SYS_dup3, other, fd, O_CLOEXEC, NULL, 0);
    past_libc(SYS_close, other, 0, 0, NULL, 0);
}

static int is_unbound(struct end *e, int fd)
{
    union address a = {0};
    socklen_t n = sizeof a;
    MUST(getsockname(fd, &a.sa, &n));
    return a.sa.sa_family == AF_INET ? !a.in.sin_port : a.sa.sa_family == AF_INET6 && !a.in6.sin6_port;
}

// A new socket is as new, whatever was done to the one before, whose place a connection has taken.
static void new_sockets(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 2 * SOME; i++) {
        int flags = (i % 2 ? SOCK_CLOEXEC : 0) | (i % 3 ? 0 : SOCK_NONBLOCK);
        if (e->role == S) {
            FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        } else {
            int lowest = MUST(dup(e->lfd >= 0 ? e->lfd : 0));
            MUST(close(lowest));
            FD = MUST(tcp_socket(e->fam, flags));
            if (e->pid != e->peer_pid)
                wrong += differs(e, "number", FD, lowest);
            wrong += differs(e, "close-on-exec", fcntl(FD, F_GETFD), i % 2 ? FD_CLOEXEC : 0);
            wrong += differs(e, "flags", fcntl(FD, F_GETFL), O_RDWR | (i % 3 ? 0 : O_NONBLOCK));
            wrong += differs(e, "TCP_NODELAY", option(FD, IPPROTO_TCP, TCP_NODELAY), 0);
            wrong += differs(e, "SO_KEEPALIVE", option(FD, SOL_SOCKET, SO_KEEPALIVE), 0);
            wrong += differs(e, "SO_PRIORITY", option(FD, SOL_SOCKET, SO_PRIORITY), 0);
            wrong += differs(e, "unbound", is_unbound(e, FD), 1);
            MUST(nonblocking(FD, 0));
            union address any = {.sa.sa_family = e->fam == V4 || e->fam == DUAL ? AF_INET : AF_INET6};
            switch (i / 3 % 7) {
            case 0:
                set(e, FD, IPPROTO_TCP, TCP_NODELAY, 1);
                break;
            case 1:
                set(e, FD, SOL_SOCKET, SO_PRIORITY, 3);
                break;
            case 2:
                MUST(bind(FD, &any.sa, any.sa.sa_family == AF_INET ? sizeof any.in : sizeof any.in6));
                break;
            case 3:
                MUST(close(MUST(dup(FD))));
                break;
            case 4:
                replace_unseen(e, FD);
                break;
            case 5:
                MUST(fcntl(FD, F_SETFD, FD_CLOEXEC));
                break;
            default:
                break;
            }
            MUST(tcp_connect(FD, e->fam, e->port));
        }
        wrong += talk(e, i);
        wrong += part(e, i / 2 % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// What is not in order ends as ever: unread bytes, SO_LINGER, a half close, a copy.
static void not_in_order(struct end *e)
{
    int wrong = 0;
    char buf[64];
    for (int i = 0; i < SOME; i++) {
        join_anew(e);
        wrong += talk(e, i);
        struct linger now = {1, 0};
        switch (i % 5) {
        case 0: // The server leaves something unread.
            if (e->role == C) {
                put(FD, "unread", 6);
                go(e);
                wrong += differs(e, "recv", recv(FD, buf, 1, 0), -1) + differs(e, "error", errno, ECONNRESET);
            } else {
                await_go(e);
            }
            break;
        case 1:
            if (e->role == S)
                MUST(setsockopt(FD, SOL_SOCKET, SO_LINGER, &now, sizeof now));
            else
                wrong += differs(e, "recv", recv(FD, buf, 1, 0), -1) + differs(e, "error", errno, ECONNRESET);
            break;
        case 2:
            if (e->role == S)
                MUST(shutdown(FD, SHUT_WR));
            wrong += e->role == C && differs(e, "recv", recv(FD, buf, 1, 0), 0);
            break;
        case 3:
            if (e->role == S) {
                int copy = MUST(dup(FD));
                MUST(close(FD));
                put(copy, "by the copy", 11);
                FD = copy;
            } else {
                wrong += differs(e, "recv", get(FD, buf, 11), 11);
            }
            break;
        default:
            break;
        }
        if (i % 5 < 2) {
            MUST(close(FD));
            FD = -1;
        } else {
            wrong += part(e, i % 5 == 2 ? C : S);
        }
    }
    say(e, "wrong: %d", wrong);
}

// A child that lives on has no part in what its parent closes.
static void beside_a_child(struct end *e)
{
    int wrong = 0;
    pid_t child = 0;
    for (int i = 0; i < SOME; i++) {
        join_anew(e);
        wrong += talk(e, i);
        wrong += part(e, i % 2 ? S : C);
        if (i % 10 == 5) {
            if (child > 0) {
                kill(child, SIGKILL);
                MUST(waitpid(child, NULL, 0));
            }
            child = MUST(fork());
            if (child == 0) {
                for (;;)
                    pause();
            }
        }
    }
    kill(child, SIGKILL);
    MUST(waitpid(child, NULL, 0));
    say(e, "wrong: %d", wrong);
}

// A listener that is closed refuses, whatever was accepted there before.
static void listener_closed(struct end *e)
{
    int port = 0, own = -1, wrong = 0;
    if (e->role == S)
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 8, &port));
    share(e, S, &port, sizeof port);
    for (int i = 0; i < 10; i++) {
        if (e->role == C) {
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(FD, e->fam, port));
        } else {
            FD = MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC));
        }
        wrong += talk(e, i);
        wrong += part(e, S);
    }
    if (e->role == S) {
        MUST(close(own));
        go(e);
    } else {
        await_go(e);
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        T(tcp_connect(FD, e->fam, port));
    }
    say(e, "wrong: %d", wrong);
}

struct elsewhere {
    struct end end;
    int step[2];
    int error;
};

// Connects in a network namespace of its own, when it is told to.
static void *connects_elsewhere(void *arg)
{
    struct elsewhere *w = arg;
    struct end *e = &w->end;
    char c = 0;
    MUST(unshare(CLONE_NEWNET));
    MUST(write(w->step[1], &c, 1));
    MUST(read(w->step[1], &c, 1));
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    w->error = tcp_connect(fd, e->fam, e->port) ? errno : 0;
    MUST(close(fd));
    return NULL;
}

// A thread in another network namespace does not reach the listener of this one, whatever the others have closed.
static void in_another_network(struct end *e)
{
    struct elsewhere w = {.end = *e};
    pthread_t thread;
    char c = 0;
    int wrong = 0;
    if (e->role == C) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w.step));
        MUST(-pthread_create(&thread, NULL, connects_elsewhere, &w));
        MUST(read(w.step[0], &c, 1));
    }
    for (int i = 0; i < 2; i++) {
        join_anew(e);
        wrong += talk(e, i);
        wrong += part(e, S);
        if (i == 0 && e->role == C) {
            await_blocked(e);
            MUST(write(w.step[0], &c, 1));
            pthread_join(thread, NULL);
            wrong += differs(e, "connect fails", w.error != 0, 1);
            close(w.step[0]);
            close(w.step[1]);
        } else if (i == 0) {
            will_block(e);
        }
    }
    say(e, "wrong: %d", wrong);
}

// However late the acceptor is, it gets first what was connected first: by a socket that is bound, for which nothing is used
// again, or by one that may be.
static void in_order(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        char c;
        join_anew(e);
        wrong += talk(e, i);
        wrong += part(e, S);
        if (e->role == C) {
            int fds[2];
            await_blocked(e);
            kill(e->peer_pid, SIGSTOP);
            await_stop(e, e->peer_pid, e->peer_pid);
            for (int n = 0; n < 2; n++) {
                union address any = {.sa.sa_family = e->fam == V4 || e->fam == DUAL ? AF_INET : AF_INET6};
                fds[n] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
                if (n == i % 2)
                    MUST(bind(fds[n], &any.sa, any.sa.sa_family == AF_INET ? sizeof any.in : sizeof any.in6));
                MUST(tcp_connect(fds[n], e->fam, e->port));
                put(fds[n], n ? "1" : "0", 1);
            }
            kill(e->peer_pid, SIGCONT);
            for (int n = 0; n < 2; n++) {
                wrong += differs(e, "recv at the end", recv(fds[n], &c, 1, 0), 0);
                MUST(close(fds[n]));
            }
        } else {
            will_block(e);
            for (int n = 0; n < 2; n++) {
                int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
                wrong += get(fd, &c, 1) != 1 || differs(e, "which", c - '0', n);
                MUST(close(fd));
            }
        }
    }
    say(e, "wrong: %d", wrong);
}

// Several threads accept, and several connect.
enum { THREADS = 4 };
struct worker {
    struct end end;
    int wrong;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct end *e = &w->end;
    for (int i = 0; i < MANY; i++) {
        join_anew(e);
        w->wrong += talk(e, 0);
        w->wrong += part(e, S);
    }
    return NULL;
}

static void several_threads(struct end *e)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.end = *e};
        MUST(-pthread_create(&threads[i], NULL, work, &workers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += workers[i].wrong;
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(one_after_the_other, BARE | TWO | ALL), CASE(without_a_word, BARE | TWO | ALL),
          CASE(names, BARE | TWO | ALL), CASE(options, BARE | TWO), CASE(new_sockets, BARE | TWO | ALL), CASE(not_in_order, BARE | TWO),
          CASE(beside_a_child, BARE | SPLIT), CASE(listener_closed, BARE | TWO | ALL), CASE(in_order, BARE | SPLIT),
          CASE(in_another_network, BARE | SPLIT | APART), CASE(several_threads, BARE | TWO))
