// A peer that is killed in the middle of a copy, at memory that the kernel leaves to the program to fill: nobody waits for it. (What
// a call says then is told by other programs: see close.c.)
// path: shunted 20%
// timeout: 120
#include "diff.h"
#include "pass.h"
#include "stuck.h"

static const char *const deeds[] = {"close", "shutdown", "shutdown both", "receive", "send", "urgent", "option", "poll", "poll for room",
                                    "set", "pass", "stream", "unread bytes", "system", "fork and exec"};
enum { CLOSE, SHUTDOWN, SHUTDOWN_BOTH, RECEIVE, SEND, URGENT, OPTION, POLL, POLL_ROOM, SET, PASS, STREAM, UNREAD_BYTES, SYSTEM, EXEC, DEEDS };

static void pass_on(struct end *e, int fd)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    pass(pair[0], fd);
    close(pair[0]);
    close(pair[1]);
}

static void wait_by_set(struct end *e, int fd)
{
    struct epoll_event event = {EPOLLIN | EPOLLOUT, {.u32 = 7}};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    epoll_wait(set, &event, 1, 0);
    close(set);
}

static void act(struct end *e, int deed, int fd)
{
    static char buf[100000];
    struct pollfd both = {fd, POLLIN | POLLOUT, 0}, room = {fd, POLLOUT, 0};
    int n = 1;
    switch (deed) {
    case CLOSE: close(fd); break;
    case SHUTDOWN: shutdown(fd, SHUT_WR); break;
    case SHUTDOWN_BOTH: shutdown(fd, SHUT_RDWR); break;
    case RECEIVE: recv(fd, buf, sizeof buf, 0); break;
    case SEND:
        for (int i = 0; i < 100; i++)
            send(fd, buf, sizeof buf, MSG_NOSIGNAL);
        break;
    case URGENT: send(fd, "u", 1, MSG_OOB | MSG_NOSIGNAL); break;
    case OPTION: setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &n, sizeof n); break;
    case POLL: poll(&both, 1, 0); break;
    case POLL_ROOM: poll(&room, 1, 0); break;
    case SET: wait_by_set(e, fd); break;
    case PASS: pass_on(e, fd); break;
    case STREAM: fclose(fdopen(MUST(dup(fd)), "r+")); break;
    case UNREAD_BYTES: ioctl(fd, FIONREAD, &n); break;
    case SYSTEM: MUST(system("true")); break;
    case EXEC: runs(); break;
    }
}

static void meets_dead(struct end *e, int deed, pid_t stuck, int receives)
{
    int fds[WAYS];
    pid_t tids[WAYS];
    accept_stuck(e, stuck, receives, fds, tids);
    go(e);
    await_go(e); // It is dead.
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

static void killed_in(struct end *e, int receives)
{
    for (int deed = 0; deed < DEEDS; deed++) {
        struct kid kid = {0};
        if (e->role == C) {
            kid = spawn(e);
            if (kid.pid == 0)
                stuck_peer(e, receives);
        }
        share(e, C, &kid.pid, sizeof kid.pid);
        if (e->role == S) {
            meets_dead(e, deed, kid.pid, receives);
        } else {
            await_go(e);
            kill(kid.pid, SIGKILL);
            reap(e, &kid);
            go(e);
        }
        meet(e);
    }
}
static void killed_in_copy_out(struct end *e) { killed_in(e, 1); }
static void killed_in_copy_in(struct end *e) { killed_in(e, 0); }

DIFF_MAIN(CASE(killed_in_copy_out, SPLIT | BARE | FAULTS), CASE(killed_in_copy_in, SPLIT | BARE | FAULTS))
