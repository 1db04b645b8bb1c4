// Non-blocking descriptors, however they became so, and full buffers.
// path: shunted 50%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

static void all_would_block(struct end *e)
{
    char buf[8];
    struct iovec v = {buf, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    T(read(FD, buf, 8));
    T(recv(FD, buf, 8, 0));
    T(recv(FD, buf, 8, MSG_PEEK));
    T(recv(FD, buf, 8, MSG_WAITALL));
    T(readv(FD, &v, 1));
    T(recvmsg(FD, &m, 0));
    T(recvfrom(FD, buf, 8, 0, NULL, NULL));
    T(preadv2(FD, &v, 1, -1, 0));
}

static void by_fcntl(struct end *e)
{
    char buf[8];
    AT(S) {
        int flags = T(fcntl(FD, F_GETFL));
        T(fcntl(FD, F_SETFL, flags | O_NONBLOCK));
        T(fcntl(FD, F_GETFL));
        all_would_block(e);
    }
    AT(C) T(write(FD, "abc", 3));
    AT(S) {
        await_bytes(e, FD, 3);
        T(read(FD, buf, 8));
        T(read(FD, buf, 8));
        T(fcntl(FD, F_SETFL, O_RDWR));
        T(fcntl(FD, F_GETFL));
    }
    AT(C) T(write(FD, "de", 2));
    AT(S) T(read(FD, buf, 8));
}

static void by_ioctl(struct end *e)
{
    char buf[8];
    int on = 1, off = 0;
    AT(S) {
        T(ioctl(FD, FIONBIO, &on));
        T(fcntl(FD, F_GETFL));
        all_would_block(e);
        T(ioctl(FD, FIONBIO, &off));
        T(fcntl(FD, F_GETFL));
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        T(ioctl(FD, FIONBIO, (int *)8));
    }
    AT(C) T(write(FD, "abc", 3));
    AT(S) T(read(FD, buf, 8));
}

static void by_accept4(struct end *e)
{
    char buf[8];
    AT(C) {
        FD = tcp_socket(e->fam, SOCK_NONBLOCK | SOCK_CLOEXEC);
        T(fcntl(FD, F_GETFL));
        T(tcp_connect(FD, e->fam, e->port));
        say(e, "%s", events(await_events(e, FD, POLLOUT)));
    }
    AT(S) {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_NONBLOCK));
        T(fcntl(FD, F_GETFL));
        T(fcntl(FD, F_GETFD));
        T(read(FD, buf, 8));
    }
    warm_up(e);
    AT(C) {
        T(fcntl(FD, F_GETFL));
        T(read(FD, buf, 8));
        T(write(FD, "abc", 3));
    }
    AT(S) {
        await_events(e, FD, POLLIN);
        T(read(FD, buf, 8));
        T(read(FD, buf, 8));
        all_would_block(e);
    }
    AT(C) all_would_block(e);
}

// Non-blocking only for connect, blocking afterwards, as many clients do.
static void for_connect_only(struct end *e)
{
    char buf[8];
    if (e->role == C) {
        FD = tcp_socket(e->fam, SOCK_NONBLOCK | SOCK_CLOEXEC);
        tcp_connect(FD, e->fam, e->port);
        await_events(e, FD, POLLOUT);
        T(nonblocking(FD, 0));
        will_block(e);
        T(read(FD, buf, 8));
        T(write(FD, "d", 1));
    } else {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        await_blocked(e);
        T(write(FD, "abc", 3));
        T(read(FD, buf, 1));
    }
    for (int i = 0; i < 10; i++) {
        if (e->role == C) {
            put(FD, "ping", 4);
            get(FD, buf, 4);
        } else {
            get(FD, buf, 4);
            put(FD, "pong", 4);
        }
    }
    say(e, "%.4s", buf);
}

static void by_a_dup(struct end *e)
{
    char buf[8];
    AT(S) {
        int other = MUST(dup(FD));
        T(nonblocking(other, 1));
        T(fcntl(FD, F_GETFL));
        all_would_block(e);
        T(close(other));
        T(recv(FD, buf, 8, 0));
        other = MUST(fcntl(FD, F_DUPFD_CLOEXEC, 50));
        T(recv(other, buf, 8, 0));
        T(nonblocking(FD, 0));
        T(fcntl(other, F_GETFL));
        close(other);
    }
    AT(C) T(write(FD, "abc", 3));
    AT(S) T(read(FD, buf, 8));
}

static void by_a_child(struct end *e)
{
    char buf[8];
    AT(S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            T(nonblocking(FD, 1));
            T(read(FD, buf, 8));
            _exit(0);
        }
        reap(e, &kid);
        T(fcntl(FD, F_GETFL));
        all_would_block(e);
    }
    AT(C) T(write(FD, "abc", 3));
    AT(S) {
        await_bytes(e, FD, 3);
        T(read(FD, buf, 8));
        T(read(FD, buf, 8));
    }
}

static void *make_nonblocking(void *arg)
{
    struct end *e = arg;
    await_sleep(e, e->pid, e->tid);
    nonblocking(FD, 1);
    go(e);
    return NULL;
}

// A call already asleep goes on sleeping; the next one does not sleep.
static void while_asleep(struct end *e)
{
    char buf[8];
    if (e->role == S) {
        pthread_t t;
        MUST(pthread_create(&t, NULL, make_nonblocking, e));
        T(read(FD, buf, 8));
        pthread_join(t, NULL);
        all_would_block(e);
    } else {
        await_blocked(e);
        T(write(FD, "abc", 3));
    }
}

static void full(struct end *e)
{
    size_t total = 0;
    AT(C) {
        nonblocking(FD, 1);
        struct iovec v = {"x", 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        total = stuff(e, FD, 1);
        T(write(FD, "x", 1));
        T(send(FD, "x", 1, 0));
        T(writev(FD, &v, 1));
        T(sendmsg(FD, &m, 0));
        T(sendto(FD, "x", 1, 0, NULL, 0));
        T(pwritev2(FD, &v, 1, -1, 0));
        T(send(FD, "x", 0, 0));
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 1);
    AT(C) {
        say(e, "%s", events(await_events(e, FD, POLLOUT)));
        T(write(FD, "x", 1));
    }
    AT(S) T(read(FD, (char[4]){0}, 4));
}

// Small messages: what is not writable any more is not said to be.
static void full_of_small(struct end *e)
{
    static const char small[8] = "tidbit ";
    size_t total = 0;
    int little = 65536;
    struct pollfd p = {FD, POLLOUT, 0};
    AT(S) MUST(setsockopt(FD, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    AT(C) {
        ssize_t r;
        nonblocking(FD, 1);
        do
            while ((r = send(FD, small + total % 8, 8 - total % 8, 0)) > 0)
                total += r;
        while (poll(&p, 1, 50) > 0);
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        char buf[4096];
        size_t n = 0, wrong = 0;
        while (n < total) {
            ssize_t r = recv(FD, buf, sizeof buf, 0);
            if (r <= 0)
                break;
            for (ssize_t i = 0; i < r; i++)
                wrong += buf[i] != small[(n + i) % 8];
            n += r;
        }
        say(e, "all: %d, wrong: %zu", n == total, wrong);
    }
    AT(C) {
        say(e, "%s", events(await_events(e, FD, POLLOUT)));
        T(write(FD, "x", 1));
    }
    AT(S) T(read(FD, (char[4]){0}, 4));
}

// One call larger than all buffers takes a part, and says how large a part.
static void partial(struct end *e)
{
    const size_t n = 64 << 20;
    size_t total = 0;
    AT(C) {
        unsigned char *big = malloc(n);
        fill(big, n, 0, 6);
        nonblocking(FD, 1);
        struct iovec v[2] = {{big, n / 2}, {big + n / 2, n / 2}};
        ssize_t r = writev(FD, v, 2);
        total = r;
        say(e, "a part: %d", r > 0 && r < (ssize_t)n);
        free(big);
    }
    share(e, C, &total, sizeof total);
    AT(S) drain(e, FD, total, 6);
    AT(S) T(recv(FD, (char[4]){0}, 4, MSG_DONTWAIT));
}

static void full_both_ways(struct end *e)
{
    size_t up = 0, down = 0;
    AT(C) up = stuff_for_good(e, FD, 1);
    AT(S) down = stuff_for_good(e, FD, 2);
    // Natively what comes may tell of a little room.
    AT(C) {
        up = stuff_from(e, FD, 1, up);
        T(send(FD, "x", 1, MSG_DONTWAIT));
    }
    AT(S) {
        down = stuff_from(e, FD, 2, down);
        T(send(FD, "x", 1, MSG_DONTWAIT));
    }
    share(e, C, &up, sizeof up);
    share(e, S, &down, sizeof down);
    AT(C) drain(e, FD, down, 2);
    AT(S) drain(e, FD, up, 1);
    AT(C) {
        await_events(e, FD, POLLOUT);
        T(send(FD, "x", 1, MSG_DONTWAIT));
    }
    AT(S) {
        await_events(e, FD, POLLOUT);
        T(send(FD, "y", 1, MSG_DONTWAIT));
        T(recv(FD, (char[4]){0}, 4, 0));
    }
    AT(C) T(recv(FD, (char[4]){0}, 4, 0));
}

// Upgraded between the two fillings.
static void full_both_ways_in_the_middle(struct end *e) { full_both_ways(e); }

// Fill and drain several times over, so that rings wrap.
static void again_and_again(struct end *e)
{
    for (int i = 0; i < 4; i++) {
        size_t total = 0;
        AT(C) total = stuff(e, FD, i);
        share(e, C, &total, sizeof total);
        AT(S) drain(e, FD, total, i);
    }
}

// A sleeping sender is woken when room appears. (Without a warm-up the one call is TCP's to its end.)
static void blocked_sender(struct end *e)
{
    const size_t n = e->warm ? 40 << 20 : 20 << 20;
    if (e->role == C) {
        unsigned char *big = malloc(n);
        fill(big, n, 0, 7);
        will_block(e);
        T(send(FD, big, n, 0));
        free(big);
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        await_blocked(e);
        drain(e, FD, n, 7);
        T(send(FD, "ok", 2, 0));
    }
}

// The reader takes a little at a time from a sender that stays full.
static void trickle(struct end *e)
{
    const size_t n = 6 << 20;
    if (e->role == C) {
        produce(e, FD, n, 8);
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        unsigned char buf[3000];
        size_t done = 0;
        long bad = -1;
        while (done < n && bad < 0) {
            ssize_t r = recv(FD, buf, sizeof buf, 0);
            if (r <= 0)
                break;
            bad = check(buf, r, done, 8);
            done += r;
        }
        say(e, "%zu, %ld", done, bad);
        T(send(FD, "ok", 2, 0));
    }
}

DIFF_MAIN(CASE(by_fcntl, ALL | COLD), CASE(by_ioctl, COLD), CASE(by_accept4, ALL | BARE),
          CASE(for_connect_only, TWO | ALL | BARE | ONLY_COLD), CASE(by_a_dup, ALL | COLD), CASE(by_a_child, SPLIT | COLD),
          CASE(while_asleep, TWO), CASE(full, COLD | STEADY), CASE(full_of_small, STEADY | BUSY), CASE(partial, COLD), CASE(full_both_ways, STEADY),
          CASE(full_both_ways_in_the_middle, ONLY_COLD | STEADY),
          CASE(again_and_again, 0), CASE(blocked_sender, TWO | COLD), CASE(trickle, TWO | COLD))
