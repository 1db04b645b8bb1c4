// Short sequences of calls at ends, changes of way and forks that random ones have shown.
// needs: lending
// path: shunted
// timeout: 60
#include "diff.h"
#include "plain.h"

// A connection goes to this process by a Unix socket; meanwhile no descriptor names it.
static int by_message(struct end *e, int fd)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    pass(pair[0], fd);
    close(fd);
    fd = passed(pair[1]);
    close(pair[0]);
    close(pair[1]);
    return fd;
}

// The other end was closed with something of ours unread.
static void await_reset(struct end *e) { await_events(e, FD, POLLRDHUP); }

// ---- Ends ------------------------------------------------------------------

// What a program has taken of the stream is not there once more when the connection is reset.
static void reset_behind_program(struct end *e)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    AT(S) produce(e, FD, 100, 1);
    AT(C) {
        produce(e, FD, 8192, 2);
        expect(e, FD, 100, 1);
        close(FD), FD = -1;
    }
    AT(S) {
        p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, 8192, 2);
        T(send(FD, scratch(), 5000, MSG_NOSIGNAL));
        T(recv(FD, scratch(), 4920, 0));
        plain_end(e, &p);
    }
}

// Nor is the one byte that a stream of stdio's has taken.
static void reset_behind_stream(struct end *e)
{
    char c = 0;
    AT(S) T(send(FD, "s", 1, 0));
    AT(C) T(send(FD, "c", 1, 0));
    AT(S) await_acknowledged(e);
    AT(C) {
        await_bytes(e, FD, 1);
        close(FD), FD = -1;
    }
    AT(S) {
        await_reset(e);
        FILE *stream = fdopen(MUST(dup(FD)), "r");
        setvbuf(stream, NULL, _IONBF, 0);
        say(e, "%zu, %c", fread(&c, 1, 1, stream), c);
        fclose(stream);
        T(recv(FD, scratch(), 100, 0));
        T(recv(FD, scratch(), 100, 0));
    }
}

// A splice takes what there is, here by TCP, and the next call is told of the reset.
static void reset_behind_splice(struct end *e)
{
    AT(S) produce(e, FD, 700, 2);
    AT(C) {
        expect(e, FD, 10, 2);
        produce(e, FD, 500, 1);
        await_acknowledged(e);
    }
    AT(S) close(FD), FD = -1;
    AT(C) {
        int tube[2];
        MUST(pipe2(tube, O_CLOEXEC));
        T(splice(FD, NULL, tube[1], NULL, 10000, 0));
        T(read(tube[0], scratch(), 690));
        say(e, "%ld", check(scratch(), 690, 10, 2));
        T(recv(FD, scratch(), 100, 0));
        close(tube[0]);
        close(tube[1]);
    }
}

// A receive takes what lies in the ring and what follows it, also if a reset is behind that.
static void reset_behind_both(struct end *e)
{
    at_once(e);
    AT(S) {
        produce(e, FD, 1000, 1);
        await_acknowledged(e);
    }
    AT(C) {
        produce(e, FD, 4096, 2);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, SEND, 4000, 3);
        plain_end(e, &p);
        close(FD), FD = -1;
    }
    AT(S) {
        await_reset(e);
        T(recv(FD, scratch(), 20000, 0));
        say(e, "%ld", check(scratch(), 4096, 0, 2));
        T(recv(FD, scratch(), 1, 0));
    }
}

// A splice that begins in the ring goes on behind it.
static void splice_goes_on(struct end *e)
{
    at_once(e);
    AT(C) {
        produce(e, FD, 4096, 1);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, SEND, 4000, 2);
        plain_end(e, &p);
    }
    AT(S) {
        int tube[2];
        MUST(pipe2(tube, O_CLOEXEC));
        await_bytes(e, FD, 8096);
        T(splice(FD, NULL, tube[1], NULL, 20000, 0));
        expect(e, tube[0], 4096, 1);
        close(tube[0]);
        close(tube[1]);
    }
}

// Nobody has read the last byte when its receiver hands the connection on and closes it.
static void reset_behind_pass(struct end *e)
{
    AT(S) {
        T(send(FD, "x", 1, 0));
        await_acknowledged(e);
    }
    AT(C) {
        FD = by_message(e, FD);
        close(FD), FD = -1;
    }
    AT(S) T(recv(FD, scratch(), 100, 0));
}

// ---- Amounts ---------------------------------------------------------------

// A receive of nothing waits for something, and is content when its time is up.
static void nothing_in_time(struct end *e)
{
    struct timeval soon = {0, 20000};
    char c;
    AT(C) {
        T(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
        T(recv(FD, &c, 0, 0));
        T(recv(FD, &c, 0, MSG_PEEK));
        T(recv(FD, &c, 0, MSG_DONTWAIT));
        T(recv(FD, &c, 1, 0));
    }
}

// A look that only counts, at what came before the ring and what is in it.
static void counts_both(struct end *e)
{
    AT(C) produce(e, FD, 100, 1);
    AT(S) for (int i = 0; i < 10; i++) recv(FD, scratch(), 1, MSG_PEEK);
    AT(C) for (int i = 0; i < 10; i++) produce(e, FD, 20, i);
    AT(S) {
        await_bytes(e, FD, 300);
        T(recv(FD, scratch(), 1000, MSG_PEEK | MSG_TRUNC));
        T(recv(FD, scratch(), 1000, MSG_PEEK));
    }
}

// ---- Forks and programs ----------------------------------------------------

// A program has had the connection; then this process passes it to itself, and has the same
// stream as before.
static void passed_to_itself(struct end *e)
{
    AT(C) produce(e, FD, 4000, 1);
    AT(S) {
        struct plain p = plain_on(e, FD, THERE, BY_FORK);
        tell_it(e, &p, RECEIVE, 1000, 1);
        plain_end(e, &p);
    }
    AT(C) produce(e, FD, 8000, 2);
    AT(S) {
        FD = by_message(e, FD);
        // It may be claimed anew with any of these.
        for (int i = 0; i < 40; i++) {
            recv(FD, scratch(), 1, MSG_PEEK);
            nap();
        }
        T(recv(FD, scratch(), 3000, MSG_WAITALL));
        say(e, "%ld", check(scratch(), 3000, 1000, 1));
        expect(e, FD, 8000, 2);
    }
    goes_on(e);
}

// A child goes on with a connection of which its parent had two descriptors, and closes it with
// something unread.
static void child_of_two(struct end *e)
{
    int may_close[2] = {-1, -1};
    struct kid kid = {-1, -1};
    AT(C) {
        int copy = MUST(dup(FD));
        MUST(pipe2(may_close, O_CLOEXEC));
        kid = spawn(e);
        if (kid.pid == 0) {
            char c;
            close(may_close[1]);
            T(read(may_close[0], &c, 1));
            close(copy);
            close(FD);
            _exit(0);
        }
        close(copy);
        close(FD), FD = -1;
    }
    AT(S) {
        produce(e, FD, 1000, 1);
        await_acknowledged(e);
    }
    AT(C) {
        close(may_close[0]);
        close(may_close[1]);
        reap(e, &kid);
    }
    AT(S) T(send(FD, "x", 1, MSG_NOSIGNAL));
}

// A set and the connection in it are a child's from now on.
static void child_has_set(struct end *e)
{
    AT(S) close(FD), FD = -1;
    AT(C) {
        struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u32 = 5}};
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), alone[2];
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        MUST(pipe2(alone, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            char c;
            close(alone[1]);
            T(read(alone[0], &c, 1));
            event.events = 0;
            T(epoll_wait(set, &event, 1, PATIENCE_MS));
            say(e, "%s", events(event.events));
            _exit(0);
        }
        close(FD), FD = -1;
        close(set);
        close(alone[0]);
        close(alone[1]);
        reap(e, &kid);
    }
}

// ---- Sets ------------------------------------------------------------------

// A registration that asks for no event is told of a reset, once.
static void once_for_nothing(struct end *e)
{
    struct epoll_event event = {EPOLLONESHOT, {.u32 = 5}}, got = {0};
    int set = -1;
    AT(C) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        T(epoll_wait(set, &got, 1, 0));
        produce(e, FD, 100, 1);
        await_acknowledged(e);
    }
    AT(S) close(FD), FD = -1;
    AT(C) {
        struct pollfd p = {set, POLLIN, 0};
        T(epoll_wait(set, &got, 1, PATIENCE_MS));
        say(e, "%s", events(got.events));
        T(epoll_wait(set, &got, 1, 0));
        T(poll(&p, 1, 0));
        close(set);
    }
}

PLAIN_MAIN(CASE(reset_behind_program, COLD), CASE(reset_behind_stream, COLD), CASE(reset_behind_splice, COLD), CASE(reset_behind_both, COLD),
           CASE(splice_goes_on, COLD), CASE(reset_behind_pass, COLD), CASE(nothing_in_time, COLD),
           CASE(counts_both, COLD), CASE(passed_to_itself, COLD), CASE(child_of_two, SPLIT | COLD),
           CASE(child_has_set, SPLIT | COLD), CASE(once_for_nothing, COLD))
