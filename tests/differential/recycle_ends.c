// A side shuts down its half, or both, before it closes: the other one finds the end as ever, whatever is used again.
// path: free
// recycles: some
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

enum { SOME = 24 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

// The client asks, and the server answers.
static int talk(struct end *e)
{
    char c = 0;
    if (e->role == C) {
        put(FD, "?", 1);
        return get(FD, &c, 1) != 1 || c != '!';
    }
    int wrong = get(FD, &c, 1) != 1 || c != '?';
    put(FD, "!", 1);
    return wrong;
}

static void join_anew(struct end *e)
{
    if (e->role == C)
        dial(e);
    else
        answer(e);
}

// What `poll` says within a moment, once it says `events`.
static int polled(struct end *e, int events)
{
    struct pollfd one = {FD, events | POLLRDHUP | POLLIN, 0};
    for (long long end = now_ms() + PATIENCE_MS; now_ms() < end && (one.revents & events) != events; nap())
        MUST(poll(&one, 1, 0));
    return one.revents;
}

// The end of the peer's stream, in one of several ways.
static int finds_end(struct end *e, int way)
{
    char c;
    int wrong = 0;
    if (way == 1)
        wrong += differs(e, "poll", polled(e, POLLIN | POLLRDHUP) & ~POLLHUP, POLLIN | POLLRDHUP);
    if (way == 2) {
        struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u64 = 1}}, told[2];
        int set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        wrong += differs(e, "epoll_wait", MUST(epoll_wait(set, told, 2, PATIENCE_MS)), 1);
        wrong += differs(e, "events", told[0].events & ~EPOLLHUP, EPOLLIN | EPOLLRDHUP);
        MUST(close(set));
    }
    return wrong + differs(e, "recv at the end", recv(FD, &c, 1, 0), 0);
}

static void shut_and_closed(struct end *e, int how, int waits)
{
    int wrong = 0;
    char c;
    for (int i = 0; i < SOME; i++) {
        enum role first = i % 2 ? C : S;
        join_anew(e);
        wrong += talk(e);
        if (e->role == first) {
            MUST(shutdown(FD, how));
            // The peer's end, or none.
            if (waits)
                wrong += differs(e, "recv behind it", recv(FD, &c, 1, 0), 0);
        } else {
            wrong += finds_end(e, i / 2 % 3);
        }
        MUST(close(FD));
        FD = -1;
    }
    say(e, "wrong: %d", wrong);
}

static void half(struct end *e) { shut_and_closed(e, SHUT_WR, 0); }
static void half_and_awaited(struct end *e) { shut_and_closed(e, SHUT_WR, 1); }
static void both(struct end *e) { shut_and_closed(e, SHUT_RDWR, 0); }
static void both_and_received(struct end *e) { shut_and_closed(e, SHUT_RDWR, 1); }

// What can still be done with a half: the peer sends on it, and this side does not.
static void half_in_use(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < SOME; i++) {
        enum role first = i % 2 ? C : S;
        char buf[8];
        join_anew(e);
        wrong += talk(e);
        if (e->role == first) {
            MUST(shutdown(FD, SHUT_WR));
            if (i % 3 == 0)
                wrong += differs(e, "send", send(FD, "x", 1, MSG_NOSIGNAL), -1) + differs(e, "errno", errno, EPIPE);
            wrong += differs(e, "recv", get(FD, buf, 6), 6) + (memcmp(buf, "behind", 6) != 0);
            wrong += differs(e, "poll", polled(e, POLLIN | POLLRDHUP | POLLHUP), POLLIN | POLLRDHUP | POLLHUP);
            wrong += differs(e, "recv at the end", recv(FD, buf, 1, 0), 0);
        } else {
            wrong += finds_end(e, i % 2);
            put(FD, "behind", 6);
        }
        MUST(close(FD));
        FD = -1;
    }
    say(e, "wrong: %d", wrong);
}

// The half that is shut down second ends the connection, which a set and a poll tell; also where an option has the kernel shut it down.
static void half_hangs_up(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        enum role first = i % 2 ? C : S;
        join_anew(e);
        wrong += talk(e);
        if (e->role == first)
            MUST(shutdown(FD, SHUT_WR));
        meet(e);
        if (e->role != first) {
            struct epoll_event event = {EPOLLRDHUP | EPOLLET, {.u64 = 1}}, told = {0};
            int set = MUST(epoll_create1(EPOLL_CLOEXEC));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
            wrong += differs(e, "an end", MUST(epoll_wait(set, &told, 1, PATIENCE_MS)), 1);
            if (i / 2 % 2)
                MUST(setsockopt(FD, SOL_SOCKET, SO_PRIORITY, &(int){3}, sizeof(int)));
            MUST(shutdown(FD, SHUT_WR));
            wrong += differs(e, "both ends", MUST(epoll_wait(set, &told, 1, PATIENCE_MS)), 1);
            wrong += differs(e, "events", told.events, EPOLLRDHUP | EPOLLHUP);
            wrong += differs(e, "poll", polled(e, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP | POLLHUP);
            MUST(close(set));
        }
        meet(e);
        MUST(close(FD));
        FD = -1;
    }
    say(e, "wrong: %d", wrong);
}

// Another program gets it then, at either end.
static void half_for_a_program(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        join_anew(e);
        wrong += talk(e);
        enum role first = i % 2 ? S : C, reader = i / 2 % 2 ? S : C;
        int shuts = e->role == first;
        if (shuts) {
            // Unread when the other end hands its own on.
            if (first != reader)
                wrong += differs(e, "send", send(FD, "hello", 5, 0), 5);
            MUST(shutdown(FD, SHUT_WR));
        }
        meet(e);
        if (e->role == reader) {
            pid_t child;
            char *const words[] = {"sh", "-c", first == reader ? "test $(wc -c) = 0" : "test $(wc -c) = 5", NULL};
            posix_spawn_file_actions_t actions;
            if (!shuts)
                MUST(shutdown(FD, SHUT_WR));
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, FD, 0);
            wrong += differs(e, "posix_spawn", posix_spawnp(&child, "sh", &actions, NULL, words, environ), 0);
            posix_spawn_file_actions_destroy(&actions);
            int status = -1;
            go(e);
            MUST(waitpid(child, &status, 0));
            wrong += differs(e, "status", status, 0);
            MUST(close(FD));
        } else {
            await_go(e);
            MUST(close(FD));
        }
        FD = -1;
    }
    say(e, "wrong: %d", wrong);
}

// A child has it, too, when its half is shut down already.
static void half_of_a_child(struct end *e)
{
    int wrong = 0;
    char c;
    for (int i = 0; i < 8; i++) {
        join_anew(e);
        wrong += talk(e);
        if (e->role == (i % 2 ? C : S)) {
            MUST(shutdown(FD, SHUT_WR));
            pid_t child = MUST(fork());
            if (child == 0)
                _exit(recv(FD, &c, 1, 0) != 0);
            int status = -1;
            MUST(waitpid(child, &status, 0));
            wrong += differs(e, "status", status, 0);
        } else {
            wrong += finds_end(e, i / 2 % 2);
        }
        MUST(close(FD));
        FD = -1;
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(half, BARE | TWO), CASE(half_and_awaited, BARE | TWO), CASE(both, BARE | TWO), CASE(both_and_received, BARE | TWO),
          CASE(half_in_use, BARE | TWO), CASE(half_hangs_up, BARE | TWO),
          CASE(half_for_a_program, BARE | SPLIT), CASE(half_of_a_child, BARE | SPLIT))
