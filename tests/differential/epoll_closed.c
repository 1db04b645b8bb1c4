// Epoll sets that are closed under threads that wait on them, and a process that has no
// descriptor left for sets.
// path: shunted
// timeout: 60
#include "diff.h"
#include "pass.h"
#include "pest.h"
#include <sys/resource.h>

enum { WAITERS = 3, ROUNDS = 400 };
static const uint64_t OURS = 0xabcd00000000;
static int current = -1, stop_waiting;
static long strangers;

static void *wait_on_current(void *unused)
{
    struct epoll_event event[4];
    while (!__atomic_load_n(&stop_waiting, __ATOMIC_ACQUIRE)) {
        int n = epoll_wait(__atomic_load_n(&current, __ATOMIC_ACQUIRE), event, 4, 1);
        for (int i = 0; i < n; i++)
            if (event[i].data.u64 != OURS && event[i].data.u64 != 0)
                __atomic_fetch_add(&strangers, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

// The next set has the number of the one before. C sends, S closes sets under its waiters. (For a
// moment the number may name a set of the library's: docs/limits.md. What that reports, its
// first registration, is no stranger here.)
static void closed_under_waiters(struct end *e)
{
    char c = 'x';
    if (e->role == C) {
        for (int i = 0; i < ROUNDS; i++) {
            MUST(send(FD, &c, 1, 0));
            MUST(recv(FD, &c, 1, 0));
        }
    } else {
        pthread_t waiters[WAITERS];
        stop_waiting = strangers = 0;
        for (int i = 0; i < WAITERS; i++)
            pthread_create(&waiters[i], NULL, wait_on_current, NULL);
        for (int i = 0; i < ROUNDS; i++) {
            struct epoll_event event = {EPOLLIN, {.u64 = OURS}};
            int set = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
            __atomic_store_n(&current, set, __ATOMIC_RELEASE);
            MUST(recv(FD, &c, 1, 0));
            close(set);
            MUST(send(FD, &c, 1, 0));
        }
        __atomic_store_n(&stop_waiting, 1, __ATOMIC_RELEASE);
        for (int i = 0; i < WAITERS; i++)
            pthread_join(waiters[i], NULL);
        say(e, "strangers %ld", strangers);
        current = -1;
    }
    meet(e);
    // Sets wake up as before.
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
    for (int i = 0; i < 20; i++) {
        if (e->role == C)
            MUST(send(FD, &c, 1, 0));
        MUST(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 ? 0 : -1);
        MUST(recv(FD, &c, 1, 0));
        if (e->role == S)
            MUST(send(FD, &c, 1, 0));
    }
    close(set);
}

// EPOLL_CTL_ADD needs no descriptor of its own.
static void full_table(struct end *e)
{
    enum { FEW = 8 };
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    struct rlimit before, few;
    int set = -1, first = -1;
    AT(S) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        first = MUST(dup(set));
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        few = (struct rlimit){first + FEW, before.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &few));
        while (dup(set) >= 0)
            ;
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        T(epoll_wait(set, &event, 1, PATIENCE_MS));
        char buf[8];
        T(recv(FD, buf, 8, 0));
        MUST(setrlimit(RLIMIT_NOFILE, &before));
        for (int fd = first; fd < first + FEW; fd++)
            close(fd);
        close(set);
    }
}

struct sleeper {
    struct end *e;
    int set;
    pid_t tid;
    int told;
};

static void *sleep_on_set(void *arg)
{
    struct sleeper *s = arg;
    struct epoll_event got = {0};
    __atomic_store_n(&s->tid, gettid(), __ATOMIC_RELEASE);
    int most = PATIENCE_MS;
    long long end = now_ms() + most;
    int n = epoll_wait(s->set, &got, 1, most);
    // At the end of its time it looks once more.
    s->told = n == 1 && now_ms() < end ? (int)got.data.u32 : -1;
    return NULL;
}

// A set goes on for the call that sleeps on it when its last descriptor is closed: also after a
// message that nobody wants, and for what the kernel alone knows. C sends on two connections.
static void closed_under_sleeper(struct end *e)
{
    enum { WAYS = 3 };
    if (e->role == C) {
        int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
        for (int i = 0; i < WAYS; i++) {
            meet(e);
            MUST(write(FD, "u", 1));
            nap();
            nap();
            MUST(write(fd, "w", 1));
            meet(e);
        }
        close(fd);
        return;
    }
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), pipes[2];
    MUST(pipe2(pipes, O_CLOEXEC));
    for (int i = 0; i < WAYS; i++) {
        struct sleeper s = {e, MUST(epoll_create1(EPOLL_CLOEXEC)), 0, 0};
        struct epoll_event unwanted = {EPOLLONESHOT, {.u32 = 1}}, wanted = {EPOLLIN, {.u32 = 2}};
        struct epoll_event byte = {EPOLLIN, {.u32 = 3}};
        int is_pipe = i == 1, copy = i == 2 ? MUST(dup(s.set)) : -1;
        MUST(epoll_ctl(s.set, EPOLL_CTL_ADD, FD, &unwanted));
        MUST(epoll_ctl(s.set, EPOLL_CTL_ADD, pipes[0], &byte));
        if (!is_pipe)
            MUST(epoll_ctl(s.set, EPOLL_CTL_ADD, fd, &wanted));
        pthread_t id;
        if (pthread_create(&id, NULL, sleep_on_set, &s))
            abort();
        while (!__atomic_load_n(&s.tid, __ATOMIC_ACQUIRE))
            nap();
        await_sleep(e, getpid(), s.tid);
        close(s.set);
        if (copy >= 0)
            close(copy);
        meet(e);
        await_bytes(e, fd, 1);
        if (is_pipe)
            MUST(write(pipes[1], "p", 1));
        pthread_join(id, NULL);
        say(e, "told %d", s.told);
        if (s.told < 0)
            IN_VAIN("not told");
        MUST(read(is_pipe ? pipes[0] : FD, &(char){0}, 1));
        if (is_pipe)
            MUST(read(FD, &(char){0}, 1));
        MUST(read(fd, &(char){0}, 1));
        meet(e);
    }
    close(fd), close(pipes[0]), close(pipes[1]);
}

// Nor does it where the peer has sent something and makes no call for as long.
static void full_table_unread(struct end *e, uint32_t how)
{
    enum { FEW = 8 };
    struct epoll_event event = {EPOLLIN | how, {.u64 = 7}};
    struct rlimit before, few;
    char buf[8];
    int set = -1, around = -1, first = -1;
    AT(C) T(send(FD, "news", 4, 0));
    AT(S) {
        await_bytes(e, FD, 4);
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        around = MUST(epoll_create1(EPOLL_CLOEXEC));
        first = MUST(dup(set));
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        few = (struct rlimit){first + FEW, before.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &few));
        while (dup(set) >= 0)
            ;
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_ctl(around, EPOLL_CTL_ADD, set, &(struct epoll_event){EPOLLIN, {.u64 = 6}}));
        for (int i = 0; i < 2; i++) {
            if (T(epoll_wait(set, &event, 1, 0)) == 1)
                say(e, "events %x data %d", event.events, (int)event.data.u64);
        }
        struct pollfd of_set = {set, POLLIN, 0};
        T(poll(&of_set, 1, 0));
        T(recv(FD, buf, 8, 0));
        T(epoll_wait(set, &event, 1, 0));
    }
    for (int i = 0; i < 4; i++) {
        if (e->role == S) {
            will_block(e);
            if (i < 2) {
                T(epoll_wait(set, &event, 1, PATIENCE_MS));
            } else {
                struct pollfd of_set = {set, POLLIN, 0};
                struct epoll_event two[2];
                if (i == 2)
                    T(epoll_wait(around, &event, 1, PATIENCE_MS));
                else
                    T(poll(&of_set, 1, PATIENCE_MS));
                T(epoll_wait(set, two, 2, 0));
            }
            T(recv(FD, buf, 8, 0));
        } else {
            await_blocked(e);
            T(send(FD, "more", 4, 0));
        }
        meet(e);
    }
    AT(S) {
        event = (struct epoll_event){EPOLLOUT | how, {.u64 = 8}};
        T(epoll_ctl(set, EPOLL_CTL_MOD, FD, &event));
        T(epoll_wait(set, &event, 1, 0));
        say(e, "events %x data %d", event.events, (int)event.data.u64);
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
        T(epoll_wait(set, &event, 1, 0));
        event = (struct epoll_event){EPOLLIN | EPOLLRDHUP | how, {.u64 = 9}};
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        T(epoll_wait(set, &event, 1, PATIENCE_MS));
        say(e, "events %x data %d", event.events, (int)event.data.u64);
        T(recv(FD, buf, 8, 0));
        MUST(setrlimit(RLIMIT_NOFILE, &before));
        for (int fd = first; fd < first + FEW; fd++)
            close(fd);
        close(set), close(around);
    }
}
static void full_table_level(struct end *e) { full_table_unread(e, 0); }
static void full_table_edge(struct end *e) { full_table_unread(e, EPOLLET); }

// The connection was added while there was no descriptor left, copied, and closed by the number that was added: the set
// has it still, and what has that number by now is another registration.
static void full_table_copied(struct end *e, uint32_t how)
{
    enum { FEW = 8 };
    struct epoll_event event = {EPOLLIN | EPOLLRDHUP | how, {.u64 = 7}};
    struct rlimit before, few;
    char buf[8];
    int set = -1, first = -1, copy = -1, pipes[2];
    AT(S) {
        MUST(pipe2(pipes, O_CLOEXEC));
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        first = MUST(dup(set));
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        few = (struct rlimit){first + FEW, before.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &few));
        while (dup(set) >= 0)
            ;
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        MUST(setrlimit(RLIMIT_NOFILE, &before));
        for (int fd = first; fd < first + FEW; fd++)
            close(fd);
        copy = MUST(dup(FD));
        MUST(dup2(pipes[0], FD));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &(struct epoll_event){EPOLLIN, {.u64 = 8}}));
        T(epoll_wait(set, &event, 1, 0));
    }
    AT(C) T(send(FD, "news", 4, 0));
    AT(S) {
        if (T(epoll_wait(set, &event, 1, PATIENCE_MS)) == 1)
            say(e, "events %x data %d", event.events, (int)event.data.u64);
        T(recv(copy, buf, 8, 0));
        MUST(write(pipes[1], "p", 1));
        if (T(epoll_wait(set, &event, 1, PATIENCE_MS)) == 1)
            say(e, "events %x data %d", event.events, (int)event.data.u64);
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        if (T(epoll_wait(set, &event, 1, PATIENCE_MS)) == 1)
            say(e, "events %x data %d", event.events, (int)event.data.u64);
        MUST(dup2(copy, FD));
        close(copy), close(set), close(pipes[0]), close(pipes[1]);
    }
}
static void full_table_copied_level(struct end *e) { full_table_copied(e, 0); }
static void full_table_copied_edge(struct end *e) { full_table_copied(e, EPOLLET); }

// The same while there are descriptors: the connection is copied before it can be paired, and used by the copy so much that it is.
static void copied_before(struct end *e, uint32_t how)
{
    enum { TRIPS = 200 };
    struct epoll_event event = {EPOLLIN | how, {.u64 = 7}};
    char buf[8];
    int set = -1, copy = -1, pipes[2];
    AT(S) {
        MUST(pipe2(pipes, O_CLOEXEC));
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        copy = MUST(dup(FD));
        MUST(dup2(pipes[0], FD));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &(struct epoll_event){EPOLLIN, {.u64 = 8}}));
    }
    for (int i = 0; i < TRIPS; i++) {
        AT(C) MUST(send(FD, "news", 4, 0));
        AT(S) {
            MUST(recv(copy, buf, 8, 0));
            MUST(send(copy, "so", 2, 0));
        }
        AT(C) MUST(recv(FD, buf, 8, 0));
    }
    AT(S) {
        MUST(write(pipes[1], "p", 1));
        for (int i = 0; i < 2; i++)
            if (epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 8)
                say(e, "events %x", event.events);
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
    }
    AT(C) T(send(FD, "more", 4, 0));
    AT(S) {
        if (T(epoll_wait(set, &event, 1, PATIENCE_MS)) == 1)
            say(e, "events %x data %d", event.events, (int)event.data.u64);
        MUST(dup2(copy, FD));
        T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
        close(copy), close(set), close(pipes[0]), close(pipes[1]);
    }
}
static void copied_before_level(struct end *e) { copied_before(e, 0); }
static void copied_before_edge(struct end *e) { copied_before(e, EPOLLET); }

// A connection that lies in a Unix socket, and has no other descriptor, stays in the set.
static void in_a_message(struct end *e)
{
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    int set = -1, pair[2];
    AT(S) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_wait(set, &event, 1, 0));
        pass(pair[0], FD);
        close(FD);
    }
    AT(C) T(send(FD, "news", 4, 0));
    AT(S) {
        if (T(epoll_wait(set, &event, 1, PATIENCE_MS)) == 1)
            say(e, "events %x data %d", event.events, (int)event.data.u64);
        FD = passed(pair[1]);
        T(recv(FD, (char[8]){0}, 8, 0));
        T(epoll_wait(set, &event, 1, 0));
        close(set), close(pair[0]), close(pair[1]);
    }
}

DIFF_MAIN(CASE(closed_under_waiters, SPLIT), CASE(full_table, SPLIT | STEADY), CASE(full_table_level, SPLIT | COLD | STEADY),
          CASE(full_table_edge, SPLIT | COLD | STEADY), CASE(closed_under_sleeper, SPLIT | COLD),
          CASE(full_table_copied_level, SPLIT | STEADY), CASE(full_table_copied_edge, SPLIT | STEADY),
          CASE(copied_before_level, SPLIT | ONLY_COLD | STEADY), CASE(copied_before_edge, SPLIT | ONLY_COLD | STEADY),
          CASE(in_a_message, SPLIT | COLD | STEADY))
