// Many connections: one after another, and all at once. Those that last are served from shared
// memory, and each brings its own bytes.
// path: shunted 25%
// timeout: 120
#include "diff.h"
#include <sys/resource.h>

enum { BURST = 2000, CROWD = 1000, TURNS = 2000, SIZE = 64 };

// In step, so that none waits for room among those that are not accepted.
static int join_one(struct end *e)
{
    int fd;
    if (e->role == S) {
        fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    } else {
        fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, e->fam, e->port));
    }
    meet(e);
    return fd;
}

static int ping(struct end *e, int fd, int turns, unsigned seed)
{
    unsigned char buf[SIZE];
    int good = 0;
    for (int i = 0; i < turns; i++) {
        if (e->role == C) {
            fill(buf, SIZE, i, seed);
            put(fd, buf, SIZE);
        }
        good += get(fd, buf, SIZE) == SIZE && check(buf, SIZE, i, seed + e->role) < 0;
        if (e->role == S) {
            fill(buf, SIZE, i, seed + 1);
            put(fd, buf, SIZE);
        }
    }
    return good;
}

// A burst of connections that nobody uses: neither the one from before nor those from after suffer.
static void short_ones(struct end *e)
{
    say(e, "%d good before", ping(e, FD, TURNS, 1));
    for (int i = 0; i < BURST; i++)
        close(join_one(e));
    for (int i = 0; i < 4; i++) {
        int fd = join_one(e);
        // The first may end before shuntd has heard all that the burst has left.
        say(e, "%d good after", ping(e, fd, i < 3 ? TURNS : 10 * TURNS, i));
        close(fd);
    }
    say(e, "%d good on the old one", ping(e, FD, TURNS, 5));
}

// More than shuntd hears of at once. In any order each has its own bytes.
static void crowd(struct end *e)
{
    static int fds[2][CROWD];
    int *fd = fds[e->role], good = 0;
    struct rlimit most;
    MUST(getrlimit(RLIMIT_NOFILE, &most));
    most.rlim_cur = most.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < CROWD; i++)
        fd[i] = join_one(e);
    for (int i = 0; i < CROWD; i++)
        good += ping(e, fd[i], 4, i);
    say(e, "%d good one after another", good);
    good = 0;
    for (unsigned i = 0, at = 1; i < CROWD; i++, at = at * 1103515245 + 12345)
        good += ping(e, fd[at / 65536 % CROWD], 4, i);
    say(e, "%d good here and there", good);
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
}

DIFF_MAIN(CASE(short_ones, TWO | BUSY), CASE(crowd, TWO | BUSY))
