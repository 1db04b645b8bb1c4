// Several messages received in one call, of which a later one fails: the call tells how many there were, and the next one,
// whatever it is, why there were no more.
// path: shunted 10%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"

enum { MESSAGES = 2, SIZE = 3 };

// The second message is to come to a place where nothing is, where its header is none, to a list that is too long or of which a
// part is, or it never comes.
enum { BAD_BUFFER, BAD_HEADER, LONG_LIST, LONG_PART, INTERRUPTED, RESTARTED, TIMED_OUT };

static void receive_two(struct end *e, int how)
{
    static char bufs[MESSAGES][8];
    // The kernel does not look where the list ends.
    size_t page = sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(at + page, page, PROT_NONE));
    struct mmsghdr *m = (struct mmsghdr *)(at + page) - (how == BAD_HEADER ? 1 : MESSAGES);
    struct iovec v[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){how == BAD_BUFFER && i > 0 ? (char *)8 : bufs[i], SIZE};
        if (i == 0 || how != BAD_HEADER)
            m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = v + i, .msg_iovlen = how == LONG_LIST && i > 0 ? 2000 : 1}};
    }
    if (how == LONG_PART)
        v[1].iov_len = (size_t)-1;
    struct timeval limit = {how == TIMED_OUT ? 0 : 20, 50000};
    if (how >= INTERRUPTED) {
        if (how == TIMED_OUT)
            MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        handle(SIGUSR1, count_hit, how == RESTARTED ? SA_RESTART : 0);
        PESTERED(recvmmsg(FD, m, MESSAGES, 0, NULL), SIGUSR1, how != TIMED_OUT);
    } else {
        T(recvmmsg(FD, m, MESSAGES, MSG_DONTWAIT, NULL));
    }
    say(e, "length %u", m[0].msg_len);
    munmap(at, 2 * page);
}

static void what_is_left(struct end *e, int how)
{
    char buf[8];
    // As much as is received at first, or more.
    int more = how < INTERRUPTED;
    for (int next = 0; next < 6; next++) {
        AT(C) T(send(FD, "abcdef", more ? 2 * SIZE : SIZE, 0));
        AT(S) {
            await_bytes(e, FD, more ? 2 * SIZE : SIZE);
            receive_two(e, how);
            int error = 0;
            socklen_t n = sizeof error;
            struct pollfd p = {FD, POLLIN | POLLOUT, 0};
            struct iovec v = {buf, sizeof buf};
            struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
            if (next == 0)
                T(send(FD, "x", 1, 0));
            if (next == 1)
                T(recv(FD, buf, 8, MSG_DONTWAIT));
            if (next == 2 && T(getsockopt(FD, SOL_SOCKET, SO_ERROR, &error, &n)) == 0)
                say(e, "error %s", errname(error));
            if (next == 3) {
                T(poll(&p, 1, 0));
                say(e, "events %s", events(p.revents));
            }
            if (next == 4)
                T(recvmmsg(FD, &m, 1, MSG_DONTWAIT, NULL));
            if (next == 5)
                T(writev(FD, (struct iovec[]){{"y", 1}, {"z", 1}}, 2));
            // It is told once.
            T(recv(FD, buf, 8, MSG_DONTWAIT));
            T(recv(FD, buf, 8, MSG_DONTWAIT));
            T(send(FD, "-", 1, 0));
            T(send(FD, "-", 1, 0));
        }
        // How much has come by now nobody says.
        AT(C) while (recv(FD, buf, 8, MSG_DONTWAIT) > 0)
            ;
    }
}
static void a_bad_buffer(struct end *e) { what_is_left(e, BAD_BUFFER); }
static void a_bad_header(struct end *e) { what_is_left(e, BAD_HEADER); }
static void a_long_list(struct end *e) { what_is_left(e, LONG_LIST); }
static void a_long_part(struct end *e) { what_is_left(e, LONG_PART); }
static void interrupted(struct end *e) { what_is_left(e, INTERRUPTED); }
static void restarted(struct end *e) { what_is_left(e, RESTARTED); }
static void timed_out(struct end *e) { what_is_left(e, TIMED_OUT); }

struct receiver {
    struct end *e;
    int times, alone; // calls that end behind the first message, and how often
};
static void *receives_two(void *arg)
{
    struct receiver *r = arg;
    struct end *e = r->e;
    pid_t tid = syscall(SYS_gettid);
    // It does not drive away who wakes it.
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    give(e, &tid, sizeof tid);
    for (int i = 0; i < r->times; i++) {
        char bufs[2];
        struct iovec v[2] = {{bufs, 1}, {bufs + 1, 1}};
        struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
        int error = 0;
        socklen_t n = sizeof error;
        go(e);
        if (MUST(recvmmsg(FD, m, 2, 0, NULL)) == 1) {
            r->alone++;
            MUST(getsockopt(FD, SOL_SOCKET, SO_ERROR, &error, &n));
            get(FD, bufs, 1);
        }
    }
    return NULL;
}

// A message comes, and then a signal, before the receiver runs: the handler finds a call that has received a message, or is about to.
static void message_and_signal(struct end *e)
{
    enum { TIMES = 20 };
    cpu_set_t all, one;
    pid_t tid = 0;
    int core = 0;
    MUST(sched_getaffinity(0, sizeof all, &all));
    CPU_ZERO(&one);
    if (e->role == S) {
        pthread_t thread;
        struct receiver r = {e, TIMES, 0};
        core = MUST(sched_getcpu());
        give(e, &core, sizeof core);
        CPU_SET(core, &one);
        MUST(sched_setaffinity(0, sizeof one, &one));
        handle(SIGUSR1, count_hit, SA_RESTART);
        MUST(pthread_create(&thread, NULL, receives_two, &r));
        MUST(sched_setaffinity(0, sizeof all, &all));
        pthread_join(thread, NULL);
        say(e, "%d times one message", r.alone);
    } else {
        take(e, &core, sizeof core);
        take(e, &tid, sizeof tid);
        CPU_SET(core, &one);
        MUST(sched_setaffinity(0, sizeof one, &one));
        for (int i = 0; i < TIMES; i++) {
            await_go(e);
            await_sleep(e, e->peer_pid, tid);
            put(FD, "a", 1);
            MUST(syscall(SYS_tgkill, e->peer_pid, tid, SIGUSR1));
            await_sleep(e, e->peer_pid, tid);
            put(FD, "b", 1);
        }
        MUST(sched_setaffinity(0, sizeof all, &all));
    }
    meet(e);
}

static void *disturbs(void *arg)
{
    struct end *e = arg;
    int two = 2;
    await_sleep(e, e->pid, e->tid);
    MUST(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two));
    for (int i = 1; i <= 3; i++) {
        await_sleep(e, e->pid, e->tid);
        syscall(SYS_tgkill, e->pid, e->tid, SIGUSR1);
        while (hits < i)
            nap();
    }
    await_sleep(e, e->pid, e->tid);
    go(e);
    return NULL;
}

// Handlers after which the call is made anew run before its first message, which comes by TCP: they end nothing.
static void handlers_before_first(struct end *e)
{
    if (e->role == S) {
        char bufs[2][4];
        struct iovec v[2] = {{bufs[0], 4}, {bufs[1], 4}};
        struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
        pthread_t thread;
        hits = 0;
        handle(SIGUSR1, count_hit, SA_RESTART);
        MUST(pthread_create(&thread, NULL, disturbs, e));
        T(recvmmsg(FD, m, 2, 0, NULL));
        pthread_join(thread, NULL);
        go(e);
        T(recv(FD, bufs[0], 4, 0));
    } else {
        await_go(e);
        put(FD, "aaaa", 4);
        await_sleep(e, e->peer_pid, e->peer_tid);
        put(FD, "bbbb", 4);
        await_go(e);
        put(FD, "cccc", 4);
    }
    meet(e);
}

DIFF_MAIN(CASE(a_bad_buffer, COLD | STEADY), CASE(a_bad_header, COLD | STEADY), CASE(a_long_list, COLD | STEADY),
          CASE(a_long_part, COLD | STEADY), CASE(interrupted, COLD | STEADY), CASE(restarted, COLD | STEADY), CASE(timed_out, COLD | STEADY),
          CASE(message_and_signal, TWO | COLD | STEADY),
          CASE(handlers_before_first, TWO | COLD))
