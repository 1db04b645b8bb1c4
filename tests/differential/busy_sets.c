// Sets that parent and child both wait on, and requests that others carry out, while other programs want the cores.
// path: shunted
// timeout: 60
#include "diff.h"
#include <aio.h>
#include <sys/prctl.h>

enum { LOOPS = 4, ROUNDS = 30 };

static pid_t loops[LOOPS];

static void begin_loops(struct end *e)
{
    for (int i = 0; i < LOOPS; i++) {
        loops[i] = MUST(fork());
        if (loops[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile long n = 0;; n++)
                ;
        }
    }
}

static void end_loops(struct end *e)
{
    for (int i = 0; i < LOOPS; i++) {
        kill(loops[i], SIGKILL);
        MUST(waitpid(loops[i], NULL, 0));
    }
}

// One more connection between the two sides.
static int another(struct end *e)
{
    int fd;
    if (e->role == C) {
        fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
    } else {
        fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    }
    for (int i = 0; i < 20; i++) {
        if (e->role == C)
            put(fd, "t", 1);
        get(fd, (char[1]){0}, 1);
        if (e->role == S)
            put(fd, "t", 1);
    }
    return fd;
}

static void add(struct end *e, int set, int fd, int number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = number};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

// In how many of `times` waits the set has told of one that it has; what came there is received.
static int told(int set, const int *fds, int times)
{
    struct epoll_event event;
    int good = 0;
    while (good < times && epoll_wait(set, &event, 1, PATIENCE_MS) == 1)
        good += recv(fds[event.data.u64], (char[1]){0}, 1, MSG_DONTWAIT) == 1;
    return good;
}

// Parent and child wait on the set: who comes first takes what has come.
static void shared_set(struct end *e)
{
    int fds[2] = {another(e), another(e)};
    if (e->role == S) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), good = 0;
        int *taken = mmap(NULL, sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct epoll_event event;
        add(e, set, fds[0], 0), add(e, set, fds[1], 1);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            char c = 0;
            while (c != 'e' && epoll_wait(set, &event, 1, PATIENCE_MS) == 1)
                if (recv(fds[event.data.u64], &c, 1, MSG_DONTWAIT) == 1 && c == 'x')
                    __atomic_add_fetch(taken, 1, __ATOMIC_SEQ_CST);
            _exit(0);
        }
        begin_loops(e);
        go(e);
        long long end = now_ms() + 4 * PATIENCE_MS;
        while (good + __atomic_load_n(taken, __ATOMIC_SEQ_CST) < 2 * ROUNDS && now_ms() < end)
            if (epoll_wait(set, &event, 1, 20) == 1)
                good += recv(fds[event.data.u64], (char[1]){0}, 1, MSG_DONTWAIT) == 1;
        say(e, "%d of %d", good + *taken, 2 * ROUNDS);
        end_loops(e);
        go(e);
        reap(e, &kid);
        close(set);
        munmap(taken, sizeof *taken);
    } else {
        await_go(e);
        for (int i = 0; i < 2 * ROUNDS; i++) {
            put(fds[i & 1], "x", 1);
            nap();
        }
        await_go(e);
        put(fds[0], "e", 1);
    }
    meet(e);
    close(fds[0]), close(fds[1]);
}

// A thread of libc's reads from one connection, and a thread of the program waits in a set for another.
static void set_and_requests(struct end *e)
{
    int fds[2] = {another(e), another(e)};
    if (e->role == S) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), good = 0, read = 0;
        add(e, set, fds[0], 0);
        begin_loops(e);
        for (int i = 0; i < ROUNDS; i++) {
            char in = 0;
            struct aiocb request = {.aio_fildes = fds[1], .aio_buf = &in, .aio_nbytes = 1};
            const struct aiocb *all[] = {&request};
            struct timespec limit = {PATIENCE_MS / 1000, PATIENCE_MS % 1000 * 1000000};
            MUST(aio_read(&request));
            go(e);
            good += told(set, fds, 1);
            read += aio_suspend(all, 1, &limit) == 0 && aio_return(&request) == 1 && in == 'y';
        }
        end_loops(e);
        say(e, "%d told, %d read, of %d", good, read, ROUNDS);
        close(set);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            await_go(e);
            put(fds[i & 1], i & 1 ? "y" : "x", 1);
            put(fds[~i & 1], i & 1 ? "x" : "y", 1);
        }
    }
    meet(e);
    close(fds[0]), close(fds[1]);
}

// Requests on connections that are in a set which a child waits on, too.
static void requests_beside_child(struct end *e)
{
    int fds[2] = {another(e), another(e)};
    if (e->role == S) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), read = 0;
        add(e, set, fds[0], 0);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            say(e, "told %d", told(set, fds, ROUNDS));
            _exit(0);
        }
        begin_loops(e);
        for (int i = 0; i < ROUNDS; i++) {
            char in = 0;
            struct aiocb request = {.aio_fildes = fds[1], .aio_buf = &in, .aio_nbytes = 1};
            const struct aiocb *all[] = {&request};
            struct timespec limit = {PATIENCE_MS / 1000, PATIENCE_MS % 1000 * 1000000};
            MUST(aio_read(&request));
            go(e);
            read += aio_suspend(all, 1, &limit) == 0 && aio_return(&request) == 1;
        }
        reap(e, &kid);
        end_loops(e);
        say(e, "%d read, of %d", read, ROUNDS);
        close(set);
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            await_go(e);
            put(fds[0], "x", 1);
            put(fds[1], "y", 1);
        }
    }
    meet(e);
    close(fds[0]), close(fds[1]);
}

DIFF_MAIN(CASE(shared_set, SPLIT | BARE), CASE(set_and_requests, TWO | BARE), CASE(requests_beside_child, SPLIT | BARE))
