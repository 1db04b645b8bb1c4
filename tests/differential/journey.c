// What connections go through in their lives, each stage once and soon done. `shunt-differential faults`
// runs each case with one call of the library refused, so what is printed must not depend on which
// way the bytes go.
// timeout: 30
#include "diff.h"
#include "plain.h"

// ---- Bytes -----------------------------------------------------------------

static void exchanges(struct end *e)
{
    char buf[64] = "";
    struct iovec two[] = {{buf, 3}, {buf + 3, 5}};
    for (int i = 0; i < 12; i++) {
        AT(C) produce(e, FD, 20 + i * 700, i);
        AT(S) {
            await_bytes(e, FD, 20);
            expect(e, FD, 20 + i * 700, i);
            produce(e, FD, 5, i);
        }
        AT(C) expect(e, FD, 5, i);
    }
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, buf, 4, MSG_PEEK));
        T(readv(FD, two, 2));
        T(recv(FD, buf + 8, 9, MSG_DONTWAIT));
        T(recv(FD, buf, 1, MSG_DONTWAIT));
        say(e, "%.10s", buf);
        T(writev(FD, two, 2));
    }
    AT(C) {
        T(recv(FD, buf, 8, MSG_WAITALL));
        say(e, "%.8s", buf);
    }
}

static void large(struct end *e)
{
    for (int i = 0; i < 2; i++) {
        if (e->role == C) {
            produce(e, FD, 1000000, i);
            expect(e, FD, 300000, i + 2);
        } else {
            expect(e, FD, 1000000, i);
            produce(e, FD, 300000, i + 2);
        }
        meet(e);
    }
}

// Both directions full; then all is taken.
static void full(struct end *e)
{
    size_t n = 0;
    AT(C) n = stuff(e, FD, 1);
    share(e, C, &n, sizeof n);
    if (e->role == C) {
        fill(scratch(), 1000, n, 1);
        will_block(e);
        T(send(FD, scratch(), 1000, 0));
    } else {
        await_blocked(e);
        drain(e, FD, n + 1000, 1);
    }
    meet(e);
    AT(S) n = stuff(e, FD, 2);
    share(e, S, &n, sizeof n);
    AT(C) drain(e, FD, n, 2);
    AT(S) say(e, "%s", events(await_events(e, FD, POLLOUT)));
}

static void files(struct end *e)
{
    int pipes[2];
    char buf[128];
    MUST(pipe2(pipes, O_CLOEXEC));
    AT(C) {
        int file = memfd_create("file", MFD_CLOEXEC);
        fill(buf, 100, 0, 1);
        MUST(write(file, buf, 100));
        T(sendfile(FD, file, &(off_t){0}, 100));
        MUST(write(pipes[1], buf, 60));
        T(splice(pipes[0], NULL, FD, NULL, 60, 0));
        close(file);
    }
    AT(S) {
        expect(e, FD, 100, 1);
        await_bytes(e, FD, 60);
        T(splice(FD, NULL, pipes[1], NULL, 60, 0));
        T(read(pipes[0], buf, 100));
        say(e, "%ld", check(buf, 60, 0, 1));
    }
    close(pipes[0]), close(pipes[1]);
}

// ---- Sleep -----------------------------------------------------------------

// Each message comes when its receiver sleeps.
static void sleeps(struct end *e)
{
    char c = 'x';
    for (int i = 0; i < 8; i++) {
        if (e->role == (i & 1 ? C : S)) {
            will_block(e);
            if (i >= 4)
                say(e, "%s", events(await_events(e, FD, POLLIN)));
            T(recv(FD, &c, 1, 0));
        } else {
            await_blocked(e);
            T(send(FD, "m", 1, 0));
        }
        meet(e);
    }
    AT(S) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(FD, &in);
        T(select(FD + 1, &in, NULL, NULL, &(struct timeval){0, 1000}));
        MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 2000}, sizeof(struct timeval)));
        T(recv(FD, &c, 1, 0));
        T(poll(&(struct pollfd){FD, POLLIN, 0}, 1, 2));
    }
}

static void *receives(void *arg)
{
    struct end *its = arg;
    char c;
    __atomic_store_n(&its->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    return (void *)(long)(recv(its->fd, &c, 1, 0) == 1);
}

// One thread sleeps while another one sends.
static void threads(struct end *e)
{
    pthread_t t;
    void *got;
    if (e->role == S) {
        struct end its = *e;
        its.tid = 0;
        MUST(pthread_create(&t, NULL, receives, &its));
        while (!__atomic_load_n(&its.tid, __ATOMIC_ACQUIRE))
            nap();
        await_sleep(e, e->pid, its.tid);
        produce(e, FD, 3000, 1);
        MUST(pthread_join(t, &got));
        say(e, "got %ld", (long)got);
    } else {
        expect(e, FD, 3000, 1);
        T(send(FD, "b", 1, 0));
    }
}

// ---- Epoll -----------------------------------------------------------------

static void told(struct end *e, int set, int timeout)
{
    struct epoll_event v[4];
    int n = epoll_wait(set, v, 4, timeout);
    for (int i = 0; i < n; i++)
        say(e, "told of %lu: %s", (unsigned long)v[i].data.u64, events(v[i].events));
    if (n <= 0)
        say(e, "told of nothing: %s", n ? errname(errno) : "time");
}

static void epolls(struct end *e)
{
    int set = -1, around = -1;
    struct epoll_event in = {EPOLLIN | EPOLLRDHUP, {.u64 = 7}}, all = {EPOLLIN, {.u64 = 9}};
    char c;
    AT(S) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        around = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &in));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &in));
        T(epoll_ctl(around, EPOLL_CTL_ADD, set, &all));
        told(e, set, 0);
    }
    for (int i = 0; i < 6; i++) {
        if (e->role == S) {
            will_block(e);
            told(e, i == 3 ? around : set, -1);
            told(e, set, 1000);
            T(recv(FD, &c, 1, 0));
        } else {
            await_blocked(e);
            T(send(FD, "m", 1, 0));
        }
        meet(e);
    }
    AT(S) {
        told(e, set, 1);
        in.events = EPOLLIN | EPOLLONESHOT;
        T(epoll_ctl(set, EPOLL_CTL_MOD, FD, &in));
    }
    AT(C) T(send(FD, "mm", 2, 0));
    AT(S) {
        await_bytes(e, FD, 2);
        told(e, set, 1000);
        told(e, set, 0);
        in.events = EPOLLOUT;
        T(epoll_ctl(set, EPOLL_CTL_MOD, FD, &in));
        told(e, set, 1000);
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, NULL));
        told(e, around, 0);
        // Once more, and the end.
        in.events = EPOLLIN | EPOLLRDHUP;
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &in));
        T(recv(FD, (char[2]){0}, 2, 0));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        told(e, set, 1000);
        T(recv(FD, &c, 1, 0));
        close(set), close(around);
    }
}

// An edge for each message; the connection was put in before it was used.
static void edges(struct end *e)
{
    int set = -1;
    char buf[8];
    AT(S) {
        set = MUST(epoll_create1(0));
        nonblocking(FD, 1);
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &(struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 5}}));
    }
    for (int i = 0; i < 8; i++) {
        if (e->role == S) {
            will_block(e);
            told(e, set, -1);
            T(recv(FD, buf, 8, 0));
            T(recv(FD, buf, 8, 0));
            T(send(FD, "y", 1, 0));
        } else {
            await_blocked(e);
            T(send(FD, "edge", 4, 0));
            T(recv(FD, buf, 1, 0));
        }
        meet(e);
    }
    AT(S) close(set);
}

enum { MANY = 12 };

// More connections than the first memory of two processes has room for, in one set.
static void many(struct end *e)
{
    int fd[MANY], set = MUST(epoll_create1(EPOLL_CLOEXEC));
    char buf[8];
    for (int i = 0; i < MANY; i++) {
        if (e->role == C) {
            fd[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd[i], e->fam, e->port));
        } else {
            fd[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd[i], &(struct epoll_event){EPOLLIN, {.u64 = i}}));
        }
        meet(e);
    }
    for (int round = 0; round < 8; round++) {
        AT(C) for (int i = 0; i < MANY; i++) put(fd[i], "ping", 4);
        AT(S) {
            int good = 0;
            while (good < MANY) {
                struct epoll_event v[MANY];
                int n = epoll_wait(set, v, MANY, PATIENCE_MS);
                if (n <= 0)
                    IN_VAIN("waited in vain for %d connections", MANY - good), good = MANY;
                for (int i = 0; i < n; i++) {
                    good += get(fd[v[i].data.u64], buf, 4) == 4;
                    put(fd[v[i].data.u64], "pong", 4);
                }
            }
            say(e, "%d came", good);
        }
        AT(C) {
            int good = 0;
            for (int i = 0; i < MANY; i++)
                good += get(fd[i], buf, 4) == 4;
            say(e, "%d came back", good);
        }
    }
    AT(S) for (int i = 0; i < MANY; i++) close(fd[i]);
    AT(C) for (int i = 0; i < MANY; i++) {
        int n = get(fd[i], buf, 1);
        if (n)
            say(e, "%d after the end", n);
        close(fd[i]);
    }
    close(set);
}

// ---- Ends ------------------------------------------------------------------

static void half(struct end *e)
{
    char c;
    AT(C) {
        produce(e, FD, 5000, 1);
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        expect(e, FD, 5000, 1);
        T(recv(FD, &c, 1, 0));
        say(e, "%s", events(await_events(e, FD, POLLRDHUP)));
        produce(e, FD, 7000, 2);
    }
    AT(C) expect(e, FD, 7000, 2);
    AT(S) T(send(FD, "last", 4, 0)), T(close(FD)), FD = -1;
    AT(C) {
        T(recv(FD, (char[8]){0}, 8, MSG_WAITALL));
        T(recv(FD, &c, 1, 0));
    }
}

// A close that leaves something unread resets the connection.
static void reset(struct end *e)
{
    char c;
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        T(close(FD)), FD = -1;
    }
    AT(C) {
        say(e, "%s", events(await_events(e, FD, POLLHUP)));
        T(recv(FD, &c, 1, 0));
        T(send(FD, "x", 1, 0));
    }
}

static void killed(struct end *e)
{
    char c;
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            expect(e, FD, 500, 1);
            produce(e, FD, 100, 2);
            raise(SIGKILL);
        }
        close(FD), FD = -1, reap(e, &kid);
    } else {
        produce(e, FD, 500, 1);
        expect(e, FD, 100, 2);
        T(recv(FD, &c, 1, 0));
    }
}

// ---- Copies ----------------------------------------------------------------

static void copies(struct end *e)
{
    int copy = -1;
    AT(C) produce(e, FD, 300, 1);
    AT(S) {
        copy = MUST(dup(FD));
        expect(e, copy, 100, 1);
        T(close(FD));
        FD = MUST(fcntl(copy, F_DUPFD_CLOEXEC, 200));
        OK(dup3(copy, 300, O_CLOEXEC));
        T(close_range(250, 400, 0));
    }
    AT(S) {
        unsigned char buf[200];
        T(recv(FD, buf, 200, MSG_WAITALL));
        say(e, "%ld", check(buf, 200, 100, 1));
        MUST(close(copy));
        // Where that number is allowed: out of reach of a table's first part.
        int far = fcntl(FD, F_DUPFD_CLOEXEC, 1500);
        T(send(far < 0 ? FD : far, "far", 3, 0));
        close(far);
    }
    AT(C) T(recv(FD, (char[4]){0}, 3, MSG_WAITALL));
    goes_on(e);
}

static void forks(struct end *e)
{
    unsigned char buf[16];
    if (e->role == S) {
        expect(e, FD, 40, 1);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            for (int i = 0; i < 6; i++) {
                expect(e, FD, 50, i);
                produce(e, FD, 60, i);
            }
            exit(3);
        }
        reap(e, &kid);
        for (int i = 0; i < 6; i++) {
            expect(e, FD, 50, i);
            produce(e, FD, 60, i);
        }
    } else {
        produce(e, FD, 40, 1);
        for (int i = 0; i < 12; i++) {
            produce(e, FD, 50, i % 6);
            expect(e, FD, 60, i % 6);
        }
    }
    meet(e);
    // A server that forks for each connection.
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = MUST(accept4(e->lfd, NULL, NULL, 0));
            expect(e, fd, 4000, 1);
            produce(e, fd, 4000, 2);
            _exit(4);
        }
        reap(e, &kid);
    } else {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        produce(e, fd, 4000, 1);
        expect(e, fd, 4000, 2);
        T(recv(fd, buf, 1, 0));
        close(fd);
    }
}

// The connection goes on in another program, and here again.
static void program(struct end *e, unsigned way)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 10, 1);
    AT(S) {
        produce(e, FD, 100, 2);
        p = plain_on(e, FD, THERE, way);
        tell_it(e, &p, RECEIVE, 10, 1);
    }
    AT(C) {
        expect(e, FD, 100, 2);
        produce(e, FD, 5000, 3);
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 5000, 3);
        tell_it(e, &p, SEND, 5000, 4);
    }
    AT(C) expect(e, FD, 5000, 4);
    AT(S) plain_end(e, &p);
    for (int i = 0; i < 6; i++) goes_on(e);
}
static void execs(struct end *e) { program(e, BY_FORK); }
static void spawns(struct end *e) { program(e, BY_SPAWN); }
static void execs_shunted(struct end *e) { program(e, BY_VFORK | SHUNTED); }

static void passes(struct end *e)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 10, 1);
    AT(S) {
        p = plain_on(e, -1, -1, BY_SPAWN | SHUNTED);
        give_to(e, &p, FD);
        T(close(FD)), FD = -1;
        tell_it(e, &p, RECEIVE, 10, 1);
    }
    for (int i = 0; i < 4; i++) {
        AT(C) produce(e, FD, 3000, i);
        AT(S) {
            tell_it(e, &p, RECEIVE, 3000, i);
            tell_it(e, &p, SEND, 300, i);
        }
        AT(C) expect(e, FD, 300, i);
    }
    AT(S) plain_end(e, &p);
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}

// A standard stream, and urgent data: both are the kernel's.
static void streams(struct end *e)
{
    AT(C) produce(e, FD, 5000, 1);
    AT(S) {
        FILE *f = fdopen(dup(FD), "r+");
        expect_stream(e, f, 5000, 1);
        produce_stream(e, f, 2000, 2);
        fclose(f);
    }
    AT(C) expect(e, FD, 2000, 2);
    AT(C) T(send(FD, "u", 1, MSG_OOB));
    AT(S) {
        char c = 0;
        await_events(e, FD, POLLPRI);
        T(recv(FD, &c, 1, MSG_OOB));
    }
    goes_on(e);
}

PLAIN_MAIN(CASE(exchanges, COLD), CASE(large, TWO), CASE(full, TWO), CASE(files, 0), CASE(sleeps, TWO | SPLIT),
           CASE(threads, TWO | SPLIT), CASE(epolls, TWO | SPLIT), CASE(edges, TWO | SPLIT), CASE(many, TWO), CASE(half, 0),
           CASE(reset, 0), CASE(killed, TWO | SPLIT), CASE(copies, 0), CASE(forks, TWO | SPLIT), CASE(execs, SPLIT),
           CASE(spawns, SPLIT), CASE(execs_shunted, SPLIT), CASE(passes, SPLIT), CASE(streams, 0))
