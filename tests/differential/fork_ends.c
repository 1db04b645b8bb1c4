// What a process that has had a child sends last, and how it ends then: what its peer is told of that, and what
// a program gets that the peer runs.
// path: shunted
// needs: lending
// timeout: 60
#include "diff.h"
#include "plain.h"

static void has_a_child(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
}

// What is sent to a peer that has closed resets the connection: all ways to wait say so, and the last bytes are there.
static void reset_is_told(struct end *e)
{
    enum { LAST = 6636, ANSWER = 19204 };
    AT(C) {
        has_a_child();
        produce(e, FD, LAST, 1);
        T(close(FD));
        FD = -1;
    }
    AT(S) {
        struct timeval now = {0, 0};
        struct epoll_event event = {EPOLLIN, {.u32 = 7}};
        int set = MUST(epoll_create1(EPOLL_CLOEXEC));
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(FD, &readable);
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        await_events(e, FD, POLLRDHUP);
        produce(e, FD, ANSWER, 2);
        await_over(e);
        T(select(FD + 1, &readable, NULL, NULL, &now));
        say(e, "poll says %s", events(await_events(e, FD, POLLIN)));
        if (T(epoll_wait(set, &event, 1, 0)) == 1)
            say(e, "the set says %s", events(event.events));
        expect(e, FD, LAST, 1);
        T(recv(FD, scratch(), 1, 0));
        T(recv(FD, scratch(), 1, 0));
        close(set);
    }
}

enum { TURNS = 100, LAST = 1000 };

static void converse(struct end *e, int fd)
{
    char c = 'x';
    for (int i = 0; i < TURNS; i++) {
        if (e->role == C)
            put(fd, &c, 1);
        get(fd, &c, 1);
        if (e->role == S)
            put(fd, &c, 1);
    }
}

static int connected(struct end *e)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    converse(e, fd);
    return fd;
}

static void accepted(struct end *e)
{
    FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    converse(e, FD);
}

// A program gets all that a peer has sent that is gone.
static void last_words(struct end *e, void (*ends)(int fd))
{
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = connected(e);
            has_a_child();
            produce(e, fd, LAST, 1);
            ends(fd);
            _exit(0);
        }
        reap(e, &kid);
        go(e);
    } else {
        accepted(e);
        await_go(e);
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, LAST, 1);
        tell_it(e, &p, END, 0, 0);
        plain_end(e, &p);
    }
}

static void leaves_it_to_exit(int fd) { (void)fd; }
static void closes(int fd) { close(fd); }
static void shuts_down(int fd) { shutdown(fd, SHUT_WR); }
static void last_words_before_exit(struct end *e) { last_words(e, leaves_it_to_exit); }
static void last_words_before_close(struct end *e) { last_words(e, closes); }
static void last_words_before_shutdown(struct end *e) { last_words(e, shuts_down); }

// Who has connected is gone; its child has sent, and is in no call when the peer runs a program.
static void daemonised(struct end *e)
{
    if (e->role == C) {
        int leash[2];
        MUST(pipe2(leash, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = connected(e);
            if (MUST(fork()))
                _exit(0);
            // Its parent's parent reads what is said until nobody can say more.
            produce(e, fd, LAST, 1);
            close(e->out->fd);
            close(leash[1]);
            get(leash[0], (char[1]){0}, 1);
            _exit(0);
        }
        reap(e, &kid);
        go(e);
        await_go(e);
        close(leash[0]), close(leash[1]);
    } else {
        accepted(e);
        await_go(e);
        long long start = now_ms();
        struct plain p = PLAIN(FD);
        tell_it(e, &p, RECEIVE, LAST, 1);
        say(e, "%s", now_ms() - start < 2500 ? "soon" : "late"); // Three seconds is what Shunt waits in vain.
        plain_end(e, &p);
        go(e);
    }
}

PLAIN_MAIN(CASE(reset_is_told, COLD), CASE(last_words_before_exit, SPLIT | BARE), CASE(last_words_before_close, SPLIT | BARE),
           CASE(last_words_before_shutdown, SPLIT | BARE), CASE(daemonised, SPLIT | BARE))
