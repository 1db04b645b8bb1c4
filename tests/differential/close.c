// Every way in which a connection ends, and what each side sees of it.
// path: shunted 30%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

// What a side sees at this moment.
static void look(struct end *e)
{
    struct pollfd p = {FD, POLLIN | POLLOUT | POLLRDHUP, 0};
    T(poll(&p, 1, 0));
    say(e, "sees %s", events(p.revents));
}

static void names(struct end *e)
{
    union address a;
    socklen_t n = sizeof a;
    T(getpeername(FD, &a.sa, &n));
    n = sizeof a;
    T(getsockname(FD, &a.sa, &n));
}

static void error(struct end *e)
{
    int error = -1;
    socklen_t n = sizeof error;
    T(getsockopt(FD, SOL_SOCKET, SO_ERROR, &error, &n));
    say(e, "SO_ERROR %s", error ? errname(error) : "0");
}

static void linger(struct end *e, int on, int seconds)
{
    struct linger l = {on, seconds};
    T(setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l));
}

static void receive_all(struct end *e)
{
    char buf[16];
    for (int i = 0; i < 4; i++) {
        long n = T(recv(FD, buf, sizeof buf, MSG_DONTWAIT));
        if (n > 0)
            say(e, "\"%.*s\"", (int)n, buf);
    }
}

static void half_close(struct end *e)
{
    char buf[16];
    AT(C) {
        T(send(FD, "abc", 3, 0));
        T(shutdown(FD, SHUT_WR));
        look(e);
        T(send(FD, "x", 1, 0));
        T(write(FD, "x", 1));
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        look(e);
        names(e);
        T(send(FD, "defg", 4, 0));
    }
    AT(C) {
        await_events(e, FD, POLLIN);
        look(e);
        T(recv(FD, buf, 2, 0));
        T(recv(FD, buf, sizeof buf, MSG_DONTWAIT));
        T(recv(FD, buf, sizeof buf, MSG_DONTWAIT));
    }
    AT(S) {
        T(send(FD, "hi", 2, 0));
        T(shutdown(FD, SHUT_WR));
        look(e);
        T(send(FD, "x", 1, 0));
        await_acknowledged(e);
        T(shutdown(FD, SHUT_WR));
        T(shutdown(FD, SHUT_RD));
        T(recv(FD, buf, 1, 0));
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        look(e);
        T(shutdown(FD, SHUT_RDWR));
    }
}

static void half_close_by_server(struct end *e)
{
    AT(S) {
        T(send(FD, "abc", 3, 0));
        T(shutdown(FD, SHUT_WR));
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        receive_all(e);
        T(send(FD, "defg", 4, 0));
        T(shutdown(FD, SHUT_WR));
        look(e);
    }
    AT(S) {
        await_closed(e);
        look(e);
        receive_all(e);
        look(e);
        error(e);
        names(e);
    }
}

// A large transfer after the other direction has ended.
static void upload_then_answer(struct end *e)
{
    const size_t n = 5 << 20;
    if (e->role == C) {
        produce(e, FD, 1000, 1);
        T(shutdown(FD, SHUT_WR));
        expect(e, FD, n, 2);
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        expect(e, FD, 1000, 1);
        T(recv(FD, (char[1]){0}, 1, 0));
        produce(e, FD, n, 2);
        T(shutdown(FD, SHUT_WR));
    }
}

static void both_half_close_at_once(struct end *e)
{
    AT(C) { T(send(FD, "abc", 3, 0)); T(shutdown(FD, SHUT_WR)); }
    AT(S) { T(send(FD, "def", 3, 0)); T(shutdown(FD, SHUT_WR)); }
    AT(C) { await_over(e); look(e); receive_all(e); look(e); }
    AT(S) { await_over(e); look(e); receive_all(e); look(e); }
}

static void end_of_stream(struct end *e)
{
    char buf[16];
    struct iovec v = {buf, 16};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    AT(C) {
        T(send(FD, "abc", 3, 0));
        close(FD), FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
        T(read(FD, buf, 16));
        T(readv(FD, &v, 1));
        m.msg_flags = -1;
        T(recvmsg(FD, &m, 0));
        say(e, "flags %x", m.msg_flags);
        T(recv(FD, buf, 16, MSG_PEEK));
        T(recv(FD, buf, 16, MSG_WAITALL));
        T(recv(FD, buf, 16, MSG_DONTWAIT));
        T(recv(FD, buf, 0, 0));
        look(e);
        names(e);
        error(e);
    }
}

// The first send to a peer that closed succeeds; its reset fails the next.
static void send_after_close(struct end *e)
{
    AT(C) close(FD), FD = -1;
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(send(FD, "abc", 3, 0));
        await_over(e);
        look(e);
        T(send(FD, "abc", 3, 0));
        T(send(FD, "abc", 3, 0));
        T(send(FD, "abc", 3, MSG_NOSIGNAL));
        receive_all(e);
        error(e);
        names(e);
        look(e);
    }
}

static void receive_after_late_reset(struct end *e)
{
    AT(C) { T(send(FD, "abc", 3, 0)); close(FD), FD = -1; }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(write(FD, "abc", 3));
        await_over(e);
        look(e);
        receive_all(e);
        T(write(FD, "abc", 3));
    }
}

static void error_after_late_reset(struct end *e)
{
    AT(C) close(FD), FD = -1;
    AT(S) {
        T(write(FD, "abc", 3));
        await_over(e);
        error(e);
        error(e);
        T(write(FD, "abc", 3));
        receive_all(e);
    }
}

// What came before a reset is counted, and nothing else: no FIN came with that.
static void counted_before_reset(struct end *e)
{
    int n = -1;
    AT(S) T(send(FD, "unread", 6, 0));
    AT(C) {
        await_bytes(e, FD, 6);
        T(send(FD, "abc", 3, 0));
        close(FD), FD = -1;
    }
    AT(S) {
        await_over(e);
        for (int i = 0; i < 4; i++) {
            T(ioctl(FD, FIONREAD, &n));
            say(e, "%d to be read", n);
            T(recv(FD, (char[1]){0}, 1, MSG_DONTWAIT));
        }
    }
}

// Closing with unread bytes resets the connection.
static void be_reset(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        T(close(FD)), FD = -1;
    }
    AT(C) await_over(e);
}

static void close_unread(struct end *e)
{
    be_reset(e);
    AT(C) {
        look(e);
        receive_all(e);
        look(e);
        T(send(FD, "x", 1, 0));
        error(e);
        names(e);
    }
}

static void close_unread_send_first(struct end *e)
{
    be_reset(e);
    AT(C) {
        T(send(FD, "x", 1, 0));
        T(send(FD, "x", 1, 0));
        T(write(FD, "x", 1));
        receive_all(e);
        error(e);
    }
}

static void close_unread_error_first(struct end *e)
{
    be_reset(e);
    AT(C) {
        error(e);
        look(e);
        error(e);
        receive_all(e);
        T(send(FD, "x", 1, 0));
        T(shutdown(FD, SHUT_RDWR));
        T(shutdown(FD, SHUT_WR));
    }
}

// Partly read counts as unread; the bytes in the other direction survive.
static void close_partly_read(struct end *e)
{
    char buf[16];
    AT(C) T(send(FD, "abcdef", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 2, 0));
        T(send(FD, "answer", 6, 0));
        T(close(FD)), FD = -1;
    }
    AT(C) {
        await_over(e);
        look(e);
        receive_all(e);
        look(e);
    }
}

static void close_after_peek(struct end *e)
{
    char buf[16];
    AT(C) T(send(FD, "abcdef", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 16, MSG_PEEK));
        T(close(FD)), FD = -1;
    }
    AT(C) {
        await_over(e);
        receive_all(e);
    }
}

static void close_both_unread(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(send(FD, "def", 3, 0));
    AT(C) {
        await_bytes(e, FD, 3);
        T(close(FD)), FD = -1;
    }
    AT(S) {
        await_over(e);
        look(e);
        receive_all(e);
        T(close(FD)), FD = -1;
    }
}

// Zero linger resets even when everything has been read.
static void linger_zero(struct end *e)
{
    AT(C) {
        linger(e, 1, 0);
        T(close(FD)), FD = -1;
    }
    AT(S) {
        int empty = memfd_create("empty", MFD_CLOEXEC);
        await_over(e);
        look(e);
        names(e);
        T(sendfile(FD, empty, NULL, 4)); // The error stays.
        close(empty);
        T(recv(FD, (char[4]){0}, 4, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
        T(send(FD, "x", 1, 0));
    }
}

static void linger_zero_after_data(struct end *e)
{
    AT(C) {
        T(send(FD, "abc", 3, 0));
        linger(e, 1, 0);
        T(close(FD)), FD = -1;
    }
    AT(S) {
        await_over(e);
        look(e);
        receive_all(e);
        error(e);
    }
}

static void linger_zero_after_shutdown(struct end *e)
{
    AT(C) {
        T(send(FD, "abc", 3, 0));
        T(shutdown(FD, SHUT_WR));
        linger(e, 1, 0);
        T(close(FD)), FD = -1;
    }
    AT(S) {
        await_over(e);
        look(e);
        receive_all(e);
        error(e);
    }
}

static void linger_some(struct end *e)
{
    AT(C) {
        linger(e, 1, 5);
        T(send(FD, "abc", 3, 0));
        T(close(FD)), FD = -1;
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
    }
}

// Everything sent before a close arrives before the end.
static void data_then_close(struct end *e)
{
    const size_t n = 3 << 20;
    if (e->role == C) {
        produce(e, FD, n, 3);
        T(close(FD));
        FD = -1;
    } else {
        expect(e, FD, n, 3);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

static void full_then_close(struct end *e)
{
    size_t total = 0;
    AT(C) {
        total = stuff(e, FD, 4);
        T(close(FD));
        FD = -1;
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        drain(e, FD, total, 4);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

static void full_then_shutdown(struct end *e)
{
    size_t total = 0;
    AT(C) {
        total = stuff(e, FD, 4);
        T(shutdown(FD, SHUT_WR));
        look(e);
        T(send(FD, "x", 1, 0));
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        drain(e, FD, total, 4);
        T(recv(FD, (char[1]){0}, 1, 0));
        T(send(FD, "ok", 2, 0));
    }
    AT(C) T(recv(FD, (char[4]){0}, 4, 0));
}

static void full_then_reset(struct end *e)
{
    AT(C) stuff(e, FD, 4);
    AT(S) T(close(FD)), FD = -1;
    AT(C) {
        await_over(e);
        look(e);
        T(send(FD, "x", 1, 0));
        T(send(FD, "x", 1, 0));
        receive_all(e);
    }
}

static void shut_read(struct end *e)
{
    AT(S) {
        T(shutdown(FD, SHUT_RD));
        look(e);
        receive_all(e);
    }
    // The peer notices nothing, and its bytes can still be had.
    AT(C) {
        look(e);
        T(send(FD, "abc", 3, 0));
    }
    AT(S) {
        await_bytes(e, FD, 3);
        look(e);
        receive_all(e);
        T(send(FD, "def", 3, 0));
    }
    AT(C) {
        await_bytes(e, FD, 3);
        receive_all(e);
    }
}

static void shut_read_with_data(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        T(shutdown(FD, SHUT_RD));
        look(e);
        receive_all(e);
        T(close(FD)), FD = -1;
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
    }
}

static void shut_both(struct end *e)
{
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        T(shutdown(FD, SHUT_RDWR));
        look(e);
        receive_all(e);
        T(send(FD, "x", 1, 0));
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        T(shutdown(FD, SHUT_RDWR));
    }
    AT(S) {
        await_closed(e);
        look(e);
        T(shutdown(FD, SHUT_RDWR));
        T(shutdown(FD, SHUT_RD));
        names(e);
    }
}

static void bad_shutdowns(struct end *e)
{
    AT(C) {
        T(shutdown(FD, 3));
        T(shutdown(FD, -1));
        T(shutdown(-1, SHUT_WR));
        int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(shutdown(fd, SHUT_WR));
        T(shutdown(fd, 7));
        close(fd);
        T(send(FD, "a", 1, 0));
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

// A dup keeps the connection open.
static void close_with_dup(struct end *e)
{
    int other = -1;
    AT(C) {
        other = MUST(dup(FD));
        T(send(FD, "abc", 3, 0));
        T(close(FD));
        FD = other;
        T(send(FD, "def", 3, 0));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        look(e);
        receive_all(e);
    }
    AT(C) T(close(FD)), FD = -1;
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
    }
}

struct helper {
    struct end *e;
    int what; // 0..2: how to shut down; 3: close
};

static void *meddle(void *arg)
{
    struct helper *h = arg;
    struct end *e = h->e;
    await_sleep(e, e->pid, e->tid);
    if (h->what < 3)
        shutdown(FD, h->what);
    else
        close(FD);
    return NULL;
}

// A sleeping receiver sees a shutdown by another thread.
static void shutdown_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        struct helper h = {e, SHUT_RD};
        MUST(pthread_create(&t, NULL, meddle, &h));
        T(recv(FD, (char[4]){0}, 4, 0));
        pthread_join(t, NULL);
        h.what = SHUT_RDWR;
        meet(e);
    } else {
        meet(e);
        T(send(FD, "abc", 3, 0));
    }
}

static void shutdown_both_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        struct helper h = {e, SHUT_RDWR};
        MUST(pthread_create(&t, NULL, meddle, &h));
        T(recv(FD, (char[4]){0}, 4, 0));
        pthread_join(t, NULL);
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        T(recv(FD, (char[4]){0}, 4, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

// Shutting down sending does not wake a receiver.
static void shutdown_send_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        struct helper h = {e, SHUT_WR};
        MUST(pthread_create(&t, NULL, meddle, &h));
        T(recv(FD, (char[4]){0}, 4, 0));
        pthread_join(t, NULL);
    } else {
        T(recv(FD, (char[4]){0}, 4, 0));
        await_sleep(e, e->peer_pid, e->peer_tid);
        T(send(FD, "abc", 3, 0));
    }
}

static void shutdown_under_sender(struct end *e)
{
    if (e->role == C) {
        pthread_t t;
        struct helper h = {e, SHUT_RDWR};
        stuff(e, FD, 5);
        MUST(pthread_create(&t, NULL, meddle, &h));
        T(send(FD, "x", 1, 0));
        pthread_join(t, NULL);
        T(send(FD, "x", 1, 0));
    }
}

static void shutdown_under_poll(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        struct helper h = {e, SHUT_RD};
        struct pollfd p = {FD, POLLIN | POLLRDHUP, 0};
        MUST(pthread_create(&t, NULL, meddle, &h));
        T(poll(&p, 1, -1));
        say(e, "%s", events(p.revents));
        pthread_join(t, NULL);
    }
}

// A sleeping receiver keeps the connection although its number is gone.
static void close_under_receiver(struct end *e)
{
    char buf[16];
    if (e->role == S) {
        pthread_t t;
        struct helper h = {e, 3};
        MUST(pthread_create(&t, NULL, meddle, &h));
        go(e);
        T(recv(FD, buf, 16, 0));
        pthread_join(t, NULL);
        T(recv(FD, buf, 16, 0));
        FD = -1;
    } else {
        await_blocked(e);
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
        T(send(FD, "abc", 3, 0));
        T(recv(FD, buf, 16, 0));
    }
}

static void reset_under_receiver(struct end *e)
{
    if (e->role == S) {
        will_block(e);
        T(recv(FD, (char[4]){0}, 4, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        await_blocked(e);
        linger(e, 1, 0);
        T(close(FD));
        FD = -1;
    }
}

static void end_under_receiver(struct end *e)
{
    if (e->role == S) {
        will_block(e);
        T(recv(FD, (char[4]){0}, 4, MSG_WAITALL));
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        await_blocked(e);
        T(send(FD, "ab", 2, 0));
        T(close(FD));
        FD = -1;
    }
}

static void reset_under_sender(struct end *e)
{
    if (e->role == C) {
        stuff(e, FD, 5);
        will_block(e);
        T(send(FD, "x", 1, 0));
        T(send(FD, "x", 1, 0));
    } else {
        await_blocked(e);
        T(close(FD));
        FD = -1;
    }
}

static void reset_under_poll(struct end *e)
{
    if (e->role == S) {
        struct pollfd p = {FD, POLLIN, 0};
        will_block(e);
        T(poll(&p, 1, -1));
        say(e, "%s", events(p.revents));
        receive_all(e);
    } else {
        await_blocked(e);
        linger(e, 1, 0);
        T(close(FD));
        FD = -1;
    }
}

// A process of its own holds the client's end and ends as told.
enum { KILLED, EXITED, RETURNED };
static void other_process(struct end *e, int how, int unread, int filled)
{
    char buf[16];
    size_t total = 0;
    if (e->role == C) {
        int ready[2], more[2];
        MUST(pipe2(ready, O_CLOEXEC));
        MUST(pipe2(more, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 6);
            if (unread)
                await_bytes(e, fd, 5);
            total = filled ? stuff(e, fd, 6) : 0;
            put(fd, "last", filled ? 0 : 4);
            raw_write(ready[1], (char *)&total, sizeof total);
            if (how == KILLED)
                pause();
            (void)!read(more[0], buf, 1);
            if (how == EXITED)
                _exit(3);
            exit(4);
        }
        MUST(read(ready[0], &total, sizeof total));
        give(e, &total, sizeof total);
        await_go(e);
        if (how == KILLED)
            kill(kid.pid, SIGKILL);
        else
            raw_write(more[1], "x", 1);
        reap(e, &kid);
        for (int i = 0; i < 2; i++)
            close(ready[i]), close(more[i]);
        go(e);
    } else {
        answer_child(e, 6);
        if (unread)
            T(send(FD, "stale", 5, 0));
        take(e, &total, sizeof total);
        go(e);
        await_go(e);
        if (total) // a full receiver does not hear of the end yet
            drain(e, FD, total, 6);
        if (unread)
            await_over(e);
        else
            await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        look(e);
        T(send(FD, "x", 1, 0));
        if (!unread) {
            await_over(e);
            T(send(FD, "x", 1, 0));
        }
        error(e);
        names(e);
    }
}

static void killed(struct end *e) { other_process(e, KILLED, 0, 0); }
static void killed_unread(struct end *e) { other_process(e, KILLED, 1, 0); }
static void killed_full(struct end *e) { other_process(e, KILLED, 0, 1); }
static void exited(struct end *e) { other_process(e, EXITED, 0, 0); }
static void exited_unread(struct end *e) { other_process(e, EXITED, 1, 0); }
static void exited_full(struct end *e) { other_process(e, EXITED, 0, 1); }
static void returned(struct end *e) { other_process(e, RETURNED, 0, 0); }
static void returned_full(struct end *e) { other_process(e, RETURNED, 0, 1); }

// A killed process whose peer sleeps in recv.
static void killed_under_receiver(struct end *e)
{
    char buf[16];
    if (e->role == C) {
        // It has read everything, or the kernel would reset.
        int read_all[2];
        MUST(pipe2(read_all, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 6);
            MUST(write(read_all[1], "r", 1));
            pause();
        }
        MUST(read(read_all[0], buf, 1));
        close(read_all[0]), close(read_all[1]);
        await_blocked(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
    } else {
        answer_child(e, 6);
        will_block(e);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
    }
}

// A process that is killed with bytes unread while its peer waits for room, or before it wants some.
static void killed_full_of_unread(struct end *e, int asleep, int flags)
{
    char buf[16];
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 6);
            pause();
        }
        if (asleep)
            await_blocked(e);
        else
            await_go(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        if (!asleep)
            go(e);
    } else {
        answer_child(e, 6);
        stuff(e, FD, 5);
        if (asleep) {
            will_block(e);
        } else {
            go(e);
            await_go(e);
        }
        T(send(FD, "x", 1, flags));
        T(send(FD, "x", 1, flags));
        T(recv(FD, buf, 16, 0));
    }
}

static void killed_under_sender(struct end *e) { killed_full_of_unread(e, 1, MSG_NOSIGNAL); }
static void killed_before_sender(struct end *e) { killed_full_of_unread(e, 0, MSG_NOSIGNAL); }
static void killed_before_attempt(struct end *e) { killed_full_of_unread(e, 0, MSG_NOSIGNAL | MSG_DONTWAIT); }

enum { IN_SEND, IN_POLL, IN_EPOLL, ALL_READ, PART = 1000 };

// A process that is killed with bytes unread, and more of its own on the way than its peer reads: the end of its stream waits
// behind these, and the peer, which waits for room, is told of a reset all the same. If it has read
// everything, all that it has sent comes.
static void killed_behind_own_bytes(struct end *e, int call)
{
    char buf[16], done;
    if (e->role == C) {
        int full[2];
        MUST(pipe2(full, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            close(e->ctl);
            int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
            MUST(tcp_connect(fd, e->fam, e->port));
            memset(scratch(), 'x', SCRATCH);
            for (int calm = 0; calm < 5; nap())
                calm = send(fd, scratch(), SCRATCH, MSG_DONTWAIT) < 0 ? calm + 1 : 0;
            MUST(write(full[1], "f", 1));
            for (int n = 0;; nap()) {
                (void)!send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
                if (call == ALL_READ && recv(fd, buf, 1, MSG_DONTWAIT) == 1 && ++n == PART)
                    MUST(write(full[1], "r", 1));
            }
        }
        MUST(read(full[0], &done, 1));
        go(e);
        if (call == ALL_READ)
            MUST(read(full[0], &done, 1));
        else
            await_blocked(e);
        close(full[0]), close(full[1]);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        if (call == ALL_READ)
            go(e);
    } else {
        struct epoll_event ev = {EPOLLOUT, {.u64 = 0}};
        struct pollfd p;
        int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        await_go(e);
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        p = (struct pollfd){FD, POLLOUT, 0};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        for (int i = 0; i < 60; i++, nap())
            get(FD, buf, 1);
        if (call == ALL_READ) {
            put(FD, scratch(), PART);
            await_go(e);
            ssize_t n;
            do
                n = recv(FD, scratch(), SCRATCH, 0);
            while (n > 0);
            say(e, "the last: %s", n < 0 ? errname(errno) : "0");
            MUST(close(ep));
            return;
        }
        stuff_for_good(e, FD, 5);
        will_block(e);
        if (call == IN_POLL) {
            T(poll(&p, 1, PATIENCE_MS));
            say(e, "%s", events(p.revents));
        }
        if (call == IN_EPOLL) {
            T(epoll_wait(ep, &ev, 1, PATIENCE_MS));
            say(e, "%s", events(ev.events));
        }
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(recv(FD, buf, 16, 0));
        MUST(close(ep));
    }
}

static void killed_behind_bytes_in_send(struct end *e) { killed_behind_own_bytes(e, IN_SEND); }
static void killed_behind_bytes_in_poll(struct end *e) { killed_behind_own_bytes(e, IN_POLL); }
static void killed_behind_bytes_in_epoll(struct end *e) { killed_behind_own_bytes(e, IN_EPOLL); }
static void killed_behind_bytes_all_read(struct end *e) { killed_behind_own_bytes(e, ALL_READ); }

// A process that is killed in its sleep, and a peer that does nothing but send: it is told
// before long.
static void killed_asleep(struct end *e, int by_epoll)
{
    char buf[16];
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            close(e->ctl);
            int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
            MUST(tcp_connect(fd, e->fam, e->port));
            struct epoll_event ev = {EPOLLIN, {.u64 = 0}};
            int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
            for (;;) {
                if (by_epoll)
                    MUST(epoll_wait(ep, &ev, 1, -1));
                MUST(recv(fd, buf, sizeof buf, 0));
            }
        }
        await_go(e);
        // On crowded cores it may still be about to read.
        await_sleep(e, kid.pid, kid.pid);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        go(e);
    } else {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        for (int i = 0; i < 60; i++, nap())
            MUST(send(FD, "record", 6, 0));
        go(e);
        await_go(e);
        int told = 0;
        for (int i = 0; i < 400 && !told; i++, nap())
            told = send(FD, "record", 6, MSG_NOSIGNAL) < 0;
        say(e, "told: %d", told);
    }
}

static void killed_in_recv(struct end *e) { killed_asleep(e, 0); }
static void killed_in_epoll(struct end *e) { killed_asleep(e, 1); }

// Close at once after connecting, before and after the other side accepts.
static void close_unused(struct end *e)
{
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        MUST(tcp_connect(FD, e->fam, e->port));
        T(close(FD)), FD = -1;
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        names(e);
    }
}

static void close_twice(struct end *e)
{
    AT(C) {
        int fd = FD;
        T(close(fd));
        T(close(fd));
        T(send(fd, "x", 1, 0));
        T(recv(fd, (char[1]){0}, 1, 0));
        T(shutdown(fd, SHUT_WR));
        FD = -1;
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

DIFF_MAIN(CASE(half_close, ALL | COLD), CASE(half_close_by_server, ALL | COLD), CASE(upload_then_answer, TWO | COLD),
          CASE(both_half_close_at_once, COLD), CASE(end_of_stream, ALL | COLD), CASE(send_after_close, ALL | COLD),
          CASE(receive_after_late_reset, COLD), CASE(error_after_late_reset, COLD), CASE(close_unread, ALL | COLD),
          CASE(counted_before_reset, COLD),
          CASE(close_unread_send_first, COLD), CASE(close_unread_error_first, COLD), CASE(close_partly_read, COLD),
          CASE(close_after_peek, 0), CASE(close_both_unread, COLD), CASE(linger_zero, ALL | COLD),
          CASE(linger_zero_after_data, COLD), CASE(linger_zero_after_shutdown, COLD), CASE(linger_some, COLD),
          CASE(data_then_close, TWO | ALL | COLD), CASE(full_then_close, COLD), CASE(full_then_shutdown, 0),
          CASE(full_then_reset, 0), CASE(shut_read, ALL | COLD), CASE(shut_read_with_data, COLD),
          CASE(shut_both, ALL | COLD), CASE(bad_shutdowns, 0), CASE(close_with_dup, COLD),
          CASE(shutdown_under_receiver, TWO), CASE(shutdown_both_under_receiver, TWO | COLD),
          CASE(shutdown_send_under_receiver, TWO), CASE(shutdown_under_sender, TWO | STEADY), CASE(shutdown_under_poll, TWO),
          CASE(close_under_receiver, TWO | COLD | STEADY), CASE(reset_under_receiver, TWO | COLD),
          CASE(end_under_receiver, TWO | COLD), CASE(reset_under_sender, TWO | STEADY), CASE(reset_under_poll, TWO | COLD),
          CASE(killed, SPLIT | BARE | ALL), CASE(killed_unread, SPLIT | BARE), CASE(killed_full, SPLIT | BARE),
          CASE(exited, SPLIT | BARE), CASE(exited_unread, SPLIT | BARE), CASE(exited_full, SPLIT | BARE),
          CASE(returned, SPLIT | BARE), CASE(returned_full, SPLIT | BARE), CASE(killed_under_receiver, SPLIT | BARE),
          CASE(killed_under_sender, SPLIT | BARE | STEADY), CASE(killed_before_sender, SPLIT | BARE | STEADY),
          CASE(killed_before_attempt, SPLIT | BARE | STEADY),
          CASE(killed_behind_bytes_in_send, SPLIT | BARE | STEADY), CASE(killed_behind_bytes_in_poll, SPLIT | BARE | STEADY),
          CASE(killed_behind_bytes_in_epoll, SPLIT | BARE | STEADY), CASE(killed_behind_bytes_all_read, SPLIT | BARE),
          CASE(killed_in_recv, SPLIT | BARE), CASE(killed_in_epoll, SPLIT | BARE),
          CASE(close_unused, BARE | ALL), CASE(close_twice, COLD))
