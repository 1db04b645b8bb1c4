// A server that one thread alone accepts for, and that is busy while clients connect: what is connected meanwhile waits for it, in
// the order in which it was connected, whoever accepts in the end.
// path: free
// recycles: some
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

enum { EACH = 4, ROUNDS = 3, BACKLOG = 128 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

static int listen_at(struct end *e, int flags, int *port)
{
    int fd = -1;
    if (e->role == S)
        fd = MUST(tcp_listener(e->fam, SOCK_CLOEXEC | flags, BACKLOG, port));
    share(e, S, port, sizeof *port);
    return fd;
}

static int call_at(struct end *e, int port)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, port));
    return fd;
}

// Accepts one that is there, or comes.
static int await_one(struct end *e, int own, int set)
{
    struct pollfd one = {own, POLLIN, 0};
    struct epoll_event told;
    if (set >= 0)
        MUST(epoll_wait(set, &told, 1, PATIENCE_MS));
    else
        MUST(poll(&one, 1, PATIENCE_MS));
    return MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC));
}

// As many connections as the next ones need, all at once, each of which both sides close. The server waits for each.
static int warm(struct end *e, int own, int set, int port, int count)
{
    int fds[EACH], wrong = 0;
    char c = 0;
    for (int n = 0; n < count; n++) {
        fds[n] = e->role == S ? await_one(e, own, set) : call_at(e, port);
        if (e->role == C) {
            put(fds[n], "w", 1);
            wrong += get(fds[n], &c, 1) != 1;
        } else {
            wrong += get(fds[n], &c, 1) != 1;
            put(fds[n], &c, 1);
        }
    }
    for (int n = 0; n < count; n++) {
        if (e->role == (n % 2 ? C : S))
            MUST(close(fds[n]));
        else
            wrong += differs(e, "recv at the end", recv(fds[n], &c, 1, 0), 0) + MUST(close(fds[n]));
    }
    return wrong;
}

// The client connects while the server does something else, and says which each is.
static void call_all(struct end *e, int port, int *fds, int count)
{
    for (int n = 0; n < count; n++) {
        fds[n] = call_at(e, port);
        char c = 'a' + n;
        put(fds[n], &c, 1);
    }
}

// Each is answered by the next letter, and closed by the server.
static int end_all(struct end *e, const int *fds, int count)
{
    int wrong = 0;
    char c = 0;
    for (int n = 0; n < count; n++) {
        wrong += get(fds[n], &c, 1) != 1 || differs(e, "answer", c - 'a', n + 1);
        wrong += differs(e, "recv at the end", recv(fds[n], &c, 1, 0), 0) + MUST(close(fds[n]));
    }
    return wrong;
}

// Accepts the n-th.
static int answer_one(struct end *e, int fd, int n)
{
    char c = 0;
    int wrong = get(fd, &c, 1) != 1 || differs(e, "which", c - 'a', n);
    c++;
    put(fd, &c, 1);
    MUST(close(fd));
    return wrong;
}

// The server waits by `set`, if there is one, and otherwise in `poll`, or in `accept` alone.
static void busy(struct end *e, int flags, unsigned events, int polls)
{
    int port = 0, wrong = 0, fds[EACH], set = -1, own = listen_at(e, flags, &port);
    if (e->role == S && events) {
        struct epoll_event event = {events, {.u64 = 5}};
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, own, &event));
    }
    wrong += warm(e, own, set, port, EACH);
    for (int i = 0; i < ROUNDS; i++) {
        if (e->role == C) {
            await_go(e);
            call_all(e, port, fds, EACH);
            go(e);
            wrong += end_all(e, fds, EACH);
        } else {
            go(e);
            await_go(e);
            for (int n = 0; n < EACH; n++) {
                struct pollfd one = {own, POLLIN, 0};
                struct epoll_event told[2];
                // An edge tells of all that have come.
                int is_told = set < 0 ? polls : !(events & EPOLLET) || n == 0;
                if (set >= 0)
                    wrong += differs(e, "told by the set", MUST(epoll_wait(set, told, 2, 0)), is_told);
                else if (polls)
                    wrong += differs(e, "told by poll", MUST(poll(&one, 1, 0)), is_told);
                wrong += answer_one(e, MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC)), n);
            }
            if (flags & SOCK_NONBLOCK)
                wrong += differs(e, "accept", accept4(own, NULL, NULL, 0), -1) + differs(e, "errno", errno, EAGAIN);
        }
    }
    if (e->role == S)
        MUST(close(own));
    if (set >= 0)
        MUST(close(set));
    say(e, "wrong: %d", wrong);
}

static void accepts(struct end *e) { busy(e, 0, 0, 0); }
static void accepts_at_once(struct end *e) { busy(e, SOCK_NONBLOCK, 0, 0); }
static void polls(struct end *e) { busy(e, 0, 0, 1); }
static void by_level(struct end *e) { busy(e, SOCK_NONBLOCK, EPOLLIN, 0); }
static void by_edge(struct end *e) { busy(e, SOCK_NONBLOCK, EPOLLIN | EPOLLET, 0); }

// What the kernel connects, for a socket that is bound, comes in its turn.
static void in_turn(struct end *e)
{
    int port = 0, wrong = 0, fds[EACH], own = listen_at(e, SOCK_NONBLOCK, &port);
    for (int i = 0; i < EACH; i++) {
        wrong += warm(e, own, -1, port, EACH);
        if (e->role == C) {
            await_go(e);
            for (int n = 0; n < EACH; n++) {
                char c = 'a' + n;
                union address any = {.sa.sa_family = e->fam == V4 || e->fam == DUAL ? AF_INET : AF_INET6};
                fds[n] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
                if (n == i)
                    MUST(bind(fds[n], &any.sa, any.sa.sa_family == AF_INET ? sizeof any.in : sizeof any.in6));
                MUST(tcp_connect(fds[n], e->fam, port));
                put(fds[n], &c, 1);
            }
            go(e);
            wrong += end_all(e, fds, EACH);
        } else {
            go(e);
            await_go(e);
            for (int n = 0; n < EACH; n++)
                wrong += answer_one(e, await_one(e, own, -1), n);
        }
    }
    if (e->role == S)
        MUST(close(own));
    say(e, "wrong: %d", wrong);
}

struct other {
    struct end *end;
    int own, wrong;
};

static void *accept_all(void *arg)
{
    struct other *o = arg;
    for (int n = 0; n < EACH; n++)
        o->wrong += answer_one(o->end, await_one(o->end, o->own, -1), n);
    return NULL;
}

// Another thread than before accepts.
static void by_another_thread(struct end *e)
{
    int port = 0, wrong = 0, fds[EACH], own = listen_at(e, 0, &port);
    for (int i = 0; i < 2; i++) {
        wrong += warm(e, own, -1, port, EACH);
        if (e->role == C) {
            await_go(e);
            call_all(e, port, fds, EACH);
            go(e);
            wrong += end_all(e, fds, EACH);
        } else {
            struct other o = {e, own, 0};
            pthread_t thread;
            go(e);
            await_go(e);
            MUST(-pthread_create(&thread, NULL, accept_all, &o));
            pthread_join(thread, NULL);
            wrong += o.wrong;
        }
    }
    if (e->role == S)
        MUST(close(own));
    say(e, "wrong: %d", wrong);
}

// A child accepts, and its parent does not any more. What is connected before the child is there waits for it, too.
static void by_a_child(struct end *e)
{
    int port = 0, wrong = 0, fds[EACH], own = listen_at(e, 0, &port);
    wrong += warm(e, own, -1, port, EACH);
    if (e->role == C) {
        await_go(e);
        call_all(e, port, fds, EACH);
        wrong += end_all(e, fds, EACH);
    } else {
        pid_t child = MUST(fork());
        if (child == 0) {
            for (int n = 0; n < EACH; n++)
                wrong += answer_one(e, await_one(e, own, -1), n);
            _exit(wrong != 0);
        }
        int status = -1;
        go(e);
        MUST(waitpid(child, &status, 0));
        wrong += differs(e, "status", status, 0);
        MUST(close(own));
    }
    say(e, "wrong: %d", wrong);
}

// A listener that is closed, or shut down, resets what nobody has accepted.
static void closed_busy(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        int port = 0, fds[EACH], own = listen_at(e, 0, &port);
        wrong += warm(e, own, -1, port, EACH);
        if (e->role == S) {
            go(e);
            await_go(e);
            MUST(i ? shutdown(own, SHUT_RDWR) : close(own));
            go(e);
            await_go(e);
            if (i)
                MUST(close(own));
        } else {
            char c;
            await_go(e);
            for (int n = 0; n < EACH; n++)
                fds[n] = call_at(e, port);
            go(e);
            await_go(e);
            for (int n = 0; n < EACH; n++) {
                wrong += differs(e, "recv", recv(fds[n], &c, 1, 0), -1) + differs(e, "errno", errno, ECONNRESET);
                MUST(close(fds[n]));
            }
            int late = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            wrong += differs(e, "connect", tcp_connect(late, e->fam, port), -1) + differs(e, "errno", errno, ECONNREFUSED);
            MUST(close(late));
            go(e);
        }
    }
    say(e, "wrong: %d", wrong);
}

// What is accepted has the options that its listener had when it was connected.
static void told_meanwhile(struct end *e)
{
    int port = 0, wrong = 0, fds[EACH], own = listen_at(e, 0, &port), on = 1;
    wrong += warm(e, own, -1, port, EACH);
    if (e->role == C) {
        await_go(e);
        call_all(e, port, fds, EACH);
        go(e);
        wrong += end_all(e, fds, EACH);
    } else {
        MUST(setsockopt(own, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
        go(e);
        await_go(e);
        for (int n = 0; n < EACH; n++) {
            int fd = await_one(e, own, -1), is = -1;
            socklen_t size = sizeof is;
            MUST(getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &is, &size));
            wrong += differs(e, "option", is, 1) + answer_one(e, fd, n);
        }
        MUST(close(own));
    }
    say(e, "wrong: %d", wrong);
}

// The thread waits at the listener's set at first, and then from outside: in `poll`, in `select`, or by a set around it.
static void from_outside(struct end *e)
{
    for (int way = 0; way < 3; way++) {
        int port = 0, wrong = 0, fds[EACH], set = -1, outer = -1, own = listen_at(e, SOCK_NONBLOCK, &port);
        struct epoll_event event = {EPOLLIN, {.u64 = 5}}, told[2];
        if (e->role == S) {
            set = MUST(epoll_create1(EPOLL_CLOEXEC));
            outer = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, own, &event));
            MUST(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
        }
        wrong += warm(e, own, set, port, EACH);
        if (e->role == C) {
            await_blocked(e);
            call_all(e, port, fds, EACH);
            wrong += end_all(e, fds, EACH);
        } else {
            will_block(e);
            for (int n = 0; n < EACH; n++) {
                struct pollfd one = {set, POLLIN, 0};
                struct timeval time = {PATIENCE_MS / 1000, 0};
                fd_set all;
                FD_ZERO(&all);
                FD_SET(set, &all);
                int found = way == 0   ? poll(&one, 1, PATIENCE_MS)
                            : way == 1 ? select(set + 1, &all, NULL, NULL, &time)
                                       : epoll_wait(outer, told, 2, PATIENCE_MS);
                wrong += differs(e, "told", found, 1);
                wrong += differs(e, "told inside", epoll_wait(set, told, 2, 0), 1);
                wrong += answer_one(e, MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC)), n);
            }
            MUST(close(own));
            MUST(close(set));
            MUST(close(outer));
        }
        say(e, "wrong: %d", wrong);
    }
}

// A server that ends, in one of several ways, resets what it has not accepted.
static void server_ends(struct end *e)
{
    int wrong = 0;
    for (int way = 0; way < 3; way++) {
        int port = 0, fds[EACH], up[2], down[2];
        pid_t child = 0;
        char c = 0;
        if (e->role == S) {
            MUST(pipe2(up, O_CLOEXEC));
            MUST(pipe2(down, O_CLOEXEC));
            child = MUST(fork());
            if (child == 0) {
                int own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, BACKLOG, &port));
                MUST(write(up[1], &port, sizeof port));
                warm(e, own, -1, port, EACH);
                MUST(write(up[1], &c, 1));
                MUST(read(down[0], &c, 1));
                if (way == 1)
                    raise(SIGKILL);
                if (way == 2)
                    execlp("true", "true", NULL);
                _exit(0);
            }
            MUST(read(up[0], &port, sizeof port));
        }
        share(e, S, &port, sizeof port);
        if (e->role == S) {
            MUST(read(up[0], &c, 1));
            go(e);
            await_go(e);
            MUST(write(down[1], &c, 1));
            MUST(waitpid(child, NULL, 0));
            go(e);
            for (int n = 0; n < 2; n++) {
                close(up[n]);
                close(down[n]);
            }
        } else {
            wrong += warm(e, -1, -1, port, EACH);
            await_go(e);
            for (int n = 0; n < EACH; n++) {
                fds[n] = call_at(e, port);
                if (n % 2)
                    put(fds[n], "x", 1);
            }
            go(e);
            await_go(e);
            for (int n = 0; n < EACH; n++) {
                wrong += differs(e, "recv", recv(fds[n], &c, 1, 0), -1) + differs(e, "errno", errno, ECONNRESET);
                MUST(close(fds[n]));
            }
        }
    }
    say(e, "wrong: %d", wrong);
}

// Many at a time, in one thread each: the client connects anew as soon as it is answered.
static void many(struct end *e)
{
    enum { AT_ONCE = 30, ALL_OF_THEM = 120 };
    int port = 0, wrong = 0, own = listen_at(e, SOCK_NONBLOCK, &port), set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {EPOLLIN, {.u64 = 0}}, told[AT_ONCE];
    int begun = 0, ended = 0;
    if (e->role == S)
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, own, &event));
    while (ended < ALL_OF_THEM) {
        while (e->role == C && begun < ALL_OF_THEM && begun - ended < AT_ONCE) {
            int fd = call_at(e, port);
            event = (struct epoll_event){EPOLLIN, {.fd = fd}};
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
            put(fd, "?", 1);
            begun++;
        }
        int found = MUST(epoll_wait(set, told, AT_ONCE, PATIENCE_MS));
        if (found == 0) {
            say(e, "nothing comes any more");
            break;
        }
        for (int i = 0; i < found; i++) {
            char c = 0;
            int fd = told[i].data.fd;
            if (e->role == S && fd == 0) {
                fd = MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC));
                event = (struct epoll_event){EPOLLIN, {.fd = fd}};
                MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
                continue;
            }
            wrong += recv(fd, &c, 1, 0) != 1 || c != (e->role == S ? '?' : '!');
            if (e->role == S)
                put(fd, "!", 1);
            MUST(close(fd));
            ended++;
        }
    }
    MUST(close(set));
    if (e->role == S)
        MUST(close(own));
    say(e, "ended: %d, wrong: %d", ended, wrong);
}

DIFF_MAIN(CASE(accepts, BARE | TWO), CASE(accepts_at_once, BARE | TWO), CASE(polls, BARE | TWO), CASE(by_level, BARE | TWO),
          CASE(by_edge, BARE | TWO), CASE(in_turn, BARE | TWO), CASE(by_another_thread, BARE | TWO), CASE(by_a_child, BARE | SPLIT),
          CASE(closed_busy, BARE | TWO), CASE(told_meanwhile, BARE | TWO), CASE(from_outside, BARE | TWO), CASE(server_ends, BARE | SPLIT),
          CASE(many, BARE | TWO))
