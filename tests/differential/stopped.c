// A peer that is stopped in the middle of a copy: at memory that the kernel leaves to the program to
// fill, which it never does. Nobody who makes a call meanwhile waits for it. (Natively the kernel's
// copy fails there, and the peer is stopped behind its call.)
// path: shunted 20%
// timeout: 60
#include "stuck.h"

static const char *const deeds[] = {"close", "shutdown", "receive", "send", "urgent", "option", "poll", "set", "system", "fork and exec"};
enum { CLOSE, SHUTDOWN, RECEIVE, SEND, URGENT, OPTION, POLL, SET, SYSTEM, EXEC, DEEDS };

static void act(struct end *e, int deed, int fd)
{
    static char buf[100000];
    struct epoll_event event = {EPOLLIN | EPOLLOUT, {.u32 = 7}};
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    int on = 1, set;
    switch (deed) {
    case CLOSE: T(close(fd)); break;
    case SHUTDOWN: T(shutdown(fd, SHUT_WR)); break;
    case RECEIVE: T(recv(fd, buf, sizeof buf, 0)); break;
    case SEND:
        for (int i = 0; i < 100; i++)
            send(fd, buf, sizeof buf, MSG_NOSIGNAL);
        break;
    case URGENT: T(send(fd, "u", 1, MSG_OOB)); break;
    case OPTION: T(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)); break;
    case POLL: T(poll(&p, 1, 0)); break;
    case SET:
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        T(epoll_wait(set, &event, 1, 0));
        close(set);
        break;
    case SYSTEM: T(system("true")); break;
    case EXEC: runs(); break;
    }
}

static void meets_stuck(struct end *e, int deed, pid_t stuck, int receives)
{
    int fds[WAYS];
    pid_t tids[WAYS];
    accept_stuck(e, stuck, receives, fds, tids);
    kill(stuck, SIGSTOP);
    for (int i = 0; i < WAYS; i++)
        await_stop(e, stuck, tids[i]);
    // A program that is run gets all connections, which must be on TCP for it.
    for (int i = 0; i < WAYS && deed >= SYSTEM; i++)
        MUST(fcntl(fds[i], F_SETFD, 0));
    long long start = now_ms();
    for (int i = 0; i < (deed >= SYSTEM ? 1 : WAYS); i++)
        act(e, deed, fds[i]);
    say(e, "%s: %s", deeds[deed], now_ms() - start < LATE ? "soon" : "late");
    for (int i = 0; i < WAYS; i++)
        if (deed != CLOSE)
            close(fds[i]);
}

static void stopped_in(struct end *e, int receives)
{
    for (int deed = 0; deed < DEEDS; deed++) {
        struct kid kid = {0};
        if (e->role == C) {
            kid = spawn(e);
            if (kid.pid == 0)
                stuck_peer(e, receives);
        }
        share(e, C, &kid.pid, sizeof kid.pid);
        if (e->role == S)
            meets_stuck(e, deed, kid.pid, receives);
        meet(e);
        if (e->role == C) {
            kill(kid.pid, SIGKILL);
            reap(e, &kid);
        }
    }
}
static void stopped_in_receive(struct end *e) { stopped_in(e, 1); }
static void stopped_in_send(struct end *e) { stopped_in(e, 0); }

DIFF_MAIN(CASE(stopped_in_receive, SPLIT | BARE | FAULTS), CASE(stopped_in_send, SPLIT | BARE | FAULTS))
