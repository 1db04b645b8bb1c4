// Much data: sendfile, splice, long vectors, both directions at once.
// path: shunted 20%
// timeout: 60
// variant: lfs -D_FILE_OFFSET_BITS=64
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include <sys/resource.h>
#include "pest.h"

static int file_of(size_t n, unsigned seed)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    unsigned char buf[4096];
    for (size_t done = 0; done < n; done += sizeof buf) {
        fill(buf, sizeof buf, done, seed);
        raw_write(fd, (char *)buf, n - done < sizeof buf ? n - done : sizeof buf);
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static void whole_file(struct end *e)
{
    const size_t n = 6000001;
    if (e->role == C) {
        int file = file_of(n, 1);
        size_t done = 0;
        ssize_t r;
        while ((r = sendfile(FD, file, NULL, 1 << 20)) > 0)
            done += r;
        say(e, "%zu sent, then %zd, position %ld", done, r, (long)lseek(file, 0, SEEK_CUR));
        off_t at = 0;
        while (at < (off_t)n && (r = sendfile(FD, file, &at, n - at)) > 0)
            ;
        say(e, "at %ld, position %ld", (long)at, (long)lseek(file, 0, SEEK_CUR));
        close(file);
    } else {
        expect(e, FD, n, 1);
        expect(e, FD, n, 1);
    }
}

static void parts_of_a_file(struct end *e)
{
    char buf[64];
    AT(C) {
        int file = memfd_create("file", MFD_CLOEXEC);
        raw_write(file, "0123456789", 10);
        off_t at = 3;
        T(sendfile(FD, file, &at, 4));
        say(e, "%ld %ld", (long)at, (long)lseek(file, 0, SEEK_CUR));
        lseek(file, 5, SEEK_SET);
        T(sendfile(FD, file, NULL, 2));
        say(e, "%ld", (long)lseek(file, 0, SEEK_CUR));
        at = 8;
        T(sendfile(FD, file, &at, 100));
        T(sendfile(FD, file, &at, 100));
        at = 100;
        T(sendfile(FD, file, &at, 1));
        T(sendfile(FD, file, NULL, 0));
        at = -1;
        T(sendfile(FD, file, &at, 1));
        T(sendfile(FD, FD, NULL, 1));
        T(sendfile(file, FD, NULL, 1));
        T(sendfile(-1, file, NULL, 1));
        T(sendfile(FD, -1, NULL, 1));
        T(sendfile(FD, file, (off_t *)8, 1));
        close(file);
    }
    AT(S) {
        await_bytes(e, FD, 8);
        T(recv(FD, buf, 64, 0));
        say(e, "%.8s", buf);
    }
}

#ifndef VIA_SYSCALL
static void sendfile_large(struct end *e)
{
    AT(C) {
        int file = file_of(100000, 4);
        off64_t at = 99000;
        T(sendfile64(FD, file, &at, 5000));
        say(e, "%ld", (long)at);
        close(file);
    }
    AT(S) {
        unsigned char buf[1000];
        T(get(FD, buf, 1000));
        say(e, "%ld", check(buf, 1000, 99000, 4));
    }
}
#else
static void sendfile_large(struct end *e) { say(e, "not by syscall"); }
#endif

// The kernel sends from what it can seek in, not from files alone.
static void devices(struct end *e)
{
    static char buf[4096];
    AT(C) {
        int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC), p[2];
        T(sendfile(FD, zero, NULL, 4096));
        T(send(FD, "end", 3, 0));
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "abc", 3));
        T(sendfile(FD, p[0], NULL, 3));
        T(splice(zero, NULL, FD, NULL, 3, 0));
        close(zero), close(p[0]), close(p[1]);
    }
    AT(S) {
        size_t n = get(FD, buf, 4096), zeros = 0;
        while (zeros < n && !buf[zeros])
            zeros++;
        say(e, "%zu", zeros);
        T(recv(FD, buf, 3, MSG_WAITALL));
        say(e, "%.3s", buf);
    }
}

// Counts that no file has.
static void sendfile_counts(struct end *e)
{
    AT(C) {
        int file = file_of(4096, 1), sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
        off_t at = 5;
        T(sendfile(FD, file, NULL, -1));
        T(sendfile(FD, file, &at, (size_t)1 << 63));
        T(sendfile(FD, file, &at, 0));
        at = LONG_MAX - 10;
        T(sendfile(FD, file, &at, 100));
        T(sendfile(FD, sink, NULL, 100));
        say(e, "%ld", (long)lseek(file, 0, SEEK_CUR));
        close(file), close(sink);
    }
}

// A file that has ended is no reason to wait for room.
static void ended_file_when_full(struct end *e)
{
    size_t n = 0;
    AT(C) {
        int file = file_of(4096, 1);
        lseek(file, 0, SEEK_END);
        n = stuff(e, FD, 2);
        T(sendfile(FD, file, NULL, 100));
        close(file);
    }
    share(e, C, &n, sizeof n);
    AT(S) drain(e, FD, n, 2);
}

// The other end of a pipe than the one that is needed.
static void wrong_ends(struct end *e)
{
    int p[2];
    AT(C) {
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "abc", 3));
        T(splice(p[1], NULL, FD, NULL, 3, 0));
        T(splice(FD, NULL, p[0], NULL, 3, 0));
        T(send(FD, "!", 1, 0));
        close(p[0]), close(p[1]);
    }
    AT(S) T(recv(FD, (char[8]){0}, 8, 0));
}

// What a reset connection says to each call, and whether with SIGPIPE.
static void after_reset(struct end *e, int pipes)
{
    AT(C) {
        struct linger now = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(FD), FD = -1;
    }
    AT(S) {
        int file = file_of(4096, 1), p[2];
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "0123456789", 10));
        await_events(e, FD, POLLERR);
        for (int i = 0; i < 2; i++) {
            if (pipes)
                T(splice(p[0], NULL, FD, NULL, 10, 0));
            else
                T(sendfile(FD, file, NULL, 100));
        }
        T(read(p[0], (char[16]){0}, 16));
        close(file), close(p[0]), close(p[1]);
    }
}
static void file_after_reset(struct end *e) { after_reset(e, 0); }
static void pipe_after_reset(struct end *e) { after_reset(e, 1); }

// A reset in the middle of a message: what was sent counts, the next call says so, and only
// the one after that comes with SIGPIPE.
static void reset_under_sender(struct end *e)
{
    enum { MUCH = 32 << 20 };
    if (e->role == S) {
        char *much = calloc(1, MUCH);
        will_block(e);
        sigpipes = 0;
        ssize_t n = send(FD, much, MUCH, 0);
        say(e, "a part: %d, SIGPIPE: %d", n > 0 && n < MUCH, sigpipes);
        T(send(FD, much, MUCH, 0));
        T(send(FD, much, MUCH, 0));
        free(much);
    } else {
        struct linger now = {1, 0};
        setsockopt(FD, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        await_blocked(e);
        for (int i = 0; i < 20; i++)
            MUST(recv(FD, scratch(), SCRATCH, 0));
        close(FD), FD = -1;
    }
}

static void after_close(struct end *e, int pipes)
{
    AT(C) close(FD), FD = -1;
    AT(S) {
        int file = file_of(4096, 1), p[2];
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "0123456789", 10));
        await_events(e, FD, POLLRDHUP);
        if (pipes)
            T(splice(p[0], NULL, FD, NULL, 5, 0));
        else
            T(sendfile(FD, file, NULL, 100));
        await_events(e, FD, POLLERR);
        if (pipes)
            T(splice(p[0], NULL, FD, NULL, 5, 0));
        else
            T(sendfile(FD, file, NULL, 100));
        close(file), close(p[0]), close(p[1]);
    }
}
static void file_after_close(struct end *e) { after_close(e, 0); }
static void pipe_after_close(struct end *e) { after_close(e, 1); }

// From a socket to a pipe (since Linux 5.12).
static void file_is_the_socket(struct end *e)
{
    char buf[8];
    int p[2];
    AT(C) T(send(FD, "abcdef", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        MUST(pipe2(p, O_CLOEXEC));
        T(sendfile(p[1], FD, NULL, 4));
        T(read(p[0], buf, 8));
        say(e, "%.4s", buf);
        T(sendfile(p[0], FD, NULL, 4));
        T(recv(FD, buf, 8, 0));
        close(p[0]), close(p[1]);
    }
}

static void file_when_full(struct end *e)
{
    size_t total = 0;
    const size_t n = 64 << 20;
    AT(C) {
        int file = memfd_create("file", MFD_CLOEXEC);
        MUST(ftruncate(file, n));
        nonblocking(FD, 1);
        long r;
        off_t at = 0;
        for (int calm = 0; calm < 2;) {
            r = sendfile(FD, file, &at, n);
            if (r > 0) {
                total += r;
                calm = 0;
            } else {
                int saved = errno;
                struct timespec pause = {0, 45000000};
                nanosleep(&pause, NULL);
                errno = saved;
                calm++;
            }
        }
        say(e, "%s", errname(errno));
        say(e, "consistent %d, a part %d", (size_t)at == total, total < n);
        close(file);
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        static char buf[65536];
        size_t done = 0;
        int bad = 0;
        while (done < total) {
            ssize_t r = recv(FD, buf, sizeof buf, 0);
            if (r <= 0)
                break;
            for (ssize_t i = 0; i < r; i += 97)
                bad += buf[i] != 0;
            done += r;
        }
        say(e, "all %d bad %d", done == total, bad);
    }
}

static void file_to_ended(struct end *e)
{
    AT(C) {
        int file = file_of(4096, 1);
        T(shutdown(FD, SHUT_WR));
        T(sendfile(FD, file, NULL, 100));
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "abc", 3));
        T(splice(p[0], NULL, FD, NULL, 3, 0));
        close(file), close(p[0]), close(p[1]);
    }
}

static void pipes(struct end *e)
{
    char buf[64];
    int p[2];
    AT(C) {
        MUST(pipe2(p, O_CLOEXEC));
        MUST(write(p[1], "0123456789", 10));
        T(splice(p[0], NULL, FD, NULL, 4, 0));
        T(splice(p[0], NULL, FD, NULL, 100, SPLICE_F_MORE));
        T(splice(p[0], NULL, FD, NULL, 100, SPLICE_F_NONBLOCK));
        loff_t at = 0;
        MUST(write(p[1], "x", 1));
        T(splice(p[0], NULL, FD, &at, 1, 0));
        T(splice(p[0], &at, FD, NULL, 1, 0));
        int file = memfd_create("file", MFD_CLOEXEC);
        T(splice(FD, NULL, file, NULL, 1, 0));
        T(splice(file, NULL, FD, NULL, 1, 0));
        T(splice(-1, NULL, FD, NULL, 1, 0));
        nonblocking(FD, 1); // the flag below concerns the pipe alone
        T(splice(FD, NULL, p[1], NULL, 1, SPLICE_F_NONBLOCK));
        T(splice(FD, NULL, p[1], NULL, 1, 0));
        nonblocking(FD, 0);
        T(splice(p[0], NULL, FD, NULL, 0, 0));
        T(splice(FD, NULL, p[1], NULL, SIZE_MAX, SPLICE_F_NONBLOCK));
        MUST(write(p[1], "y", 1));
        T(splice(p[0], NULL, FD, NULL, SIZE_MAX, 0));
        T(tee(p[0], FD, 1, 0));
        T(copy_file_range(FD, NULL, file, NULL, 1, 0));
        T(send(FD, "!", 1, 0));
        close(file), close(p[0]), close(p[1]);
    }
    AT(S) {
        await_bytes(e, FD, 11);
        MUST(pipe2(p, O_CLOEXEC));
        T(splice(FD, NULL, p[1], NULL, 4, 0));
        T(read(p[0], buf, 64));
        say(e, "%.4s", buf);
        long n = 0;
        while (n < 7) {
            long r = splice(FD, NULL, p[1], NULL, 64, SPLICE_F_MOVE);
            if (r <= 0)
                break;
            n += r;
        }
        say(e, "%ld", n);
        T(read(p[0], buf, 64));
        say(e, "%.7s", buf);
        nonblocking(FD, 1);
        T(splice(FD, NULL, p[1], NULL, 64, SPLICE_F_NONBLOCK));
        nonblocking(FD, 0);
    }
    AT(C) close(FD), FD = -1;
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(splice(FD, NULL, p[1], NULL, 64, 0));
        close(p[0]), close(p[1]);
    }
}

// No descriptor is to be had from here on, by whoever asks.
static struct rlimit no_more_descriptors(void)
{
    struct rlimit before, now;
    getrlimit(RLIMIT_NOFILE, &before);
    now = before;
    now.rlim_cur = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(now.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &now);
    return before;
}

// Pipes that keep writes apart: a splice takes a part of a packet and leaves the rest, and makes no packets.
static void packets(struct end *e, int crowded)
{
    char buf[64] = "";
    int p[2];
    struct rlimit limit;
    AT(C) {
        MUST(pipe2(p, O_CLOEXEC | O_DIRECT));
        MUST(write(p[1], "abcdef", 6));
        MUST(write(p[1], "ghij", 4));
        if (crowded)
            limit = no_more_descriptors();
        T(splice(p[0], NULL, FD, NULL, 4, 0));
        T(splice(p[0], NULL, FD, NULL, 100, 0));
        if (crowded)
            setrlimit(RLIMIT_NOFILE, &limit);
        T(splice(p[0], NULL, FD, NULL, 100, SPLICE_F_NONBLOCK));
        close(p[0]), close(p[1]);
    }
    AT(S) {
        await_bytes(e, FD, 10);
        T(recv(FD, buf, 64, MSG_PEEK));
        say(e, "%.10s", buf);
        MUST(pipe2(p, O_CLOEXEC | O_DIRECT));
        if (crowded)
            limit = no_more_descriptors();
        T(splice(FD, NULL, p[1], NULL, 6, 0));
        T(sendfile(p[1], FD, NULL, 4));
        if (crowded)
            setrlimit(RLIMIT_NOFILE, &limit);
        for (int i = 0; i < 4; i++) {
            T(read(p[0], buf, 3));
            say(e, "%.3s", buf);
        }
        close(p[0]), close(p[1]);
    }
}
static void pipes_of_packets(struct end *e) { packets(e, 0); }
static void pipes_of_packets_in_a_crowd(struct end *e) { packets(e, 1); }

static void splice_sleeps(struct end *e)
{
    int p[2];
    if (e->role == S) {
        MUST(pipe2(p, O_CLOEXEC));
        will_block(e);
        T(splice(FD, NULL, p[1], NULL, 64, 0));
        nonblocking(FD, 1);
        T(splice(FD, NULL, p[1], NULL, 64, 0));
        close(p[0]), close(p[1]);
    } else {
        await_blocked(e);
        T(send(FD, "abc", 3, 0));
    }
}

struct reader {
    int fd, pipe[2];
    size_t n;
    unsigned char bytes[6000];
};

static void *splices(void *arg)
{
    struct reader *r = arg;
    while (r->n < sizeof r->bytes) {
        ssize_t in = splice(r->fd, NULL, r->pipe[1], NULL, 100, 0);
        if (in <= 0)
            break;
        r->n += get(r->pipe[0], r->bytes + r->n, in);
    }
    return NULL;
}

static void *receives(void *arg)
{
    struct reader *r = arg;
    while (r->n < sizeof r->bytes) {
        ssize_t in = recv(r->fd, r->bytes + r->n, sizeof r->bytes - r->n < 100 ? sizeof r->bytes - r->n : 100, 0);
        if (in <= 0)
            break;
        r->n += in;
    }
    return NULL;
}

// Two threads take from one connection, at least one of them by splice: each byte goes to one of them.
static void spliced_beside(struct end *e, void *(*other)(void *))
{
    enum { MUCH = 6000 };
    static struct reader r[2];
    if (e->role == S) {
        pthread_t t[2];
        size_t counts[256] = {0}, wrong = 0;
        for (int i = 0; i < 2; i++) {
            r[i].fd = FD, r[i].n = 0;
            MUST(pipe2(r[i].pipe, O_CLOEXEC));
            MUST(pthread_create(&t[i], NULL, i ? other : splices, &r[i]));
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(t[i], NULL);
            close(r[i].pipe[0]), close(r[i].pipe[1]);
            for (size_t k = 0; k < r[i].n; k++)
                counts[r[i].bytes[k]]++;
        }
        for (int i = 0; i < 256; i++)
            wrong += counts[i] != (size_t)(MUCH / 256 + (i < MUCH % 256));
        say(e, "%zu bytes, %zu values lost or twice", r[0].n + r[1].n, wrong);
    } else {
        for (int i = 0; i < MUCH; i++) {
            put(FD, &(unsigned char){i}, 1);
            if (i % 7 == 0)
                sched_yield();
            if (i % 50 == 0)
                nap();
        }
        shutdown(FD, SHUT_WR);
    }
}
static void splices_beside_splice(struct end *e) { spliced_beside(e, splices); }
static void splices_beside_receiver(struct end *e) { spliced_beside(e, receives); }

// A call that has sent a part returns it after any handler; the kernel restarts only one that has sent nothing.
static void restarted_after_a_part(struct end *e)
{
    const size_t n = 64 << 20;
    size_t total = 0;
    AT(C) {
        struct pest pest;
        int file = memfd_create("file", MFD_CLOEXEC);
        MUST(ftruncate(file, n));
        handle(SIGUSR1, count_hit, SA_RESTART);
        pest_start(e, &pest, SIGUSR1, 1, 0);
        total = MUST(sendfile(FD, file, NULL, n));
        pest_end(&pest);
        say(e, "a part %d", total > 0 && total < n);
        close(file);
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        unsigned char *buf = scratch();
        size_t done = 0;
        while (done < total) {
            ssize_t r = recv(FD, buf, total - done < SCRATCH ? total - done : SCRATCH, 0);
            if (r <= 0)
                break;
            done += r;
        }
        say(e, "all %d", done == total);
    }
}

// The same of messages: one of nothing was sent.
static void restarted_after_a_message(struct end *e)
{
    size_t total = 0;
    AT(C) {
        struct iovec v = {"abc", 3};
        struct mmsghdr m[2] = {{{.msg_iov = &v}, 1}, {{.msg_iov = &v, .msg_iovlen = 1}, 1}};
        handle(SIGUSR1, count_hit, SA_RESTART);
        total = stuff_for_good(e, FD, 5);
        PESTERED(sendmmsg(FD, m, 2, 0), SIGUSR1, 1);
        say(e, "length %u", m[0].msg_len);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 5);
}

// A byte comes, and then a signal: the handler finds a call that has received a part, or is about to.
static void byte_and_signal(struct end *e)
{
    enum { TIMES = 20, ALL_OF_IT = 10 };
    char buf[ALL_OF_IT];
    int parts = 0;
    if (e->role == C)
        for (int i = 0; i < TIMES; i++) {
            await_blocked(e);
            put(FD, "b", 1);
            MUST(syscall(SYS_tgkill, e->peer_pid, e->peer_tid, SIGUSR1));
            await_sleep(e, e->peer_pid, e->peer_tid);
            put(FD, "the others", ALL_OF_IT - 1);
        }
    else {
        handle(SIGUSR1, count_hit, SA_RESTART);
        for (int i = 0; i < TIMES; i++) {
            will_block(e);
            ssize_t n = recv(FD, buf, ALL_OF_IT, MSG_WAITALL);
            parts += n == 1;
            while (n > 0 && n < ALL_OF_IT)
                n += recv(FD, buf, ALL_OF_IT - n, MSG_WAITALL);
        }
        say(e, "%d parts", parts);
    }
    meet(e);
}

#ifndef VIA_SYSCALL
struct doomed {
    int from, to;
    pid_t tid;
};

static void *splices_for_ever(void *arg)
{
    struct doomed *d = arg;
    __atomic_store_n(&d->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    splice(d->from, NULL, d->to, NULL, 1000, 0);
    return NULL;
}

static void cancel(struct end *e, int from, int to)
{
    struct doomed d = {.from = from, .to = to};
    pthread_t t;
    void *result;
    MUST(pthread_create(&t, NULL, splices_for_ever, &d));
    while (!__atomic_load_n(&d.tid, __ATOMIC_ACQUIRE))
        nap();
    await_sleep(e, e->pid, d.tid);
    pthread_cancel(t);
    pthread_join(t, &result);
    say(e, "cancelled: %d", result == PTHREAD_CANCELED);
}

// A thread is cancelled in splice while it waits for the pipe: one that is empty, then one that is full.
static void cancelled_at_pipe(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        int p[2];
        await_bytes(e, FD, 3);
        MUST(pipe2(p, O_CLOEXEC));
        cancel(e, p[0], FD);
        nonblocking(p[1], 1);
        while (write(p[1], scratch(), 4096) > 0)
            ;
        nonblocking(p[1], 0);
        cancel(e, FD, p[1]);
        close(p[0]), close(p[1]);
        T(recv(FD, (char[8]){0}, 8, 0));
        T(send(FD, "def", 3, 0));
    }
    AT(C) T(recv(FD, (char[8]){0}, 8, 0));
}
#else
static void cancelled_at_pipe(struct end *e) { say(e, "not by syscall"); }
#endif

// A proxy's loop: socket to pipe to socket, and back to the sender.
static void spliced_echo(struct end *e)
{
    const size_t n = 3 << 20;
    if (e->role == S) {
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        size_t done = 0;
        while (done < n) {
            ssize_t in = splice(FD, NULL, p[1], NULL, 65536, SPLICE_F_MOVE);
            if (in <= 0)
                break;
            for (ssize_t left = in; left > 0;) {
                ssize_t out = splice(p[0], NULL, FD, NULL, left, SPLICE_F_MOVE | SPLICE_F_MORE);
                if (out <= 0)
                    break;
                left -= out;
            }
            done += in;
        }
        say(e, "%zu", done);
        put(FD, "end", 3);
        close(p[0]), close(p[1]);
    } else {
        char buf[4];
        pid_t helper = MUST(fork());
        if (helper == 0) {
            produce(e, FD, n, 3);
            _exit(0);
        }
        expect(e, FD, n, 3);
        get(FD, buf, 3);
        say(e, "%.3s", buf);
        waitpid(helper, NULL, 0);
    }
}

static void thousand_pieces(struct end *e)
{
    static unsigned char data[1000][7], back[1000][9];
    struct iovec v[1000];
    AT(C) {
        fill(data, sizeof data, 0, 1);
        for (int i = 0; i < 1000; i++)
            v[i] = (struct iovec){data[i], 7};
        T(writev(FD, v, 1000));
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 1000};
        T(sendmsg(FD, &m, 0));
    }
    AT(S) {
        await_bytes(e, FD, 14000);
        for (int i = 0; i < 1000; i++)
            v[i] = (struct iovec){back[i], i % 10};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 1000};
        T(readv(FD, v, 1000));
        T(recvmsg(FD, &m, 0));
        T(readv(FD, v, 1000));
        T(readv(FD, v, 1000));
    }
}

static void one_way(struct end *e)
{
    const size_t n = 32 << 20;
    if (e->role == C) {
        produce(e, FD, n, 1);
        expect(e, FD, 4, 2);
    } else {
        expect(e, FD, n, 1);
        produce(e, FD, 4, 2);
    }
}

// Both directions at once, each end one thread with a poll loop.
static void both_ways(struct end *e)
{
    const size_t n = 16 << 20;
    unsigned out_seed = e->role == C ? 1 : 2, in_seed = 3 - out_seed;
    static __thread unsigned char out[50000], in[70000];
    size_t sent = 0, received = 0;
    long bad = -1;
    nonblocking(FD, 1);
    meet(e);
    while ((sent < n || received < n) && bad < 0) {
        struct pollfd p = {FD, (sent < n ? POLLOUT : 0) | (received < n ? POLLIN : 0), 0};
        if (poll(&p, 1, PATIENCE_MS) != 1) {
            say(e, "stuck");
            break;
        }
        if (p.revents & POLLOUT) {
            size_t want = n - sent < sizeof out ? n - sent : sizeof out;
            fill(out, want, sent, out_seed);
            ssize_t r = send(FD, out, want, 0);
            if (r < 0 && errno != EAGAIN)
                say(e, "send: %s", errname(errno));
            sent += r > 0 ? r : 0;
        }
        if (p.revents & POLLIN) {
            ssize_t r = recv(FD, in, sizeof in, 0);
            if (r == 0 || (r < 0 && errno != EAGAIN)) {
                say(e, "recv: %zd", r);
                break;
            }
            if (r > 0) {
                bad = check(in, r, received, in_seed);
                received += r;
            }
        }
    }
    say(e, "sent %zu, received %zu, %ld", sent, received, bad);
    meet(e);
}

DIFF_MAIN(CASE(whole_file, TWO | COLD), CASE(parts_of_a_file, ALL | COLD), CASE(sendfile_large, 0),
          CASE(devices, ALL | COLD), CASE(sendfile_counts, COLD), CASE(ended_file_when_full, COLD),
          CASE(wrong_ends, COLD), CASE(reset_under_sender, TWO | COLD), CASE(file_after_reset, COLD),
          CASE(pipe_after_reset, COLD), CASE(file_after_close, COLD), CASE(pipe_after_close, COLD),
          CASE(file_is_the_socket, COLD), CASE(file_when_full, COLD), CASE(file_to_ended, 0), CASE(pipes, ALL | COLD), CASE(pipes_of_packets, COLD),
          CASE(pipes_of_packets_in_a_crowd, SPLIT | COLD), CASE(splice_sleeps, TWO | COLD),
          CASE(splices_beside_splice, TWO | COLD), CASE(splices_beside_receiver, TWO | COLD), CASE(restarted_after_a_part, COLD),
          CASE(restarted_after_a_message, STEADY), CASE(byte_and_signal, TWO | COLD | STEADY), CASE(cancelled_at_pipe, COLD),
          CASE(spliced_echo, SPLIT | COLD), CASE(thousand_pieces, COLD), CASE(one_way, TWO | COLD),
          CASE(both_ways, TWO | ALL | COLD))
