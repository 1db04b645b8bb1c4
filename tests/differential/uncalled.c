// Sleepers that no call reaches: they are in another network namespace, their peer may not send
// to them, they have no descriptor for it, or a relative has slept in their place.
// path: shunted
// timeout: 30
#include "diff.h"
#include <sys/prctl.h>
#include <sys/resource.h>

enum { TRIPS = 30, MESSAGES = 3, SENDS = 400 };

static void trips(int fd, int first)
{
    char c = 0;
    for (int i = 0; i < TRIPS; i++) {
        if (first)
            put(fd, "t", 1);
        if (get(fd, &c, 1) != 1)
            return;
        if (!first)
            put(fd, "t", 1);
    }
}

// Sleeps until each message, which the other side sends only then.
static int await_messages(int fd)
{
    int good = 0;
    char c;
    for (int i = 0; i < MESSAGES; i++) {
        struct pollfd p = {fd, POLLIN, 0};
        put(fd, "r", 1);
        good += i == 1 ? poll(&p, 1, -1) == 1 && get(fd, &c, 1) == 1 : get(fd, &c, 1) == 1;
    }
    return good;
}

static void send_to_sleeper(struct end *e, int fd, pid_t pid)
{
    char c;
    for (int i = 0; i < MESSAGES && get(fd, &c, 1) == 1; i++) {
        await_sleep(e, pid, pid);
        put(fd, "m", 1);
    }
}

// A child of C that has connected by itself, and talked. Only C's child gets the descriptor.
static struct kid connected(struct end *e, int *fd)
{
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        *fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(*fd, e->fam, e->port));
        trips(*fd, 1);
    }
    return kid;
}

// A process that leaves the namespace of its sockets.
static void other_namespace(struct end *e)
{
    int fd;
    if (e->role == S) {
        pid_t pid = 0;
        fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        trips(fd, 0);
        get(fd, &pid, sizeof pid);
        send_to_sleeper(e, fd, pid);
        close(fd);
        return;
    }
    struct kid kid = connected(e, &fd);
    if (kid.pid == 0) {
        pid_t pid = getpid();
        MUST(unshare(CLONE_NEWNET));
        put(fd, &pid, sizeof pid);
        say(e, "%d of %d", await_messages(fd), MESSAGES);
        _exit(0);
    }
    reap(e, &kid);
}

// Landlock: no abstract address outside of the sandbox. (An older kernel, or one without
// it, refuses: then nothing is forbidden, and `cargo xtask test` says so.)
static void forbid_calls(struct end *e)
{
    struct {
        uint64_t files, net, scoped;
    } rules = {0, 0, 1};
    int ruleset = syscall(444, &rules, sizeof rules, 0);
    if (ruleset < 0)
        return;
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(syscall(446, ruleset, 0));
    close(ruleset);
}

static void forbidden(struct end *e, int late)
{
    int fd;
    if (e->role == S) {
        fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        trips(fd, 0);
        put(fd, &e->tid, sizeof e->tid);
        say(e, "%d of %d", await_messages(fd), MESSAGES);
        close(fd);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        pid_t pid = 0;
        if (!late)
            forbid_calls(e);
        fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        trips(fd, 1);
        if (late)
            forbid_calls(e);
        get(fd, &pid, sizeof pid);
        send_to_sleeper(e, fd, pid);
        _exit(0);
    }
    reap(e, &kid);
}
static void may_not_send(struct end *e) { forbidden(e, 0); }
static void may_send_no_more(struct end *e) { forbidden(e, 1); }

// Waits by epoll for room, while the other side reads, which may not call: nothing comes by TCP. Meanwhile a timer wakes
// the set that often.
static void await_room_beside(struct end *e, const struct itimerspec *often)
{
    int fd;
    size_t much;
    char over = 0;
    if (e->role == S) {
        struct epoll_event event = {.events = EPOLLIN};
        uint64_t times;
        fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        trips(fd, 0);
        much = stuff(e, fd, 3);
        put(e->ctl, &much, sizeof much);
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), timer = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
        event.data.fd = timer;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, timer, &event));
        event = (struct epoll_event){.events = EPOLLOUT, .data.fd = fd};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        MUST(timerfd_settime(timer, 0, often, NULL));
        while (MUST(epoll_wait(set, &event, 1, -1)) == 1 && event.data.fd == timer)
            MUST(read(timer, &times, sizeof times));
        say(e, "%s", events(event.events));
        put(e->ctl, &over, 1);
        close(set), close(timer), close(fd);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        trips(fd, 1);
        take(e, &much, sizeof much);
        forbid_calls(e);
        await_sleep(e, e->peer_pid, e->peer_tid);
        drain(e, fd, much, 3);
        take(e, &over, 1);
        _exit(0);
    }
    reap(e, &kid);
}
static void await_room(struct end *e) { await_room_beside(e, &(struct itimerspec){0}); }
static void await_room_awake(struct end *e) { await_room_beside(e, &(struct itimerspec){{0, 50000000}, {0, 50000000}}); }

// ---- Threads that sleep while others send on the connection -----------------

static void *receives(void *fd)
{
    char c;
    return (void *)(intptr_t)(get(*(int *)fd, &c, 1) == 1);
}

static void *polls(void *fd)
{
    struct pollfd p = {*(int *)fd, POLLIN, 0};
    return poll(&p, 1, -1) == 1 ? receives(fd) : NULL;
}

static pthread_t start(void *(*run)(void *), int *fd)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, fd))
        _exit(95);
    return thread;
}

static int ends_well(pthread_t thread)
{
    void *good = NULL;
    pthread_join(thread, &good);
    return good != NULL;
}

// Sends until what kept the connection from its rings is over.
static void send_often(int fd)
{
    for (int i = 0; i < SENDS; i++) {
        put(fd, "s", 1);
        nap();
    }
}

// With few descriptors two threads have those that there are for sleepers; the third is woken all
// the same, although others send on its connection meanwhile.
static void without_a_place(struct end *e)
{
    enum { COUNT = 3 };
    int fds[COUNT];
    char c;
    if (e->role == S) {
        for (int i = 0; i < COUNT; i++) {
            fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            trips(fds[i], 0);
        }
        for (int i = 0; i < SENDS; i++)
            get(fds[0], &c, 1);
        for (int i = 0; i < COUNT; i++)
            put(fds[i], "m", 1);
        for (int i = 0; i < COUNT; i++)
            get(fds[i], &c, 1), close(fds[i]);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        pthread_t threads[COUNT];
        int good = 0;
        for (int i = 0; i < COUNT; i++) {
            fds[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fds[i], e->fam, e->port));
        }
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){16, 16});
        for (int i = 0; i < COUNT; i++)
            trips(fds[i], 1);
        threads[1] = start(receives, &fds[1]);
        threads[2] = start(receives, &fds[2]);
        for (int i = 0; i < 100; i++)
            nap();
        threads[0] = start(polls, &fds[0]);
        send_often(fds[0]);
        for (int i = 0; i < COUNT; i++)
            good += ends_well(threads[i]);
        say(e, "%d of %d", good, COUNT);
        _exit(0);
    }
    reap(e, &kid);
}

// A forked child has slept on the connection, too, and has gone.
static void relative_gone(struct end *e)
{
    char c;
    if (e->role == S) {
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        trips(fd, 0);
        for (int i = 0; i < SENDS; i++)
            get(fd, &c, 1);
        put(fd, "m", 1);
        get(fd, &c, 1), close(fd);
        return;
    }
    int fd;
    struct kid kid = connected(e, &fd);
    if (kid.pid == 0) {
        pthread_t thread = start(receives, &fd);
        for (int i = 0; i < 100; i++)
            nap();
        pid_t child = MUST(fork());
        if (child == 0) {
            struct pollfd p = {fd, POLLIN, 0};
            poll(&p, 1, 50);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        send_often(fd);
        say(e, "%d", ends_well(thread));
        _exit(0);
    }
    reap(e, &kid);
}

DIFF_MAIN(CASE(other_namespace, SPLIT | BARE | APART), CASE(may_not_send, SPLIT | BARE), CASE(may_send_no_more, SPLIT | BARE), CASE(await_room, SPLIT | BARE),
          CASE(await_room_awake, SPLIT | BARE), CASE(without_a_place, SPLIT | BARE), CASE(relative_gone, SPLIT | BARE))
