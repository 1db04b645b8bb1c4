// A server that accepts, forks and serves in the child, as many do: once the
// parent has closed its descriptor the connection is as good as any other.
// path: shunted 95%
// timeout: 60
#include "diff.h"

enum { TURNS = 2000 };

// Both ways in small pieces, contents checked.
static int converse(int fd, int first)
{
    unsigned char buf[64];
    int good = 0;
    for (int i = 0; i < TURNS; i++) {
        if (first)
            fill(buf, 64, i, 1), put(fd, buf, 64);
        if (get(fd, buf, 64) == 64 && check(buf, 64, i, first ? 2 : 1) < 0)
            good++;
        if (!first)
            fill(buf, 64, i, 2), put(fd, buf, 64);
    }
    return good;
}

static void serve(struct end *e, int fd, int parent_looks)
{
    if (e->role == C) {
        say(e, "%d good", converse(fd, 1));
        T(shutdown(fd, SHUT_WR));
        T(recv(fd, (char[1]){0}, 1, 0));
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        say(e, "%d good", converse(fd, 0));
        T(recv(fd, (char[1]){0}, 1, 0));
        _exit(5);
    }
    // The parent may be late, but it is not inside a call on the connection.
    if (parent_looks)
        T(fcntl(fd, F_GETFD));
    close(fd);
    reap(e, &kid);
}

static void child_serves(struct end *e)
{
    serve(e, FD, 0);
    if (e->role == S)
        FD = -1;
}

static void parent_is_late(struct end *e)
{
    serve(e, FD, 1);
    if (e->role == S)
        FD = -1;
}

// The child hands over to a grandchild before it serves.
static void grandchild_serves(struct end *e)
{
    if (e->role == C) {
        serve(e, FD, 0);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        serve(e, FD, 0);
        _exit(6);
    }
    close(FD), FD = -1;
    reap(e, &kid);
}

// The child exits without a close, and the parent goes on.
static void child_exits(struct end *e)
{
    if (e->role == C) {
        say(e, "%d good", converse(FD, 1));
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0)
        _exit(7);
    reap(e, &kid);
    say(e, "%d good", converse(FD, 0));
}

// Children that are killed while their parent still has their connections, more of them than a page has
// words to count by who shares them.
enum { KILLED = 1030 };

static void children_are_killed(struct end *e)
{
    close(FD), FD = -1;
    for (int i = 0; i < KILLED; i++) {
        if (e->role == C) {
            int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd, e->fam, e->port));
            get(fd, (char[1]){0}, 1);
            close(fd);
            continue;
        }
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        pid_t pid = MUST(fork());
        if (pid == 0)
            for (;;)
                pause();
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        close(fd);
    }
    if (e->role == C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
    } else {
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    }
    child_serves(e);
}

DIFF_MAIN(CASE(child_serves, SPLIT | ALL | ONLY_COLD), CASE(parent_is_late, SPLIT | ONLY_COLD),
          CASE(grandchild_serves, SPLIT | ONLY_COLD), CASE(child_exits, SPLIT | ONLY_COLD),
          CASE(children_are_killed, SPLIT | ONLY_COLD))
