// A process becomes a program that does not get its connections (close-on-exec): for its peers they end as if it were killed, although
// it lives.
// path: shunted 20%
// timeout: 90
#include "diff.h"

static void look(struct end *e)
{
    struct pollfd p = {FD, POLLIN | POLLOUT | POLLRDHUP, 0};
    T(poll(&p, 1, 0));
    say(e, "sees %s", events(p.revents));
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

// The child becomes another program, which has nothing of the connection.
static void becomes_sleep(void)
{
    char *argv[] = {"sleep", "20", NULL};
    execv("/bin/sleep", argv);
    _exit(99);
}
static void end_kid(struct end *e, struct kid *kid)
{
    kill(kid->pid, SIGKILL);
    reap(e, kid);
}

static void exec_away(struct end *e, int unread, int full, int shut)
{
    char buf[16];
    size_t total = 0;
    if (e->role == C) {
        int ready[2], more[2];
        MUST(pipe2(ready, O_CLOEXEC));
        MUST(pipe2(more, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 20);
            if (unread)
                await_bytes(e, fd, 5);
            total = full ? stuff(e, fd, 6) : 0;
            put(fd, "last", full ? 0 : 4);
            if (shut)
                shutdown(fd, SHUT_WR);
            raw_write(ready[1], (char *)&total, sizeof total);
            (void)!read(more[0], buf, 1);
            becomes_sleep();
        }
        MUST(read(ready[0], &total, sizeof total));
        give(e, &total, sizeof total);
        await_go(e);
        raw_write(more[1], "x", 1);
        for (int i = 0; i < 2; i++)
            close(ready[i]), close(more[i]);
        go(e);
        await_go(e);
        end_kid(e, &kid);
        go(e);
    } else {
        answer_child(e, 20);
        if (unread)
            T(send(FD, "stale", 5, 0));
        take(e, &total, sizeof total);
        go(e);
        await_go(e);
        if (total)
            drain(e, FD, total, 6);
        if (unread)
            await_over(e);
        else
            await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
        look(e);
        T(send(FD, "x", 1, 0));
        T(recv(FD, buf, 1, MSG_DONTWAIT));
        go(e);
        await_go(e);
    }
}
static void exec_away_read(struct end *e) { exec_away(e, 0, 0, 0); }
static void exec_away_unread(struct end *e) { exec_away(e, 1, 0, 0); }
static void exec_away_full(struct end *e) { exec_away(e, 0, 1, 0); }
static void exec_away_shut_unread(struct end *e) { exec_away(e, 1, 0, 1); }

// Its peer waits for room as it becomes another program.
static void exec_away_under_sender(struct end *e)
{
    char buf[16];
    if (e->role == C) {
        int more[2];
        MUST(pipe2(more, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = child_asks(e, 20);
            (void)fd;
            (void)!read(more[0], buf, 1);
            becomes_sleep();
        }
        await_blocked(e);
        raw_write(more[1], "x", 1);
        close(more[0]), close(more[1]);
        await_go(e);
        end_kid(e, &kid);
        go(e);
    } else {
        answer_child(e, 20);
        stuff_for_good(e, FD, 5);
        struct timeval limit = {4, 0};
        MUST(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
        will_block(e);
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(recv(FD, buf, 16, 0));
        go(e);
        await_go(e);
    }
}

// The same, and it has itself sent more by TCP than its peer has read.
static void exec_away_behind(struct end *e, int by_poll)
{
    char buf[16], done;
    if (e->role == C) {
        int full[2], more[2];
        MUST(pipe2(full, O_CLOEXEC));
        MUST(pipe2(more, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            close(e->ctl);
            int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
            MUST(tcp_connect(fd, e->fam, e->port));
            memset(scratch(), 'x', SCRATCH);
            for (int calm = 0; calm < 5; nap())
                calm = send(fd, scratch(), SCRATCH, MSG_DONTWAIT) < 0 ? calm + 1 : 0;
            MUST(write(full[1], "f", 1));
            nonblocking(more[0], 1);
            for (;; nap()) {
                (void)!send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
                if (read(more[0], buf, 1) == 1)
                    becomes_sleep();
            }
        }
        MUST(read(full[0], &done, 1));
        go(e);
        await_blocked(e);
        raw_write(more[1], "x", 1);
        await_go(e);
        end_kid(e, &kid);
        close(full[0]), close(full[1]), close(more[0]), close(more[1]);
        go(e);
    } else {
        struct pollfd p;
        await_go(e);
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        p = (struct pollfd){FD, POLLOUT, 0};
        for (int i = 0; i < 60; i++, nap())
            get(FD, buf, 1);
        stuff_for_good(e, FD, 5);
        struct timeval limit = {4, 0};
        MUST(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
        will_block(e);
        if (by_poll) {
            T(poll(&p, 1, 4000));
            say(e, "%s", events(p.revents));
        }
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(send(FD, "x", 1, MSG_NOSIGNAL));
        T(recv(FD, buf, 16, 0));
        go(e);
        await_go(e);
    }
}
static void exec_away_behind_in_send(struct end *e) { exec_away_behind(e, 0); }
static void exec_away_behind_in_poll(struct end *e) { exec_away_behind(e, 1); }

// An exec that fails changes nothing: no close resets the connection later.
static void exec_fails(struct end *e)
{
    char buf[16], *many[] = {"true", NULL, NULL};
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        // Longer than one string may be (MAX_ARG_STRLEN).
        many[1] = malloc(200000);
        memset(many[1], 'x', 199999);
        many[1][199999] = 0;
        T(execv("/bin/true", many));
        free(many[1]);
        struct linger l = {7, 7};
        socklen_t n = sizeof l;
        T(getsockopt(FD, SOL_SOCKET, SO_LINGER, &l, &n));
        say(e, "lingers: %d %d", l.l_onoff, l.l_linger);
        T(recv(FD, buf, 16, 0));
        T(send(FD, "bye", 3, 0));
        T(close(FD)), FD = -1;
    }
    AT(C) {
        await_events(e, FD, POLLRDHUP);
        look(e);
        receive_all(e);
    }
}

DIFF_MAIN(CASE(exec_away_read, SPLIT | BARE), CASE(exec_away_unread, SPLIT | BARE), CASE(exec_away_full, SPLIT | BARE),
          CASE(exec_away_shut_unread, SPLIT | BARE), CASE(exec_away_under_sender, SPLIT | BARE | STEADY),
          CASE(exec_away_behind_in_send, SPLIT | BARE | STEADY), CASE(exec_away_behind_in_poll, SPLIT | BARE | STEADY),
          CASE(exec_fails, COLD))
