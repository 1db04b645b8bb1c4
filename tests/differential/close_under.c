// A connection is closed under a call that sleeps on it: the call goes on, and the close waits for nothing.
// path: shunted 20%
// timeout: 90
#include "diff.h"
#include "pest.h"
#include <setjmp.h>
#include <sys/resource.h>

// A close that waits for what another thread or its peer does takes a second. Less than half of that it may take where a thread that
// has something to do with it has no core.
enum { ROUNDS = 60, ENDINGS = 600, LONG_MS = 500 };

struct sleeper {
    int fd, size, got, error;
    char bytes[8];
    _Atomic pid_t tid;
    pthread_t thread;
};

static void *receives(void *arg)
{
    struct sleeper *r = arg;
    r->tid = gettid();
    r->got = recv(r->fd, r->bytes, r->size, MSG_WAITALL);
    r->error = r->got < 0 ? errno : 0;
    return NULL;
}

static void begin(struct end *e, struct sleeper *r, int fd, int size)
{
    r->fd = fd, r->size = size, r->tid = 0;
    MUST(pthread_create(&r->thread, NULL, receives, r));
    while (!r->tid)
        sched_yield();
}

static void begin_asleep(struct end *e, struct sleeper *r, int fd, int size)
{
    begin(e, r, fd, size);
    await_sleep(e, getpid(), r->tid);
}

static void ended(struct end *e, struct sleeper *r)
{
    MUST(pthread_join(r->thread, NULL));
    say(e, "receives %d %s", r->got, errname(r->error));
}

// Milliseconds for which this thread has run or slept; those for which it has waited for a core (schedstat in proc(5)) do not count.
static long long own_ms(int schedstat)
{
    char text[64] = "";
    long long waited = 0;
    if (pread(schedstat, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%*d %lld", &waited);
    return now_ms() - waited / 1000000;
}

static int close_is_long(int fd)
{
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    long long start = own_ms(schedstat);
    close(fd);
    int is_long = own_ms(schedstat) - start > LONG_MS;
    close(schedstat);
    return is_long;
}

static void connect_untold(struct end *e)
{
    if (e->role == C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
    } else {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    }
}

// Both ends have used it, so that it is shunted if it can be.
static void use(struct end *e)
{
    char buf[8] = "1234567";
    for (int i = 0; i < 6; i++) {
        if (e->role == C)
            put(FD, buf, 8);
        get(FD, buf, 8);
        if (e->role == S)
            put(FD, buf, 8);
    }
}

// A reader is ended by a shutdown, and a close at about the moment at which it wakes. (It may come too late: in two
// processes nobody else has its number by then.)
static void ends_a_reader(struct end *e)
{
    int slow = 0;
    for (int i = 0; i < ENDINGS; i++) {
        struct sleeper r;
        connect_untold(e);
        use(e);
        if (e->role == S) {
            begin(e, &r, FD, 8);
            nap();
            MUST(shutdown(FD, SHUT_RDWR));
            for (int k = 0; k < i % 40 * 40; k++)
                __asm__ volatile("");
            slow += close_is_long(FD);
            FD = -1;
            MUST(pthread_join(r.thread, NULL));
        } else {
            get(FD, (char[8]){0}, 8);
            close(FD), FD = -1;
        }
    }
    say(e, "%d closes took long", slow);
}

// Two threads sleep; of the two messages each gets one, the first of which comes beside the close.
static void two_under_one_close(struct end *e)
{
    int good = 0, slow = 0;
    for (int i = 0; i < ROUNDS; i++) {
        connect_untold(e);
        use(e);
        if (e->role == S) {
            struct sleeper r[2];
            for (int k = 0; k < 2; k++)
                begin_asleep(e, &r[k], FD, 8);
            go(e);
            slow += close_is_long(FD);
            FD = -1;
            go(e);
            for (int k = 0; k < 2; k++) {
                MUST(pthread_join(r[k].thread, NULL));
                good += r[k].got == 8;
            }
            go(e);
        } else {
            await_go(e);
            put(FD, "message", 8);
            await_go(e);
            struct timespec pause = {0, i % 8 * 500000};
            nanosleep(&pause, NULL);
            put(FD, "another", 8);
            await_go(e);
            close(FD), FD = -1;
        }
    }
    say(e, "%d of the messages received, %d closes took long", good, slow);
}

// The end of the stream is sent when the call has ended, and not before.
static void ends_with_the_call(struct end *e)
{
    struct sleeper r;
    AT(S) {
        begin_asleep(e, &r, FD, 8);
        say(e, "close takes long: %d", close_is_long(FD));
        FD = -1;
    }
    AT(C) {
        T(send(FD, "1234", 4, 0));
        T(poll(&(struct pollfd){FD, POLLIN | POLLRDHUP, 0}, 1, 30));
        T(send(FD, "5678", 4, 0));
    }
    AT(S) {
        ended(e, &r);
        say(e, "%.8s", r.bytes);
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

static struct {
    int fd;
    size_t size, sent;
    _Atomic pid_t tid;
} large;

static void *sends_much(void *arg)
{
    struct end *e = arg;
    large.tid = gettid();
    unsigned char *bytes = malloc(large.size);
    fill(bytes, large.size, 0, 1);
    ssize_t n = send(large.fd, bytes, large.size, MSG_NOSIGNAL);
    large.sent = n;
    say(e, "sends all: %d", n == (ssize_t)large.size);
    free(bytes);
    return NULL;
}

// The same of a send: all of it arrives, and then the end.
static void closed_under_sender(struct end *e)
{
    const size_t size = 24 << 20;
    pthread_t t;
    AT(S) {
        large.fd = FD, large.size = size, large.tid = 0;
        MUST(pthread_create(&t, NULL, sends_much, e));
        while (!large.tid)
            sched_yield();
        await_sleep(e, getpid(), large.tid);
        say(e, "close takes long: %d", close_is_long(FD));
        FD = -1;
    }
    if (e->role == C) {
        expect(e, FD, size, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        MUST(pthread_join(t, NULL));
    }
}

static struct end *interrupted;
static int took_long;
static void closes_its_own(int sig)
{
    (void)sig;
    hits++;
    took_long = close_is_long(interrupted->fd);
}

// A signal handler closes what its own thread sleeps on.
static void closed_by_handler(struct end *e)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        join_ends(e);
        if (e->role == S) {
            struct pest pest;
            interrupted = e;
            handle(SIGUSR1, closes_its_own, restarts ? SA_RESTART : 0);
            pest_start(e, &pest, SIGUSR1, 1, 0);
            T(recv(FD, (char[4]){0}, 4, 0));
            pest_end(&pest);
            say(e, "close takes long: %d", took_long);
            FD = -1;
        } else {
            T(recv(FD, (char[4]){0}, 4, 0));
        }
        part_ends(e);
    }
}

static sigjmp_buf escape;
static void jump_away(int sig)
{
    (void)sig;
    hits++;
    siglongjmp(escape, 1);
}

// A handler has left the call: nobody goes on, and the close ends the stream.
static void closed_after_jump(struct end *e)
{
    if (e->role == S) {
        struct pest pest;
        handle(SIGUSR1, jump_away, 0);
        pest_start(e, &pest, SIGUSR1, 1, 0);
        if (sigsetjmp(escape, 1) == 0)
            T(recv(FD, (char[4]){0}, 4, 0));
        pest_end(&pest);
        say(e, "close takes long: %d", close_is_long(FD));
        FD = -1;
    } else {
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

static void *is_cancelled(void *arg)
{
    struct sleeper *r = arg;
    r->tid = gettid();
    r->got = recv(r->fd, r->bytes, r->size, 0);
    return NULL;
}

// A thread is cancelled in a call that goes on: that ends the stream.
static void cancelled_after_close(struct end *e)
{
    if (e->role == S) {
        struct sleeper r = {.fd = FD, .size = 8};
        MUST(pthread_create(&r.thread, NULL, is_cancelled, &r));
        while (!r.tid)
            sched_yield();
        await_sleep(e, getpid(), r.tid);
        say(e, "close takes long: %d", close_is_long(FD));
        FD = -1;
        go(e);
        await_go(e);
        await_sleep(e, getpid(), r.tid);
        MUST(pthread_cancel(r.thread));
        MUST(pthread_join(r.thread, NULL));
    } else {
        await_go(e);
        T(poll(&(struct pollfd){FD, POLLIN | POLLRDHUP, 0}, 1, 30));
        go(e);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

// The program takes every number that there is: the call takes nothing from its files.
static void all_numbers_taken(struct end *e)
{
    enum { FIRST = 300, LAST = 1100 };
    struct sleeper r;
    int pair[2], taken = 0, left = 0;
    AT(S) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        MUST(write(pair[1], "HELLO-WORLD", 11));
        begin_asleep(e, &r, FD, 8);
        close(FD);
        for (int fd = FIRST; fd < LAST; fd++)
            taken += dup2(pair[0], fd) == fd;
        MUST(dup2(pair[0], FD));
    }
    AT(C) T(send(FD, "1234", 4, 0));
    AT(S) await_sleep(e, getpid(), r.tid);
    AT(C) T(send(FD, "5678", 4, 0));
    AT(S) {
        ended(e, &r);
        say(e, "%.8s", r.bytes);
        MUST(ioctl(FD, FIONREAD, &left));
        say(e, "%s taken, left in the other: %d", taken > 0 ? "numbers" : "none", left);
        for (int fd = FIRST; fd < LAST; fd++)
            close(fd);
        close(pair[0]), close(pair[1]);
    }
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}

static void *receives_many(void *arg)
{
    struct sleeper *r = arg;
    struct iovec parts[2] = {{r->bytes, 4}, {r->bytes + 4, 4}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    r->tid = gettid();
    r->got = recvmmsg(r->fd, m, 2, MSG_WAITALL, NULL);
    r->error = r->got < 0 ? errno : 0;
    return NULL;
}

// A call of several messages goes on to the last of them.
static void many_received(struct end *e)
{
    struct sleeper r = {.size = 0};
    AT(S) {
        r.fd = FD;
        MUST(pthread_create(&r.thread, NULL, receives_many, &r));
        while (!r.tid)
            sched_yield();
        await_sleep(e, getpid(), r.tid);
        close(FD), FD = -1;
    }
    AT(C) T(send(FD, "1234", 4, 0));
    AT(S) await_sleep(e, getpid(), r.tid);
    AT(C) T(send(FD, "5678", 4, 0));
    AT(S) {
        ended(e, &r);
        say(e, "%.8s", r.bytes);
    }
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}

static void *sends_many(void *arg)
{
    struct end *e = arg;
    large.tid = gettid();
    unsigned char *bytes = malloc(large.size);
    fill(bytes, large.size, 0, 1);
    struct iovec parts[2] = {{bytes, large.size / 2}, {bytes + large.size / 2, large.size / 2}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    say(e, "sends %d", sendmmsg(large.fd, m, 2, MSG_NOSIGNAL));
    free(bytes);
    return NULL;
}

static void many_sent(struct end *e)
{
    const size_t size = 24 << 20;
    pthread_t t;
    AT(S) {
        large.fd = FD, large.size = size, large.tid = 0;
        MUST(pthread_create(&t, NULL, sends_many, e));
        while (!large.tid)
            sched_yield();
        await_sleep(e, getpid(), large.tid);
        close(FD), FD = -1;
    }
    if (e->role == C) {
        expect(e, FD, size, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        MUST(pthread_join(t, NULL));
    }
}

static void *sends_file(void *arg)
{
    struct end *e = arg;
    large.tid = gettid();
    int file = MUST(memfd_create("large", MFD_CLOEXEC));
    unsigned char *bytes = malloc(large.size);
    fill(bytes, large.size, 0, 1);
    MUST(pwrite(file, bytes, large.size, 0));
    free(bytes);
    say(e, "sends all: %d", sendfile(large.fd, file, NULL, large.size) == (ssize_t)large.size);
    close(file);
    return NULL;
}

// A file goes on, also by TCP, where its receiver needs that.
static void file_sent(struct end *e)
{
    const size_t size = 24 << 20;
    pthread_t t;
    AT(S) {
        large.fd = FD, large.size = size, large.tid = 0;
        MUST(pthread_create(&t, NULL, sends_file, e));
        while (!large.tid)
            sched_yield();
        await_sleep(e, getpid(), large.tid);
        close(FD), FD = -1;
    }
    if (e->role == C) {
        MUST(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, sizeof(int)));
        expect(e, FD, size, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        MUST(pthread_join(t, NULL));
    }
}

// The process has no number left: the call goes on all the same.
static void no_number_left(struct end *e)
{
    enum { LAST = 1024 };
    struct sleeper r;
    struct rlimit before, few;
    int first = -1, full = -1;
    AT(S) {
        MUST(getrlimit(RLIMIT_NOFILE, &before));
        few = (struct rlimit){LAST, before.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &few));
        begin_asleep(e, &r, FD, 8);
        T(poll(&(struct pollfd){FD, POLLIN, 0}, 1, 20));
        for (int fd; (fd = dup(e->ctl)) >= 0; full = fd)
            first = first < 0 ? fd : first;
        close(FD), FD = -1;
    }
    AT(C) T(send(FD, "1234", 4, 0));
    AT(S) await_sleep(e, getpid(), r.tid);
    AT(C) T(send(FD, "5678", 4, 0));
    AT(S) {
        ended(e, &r);
        say(e, "%.8s", r.bytes);
        for (int fd = first; fd <= full; fd++)
            close(fd);
        MUST(setrlimit(RLIMIT_NOFILE, &before));
    }
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}

DIFF_MAIN(CASE(ends_a_reader, SPLIT | BARE | BUSY), CASE(two_under_one_close, TWO | BARE | BUSY),
          CASE(ends_with_the_call, COLD), CASE(closed_under_sender, TWO | COLD), CASE(closed_by_handler, TWO | BARE),
          CASE(closed_after_jump, TWO | COLD), CASE(cancelled_after_close, TWO | COLD), CASE(no_number_left, SPLIT),
          CASE(all_numbers_taken, COLD), CASE(many_received, TWO), CASE(many_sent, TWO), CASE(file_sent, TWO))
