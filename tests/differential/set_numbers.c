// The library has descriptors of its own for an epoll set. A program that takes their numbers, or closes them by system calls that
// libc does not see, finds its set as natively, and its own files at those numbers untouched.
// path: shunted 60%
#include "diff.h"
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { NUMBERS = 1024, ROUNDS = 5 };
// How a program waits: on the set, on one around it, by `poll`.
enum by { IN_SET, AROUND, BY_POLL };

// Answers when the peer sleeps; in the end its stream ends.
static void answers(struct end *e)
{
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), good = 0;
    pid_t pid;
    char c;
    take(e, &pid, sizeof pid);
    while (await_go(e), recv(fd, &c, 1, 0) == 1 && c != 'e') {
        await_sleep(e, pid, pid);
        good += send(fd, &c, 1, 0) == 1;
    }
    await_sleep(e, pid, pid);
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, &c, 1, 0));
    say(e, "%d good", good);
    close(fd);
}

// What the set tells within a second or more; 0: nothing. One that has nothing to tell after a wait from outside is waited for again,
// as programs do that share a set.
static unsigned told(int set, int outer, enum by by)
{
    struct epoll_event event = {0};
    struct pollfd p = {set, POLLIN, 0};
    for (int looks = 0; looks < 4; looks++) {
        if (by == AROUND && epoll_wait(outer, &event, 1, PATIENCE_MS) != 1)
            return 0;
        if (by == BY_POLL && poll(&p, 1, PATIENCE_MS) != 1)
            return 0;
        if (epoll_wait(set, &event, 1, by == IN_SET ? PATIENCE_MS : 0) == 1)
            return event.data.u64 == 7 ? event.events : 0;
    }
    return 0;
}

// Asks by `c`, and waits until the set tells of the answer.
static unsigned ask(struct end *e, int fd, int set, int outer, enum by by, char c)
{
    MUST(send(fd, &c, 1, 0));
    go(e);
    return told(set, outer, by);
}

// `ROUNDS` questions and answers. Returns how many went well.
static int talk(struct end *e, int fd, int set, int outer, enum by by)
{
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        char c = 0;
        good += ask(e, fd, set, outer, by, 'a' + i % 3) == EPOLLIN;
        good += recv(fd, &c, 1, 0) == 1 && c == 'a' + i % 3;
    }
    return good == 2 * ROUNDS;
}

// In a child: `from` is the first number that it takes; or it closes all but its own past libc, and takes them or not.
enum { CLOSES = -1, CLOSES_AND_TAKES = -2 };
static void loses(struct end *e, int from, enum by by)
{
    struct rlimit limit;
    bool is_taken[NUMBERS] = {0};
    int bad = 0, gone = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = NUMBERS;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    give(e, &e->pid, sizeof e->pid);
    for (int i = 0; i < 20; i++) {
        char c = 'a';
        MUST(send(fd, &c, 1, 0));
        go(e);
        bad += recv(fd, &c, 1, 0) != 1;
    }
    int set = MUST(epoll_create1(EPOLL_CLOEXEC)), outer = MUST(epoll_create1(EPOLL_CLOEXEC));
    int file = MUST(memfd_create("numbers", MFD_CLOEXEC));
    struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u64 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    event.events = EPOLLIN;
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
    say(e, "before %d", talk(e, fd, set, outer, by));
    for (int n = from < 0 ? 3 : from; n < NUMBERS; n++) {
        if (n == fd || n == set || n == outer || n == file || n == e->ctl || n == e->out->fd)
            continue;
        if (from < 0)
            past_libc(SYS_close, n, 0, 0, NULL, 0);
        else if (fcntl(n, F_GETFD) >= 0)
            continue;
        is_taken[n] = from != CLOSES;
        if (is_taken[n])
            bad += (from < 0 ? fcntl(file, F_DUPFD_CLOEXEC, n) : dup2(file, n)) != n;
    }
    say(e, "then %d", talk(e, fd, set, outer, by));
    say(e, "end %x", ask(e, fd, set, outer, by, 'e'));
    MUST(close(set));
    MUST(close(outer));
    for (int n = 0; n < NUMBERS; n++)
        gone += is_taken[n] && past_libc(SYS_fcntl, n, F_GETFD, 0, NULL, 0) < 0;
    struct stat status;
    MUST(fstat(file, &status));
    say(e, "bad %d, gone %d, written %ld, read %ld", bad, gone, (long)status.st_size, (long)lseek(file, 0, SEEK_CUR));
    _exit(0);
}

static void in_child(struct end *e, int from, enum by by)
{
    if (e->role == S) {
        answers(e);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0)
        loses(e, from, by);
    close(FD), FD = -1;
    reap(e, &kid);
}
static void all_taken(struct end *e) { in_child(e, 0, IN_SET); }
static void all_taken_around(struct end *e) { in_child(e, 0, AROUND); }
static void all_taken_by_poll(struct end *e) { in_child(e, 0, BY_POLL); }
static void high_ones_taken(struct end *e) { in_child(e, 64, IN_SET); }
static void high_ones_taken_around(struct end *e) { in_child(e, 64, AROUND); }
static void closed(struct end *e) { in_child(e, CLOSES, IN_SET); }
static void closed_around(struct end *e) { in_child(e, CLOSES, AROUND); }
static void closed_by_poll(struct end *e) { in_child(e, CLOSES, BY_POLL); }
static void closed_and_taken(struct end *e) { in_child(e, CLOSES_AND_TAKES, IN_SET); }
static void closed_and_taken_around(struct end *e) { in_child(e, CLOSES_AND_TAKES, AROUND); }
static void closed_and_taken_by_poll(struct end *e) { in_child(e, CLOSES_AND_TAKES, BY_POLL); }

DIFF_MAIN(CASE(all_taken, SPLIT), CASE(all_taken_around, SPLIT), CASE(all_taken_by_poll, SPLIT), CASE(high_ones_taken, SPLIT),
          CASE(high_ones_taken_around, SPLIT), CASE(closed, SPLIT), CASE(closed_around, SPLIT), CASE(closed_by_poll, SPLIT),
          CASE(closed_and_taken, SPLIT), CASE(closed_and_taken_around, SPLIT), CASE(closed_and_taken_by_poll, SPLIT))
