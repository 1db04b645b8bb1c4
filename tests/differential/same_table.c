// A process and its child with one table of descriptors (`clone(2)`, CLONE_FILES): what one of them closes or opens, the
// other one has closed or opened, too. Each case has such a pair as a child of the server's, which goes on without it.
#include "diff.h"
#include <linux/sched.h>

enum { TURNS = 200 };

struct pair {
    struct end *e;
    int (*child)(struct pair *p); // returns how it exits
    int pipe[2];
    int other; // a connection that one of the two makes
};

// Both ways in small pieces, enough for the default mode, too; how many are right.
static int converse(int fd, int first)
{
    char buf[64];
    int good = 0;
    for (int i = 0; i < TURNS; i++) {
        if (first)
            fill(buf, 64, i, 1), put(fd, buf, 64);
        good += get(fd, buf, 64) == 64 && check(buf, 64, i, first ? 2 : 1) < 0;
        if (!first)
            fill(buf, 64, i, 2), put(fd, buf, 64);
    }
    return good;
}

static int child_main(void *arg)
{
    struct pair *p = arg;
    _exit(p->child(p));
}

// The ways to make such a child; `stack` is the end of one.
static pid_t by_clone(struct pair *p, char *stack)
{
    return clone(child_main, stack, CLONE_FILES | SIGCHLD, p);
}
static pid_t by_clone_with_memory(struct pair *p, char *stack)
{
    return clone(child_main, stack, CLONE_FILES | CLONE_VM | SIGCHLD, p);
}
static pid_t by_number(struct pair *p, char *stack)
{
    (void)stack;
    pid_t pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        child_main(p);
    return pid;
}
static pid_t by_number_3(struct pair *p, char *stack)
{
    (void)stack;
    struct clone_args how = {.flags = CLONE_FILES, .exit_signal = SIGCHLD};
    pid_t pid = syscall(SYS_clone3, &how, sizeof how);
    if (pid == 0)
        child_main(p);
    return pid;
}

typedef pid_t way(struct pair *p, char *stack);

// The child of a pair does something and ends.
static void with_child(struct pair *p, way *make, int (*child)(struct pair *p))
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    struct end *e = p->e;
    int status = -1;
    p->child = child;
    MUST(waitpid(MUST(make(p, stack + sizeof stack)), &status, 0));
    say(e, "its child ended with %x", status);
}

// The pair accepts a connection and converses on it, and then does what the case is about; the client looks on.
static void paired(struct end *e, void (*pair)(struct pair *p), void (*client)(struct end *e))
{
    if (e->role == C) {
        dial(e);
        say(e, "%d good", converse(FD, 1));
        client(e);
        close(FD), FD = -1;
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        struct pair p = {.e = e, .other = -1};
        answer(e);
        say(e, "%d good", converse(FD, 0));
        MUST(pipe2(p.pipe, O_CLOEXEC));
        pair(&p);
        _exit(5);
    }
    reap(e, &kid);
}

static void sees_the_end(struct end *e)
{
    T(recv(FD, (char[8]){0}, 8, 0));
}

// One closes it: it is closed for both, and the peer is told.
static int closes(struct pair *p)
{
    return close(p->e->fd);
}
static void after_close(struct pair *p, way *make)
{
    struct end *e = p->e;
    with_child(p, make, closes);
    T(send(FD, "abc", 3, MSG_NOSIGNAL));
    T(close(FD));
}
static void clone_closes(struct pair *p) { after_close(p, by_clone); }
static void clone_with_memory_closes(struct pair *p) { after_close(p, by_clone_with_memory); }
static void numbered_closes(struct pair *p) { after_close(p, by_number); }
static void numbered_3_closes(struct pair *p) { after_close(p, by_number_3); }
static void child_closes(struct end *e) { paired(e, clone_closes, sees_the_end); }
static void child_with_memory_closes(struct end *e) { paired(e, clone_with_memory_closes, sees_the_end); }
static void numbered_child_closes(struct end *e) { paired(e, numbered_closes, sees_the_end); }
static void numbered_3_child_closes(struct end *e) { paired(e, numbered_3_closes, sees_the_end); }

// One puts a pipe in its place: the other one writes to that.
static int replaces(struct pair *p)
{
    return dup2(p->pipe[1], p->e->fd) != p->e->fd;
}
static void replaced(struct pair *p)
{
    struct end *e = p->e;
    char buf[8];
    with_child(p, by_number, replaces);
    T(write(FD, "abc", 3));
    T(read(p->pipe[0], buf, 8));
}
static void child_replaces(struct end *e) { paired(e, replaced, sees_the_end); }

// The same of a connection that is in a set, or was.
static void replaced_in_set(struct pair *p, int stays)
{
    struct end *e = p->e;
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = 9};
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    MUST(epoll_wait(ep, &ev, 1, 0));
    if (!stays)
        MUST(epoll_ctl(ep, EPOLL_CTL_DEL, FD, NULL));
    replaced(p);
}
static void replaced_as_member(struct pair *p) { replaced_in_set(p, 1); }
static void replaced_as_former_member(struct pair *p) { replaced_in_set(p, 0); }
static void child_replaces_in_set(struct end *e) { paired(e, replaced_as_member, sees_the_end); }
static void child_replaces_of_set(struct end *e) { paired(e, replaced_as_former_member, sees_the_end); }

// Both go on with it in turns, and a copy that one makes serves the other one.
static int converses(struct pair *p)
{
    return converse(p->e->fd, 0) != TURNS || dup2(p->e->fd, 700) != 700 || close(p->e->fd);
}
static void in_turns(struct pair *p)
{
    struct end *e = p->e;
    say(e, "%d good", converse(FD, 0));
    with_child(p, by_clone, converses);
    say(e, "%d good", converse(700, 0));
    T(close(700));
}
static void goes_on(struct end *e)
{
    for (int i = 0; i < 3; i++)
        say(e, "%d good", converse(FD, 1));
    sees_the_end(e);
}
static void both_converse(struct end *e) { paired(e, in_turns, goes_on); }

// One accepts another connection, which the other one uses first, too.
static int accepts(struct pair *p)
{
    int fd = accept(p->e->lfd, NULL, NULL);
    return dup2(fd, 700) != 700 || close(fd) || converse(700, 0) != TURNS;
}
static void shares_what_is_accepted(struct pair *p)
{
    struct end *e = p->e;
    with_child(p, by_number, accepts);
    say(e, "%d good", converse(700, 0));
    T(close(700));
    T(send(FD, "abc", 3, 0));
}
static void connects_again(struct end *e)
{
    int first = FD;
    dial(e);
    for (int i = 0; i < 2; i++)
        say(e, "%d good", converse(FD, 1));
    sees_the_end(e);
    close(FD), FD = first;
    sees_the_end(e);
}
static void child_accepts(struct end *e) { paired(e, shares_what_is_accepted, connects_again); }

// What the first one accepts later, its child closes.
static int closes_the_other(struct pair *p)
{
    char go;
    int fd = 700;
    if (read(p->pipe[0], &go, 1) != 1)
        return 1;
    int good = converse(fd, 0) == TURNS;
    return !good || close(fd);
}
static void accepts_for_its_child(struct pair *p)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    struct end *e = p->e;
    int status = -1;
    p->child = closes_the_other;
    pid_t pid = MUST(by_clone(p, stack + sizeof stack));
    int fd = MUST(accept(e->lfd, NULL, NULL));
    MUST(dup2(fd, 700));
    close(fd);
    say(e, "%d good", converse(700, 0));
    MUST(write(p->pipe[1], "x", 1));
    MUST(waitpid(pid, &status, 0));
    say(e, "its child ended with %x", status);
    T(send(700, "abc", 3, MSG_NOSIGNAL));
    T(send(FD, "abc", 3, 0));
}
static void child_closes_later(struct end *e) { paired(e, accepts_for_its_child, connects_again); }

// The same with a set of the first one's, and a thread's wait on it.
static void waits(struct pair *p)
{
    struct end *e = p->e;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = 9};
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    T(epoll_wait(ep, &ev, 1, 0));
    with_child(p, by_clone, closes);
    T(epoll_wait(ep, &ev, 1, 0));
    T(epoll_ctl(ep, EPOLL_CTL_DEL, FD, NULL));
    // At the same number.
    answer(e);
    ev = (struct epoll_event){.events = EPOLLIN, .data.u32 = 10};
    T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    T(epoll_wait(ep, &ev, 1, -1));
    say(e, "of %u", ev.data.u32);
    say(e, "%d good", converse(FD, 0));
}
static void connects_for_set(struct end *e)
{
    sees_the_end(e);
    close(FD);
    dial(e);
    say(e, "%d good", converse(FD, 1));
    sees_the_end(e);
}
static void child_closes_in_set(struct end *e) { paired(e, waits, connects_for_set); }

DIFF_MAIN(CASE(child_closes, SPLIT | BARE), CASE(child_with_memory_closes, SPLIT | BARE), CASE(numbered_child_closes, SPLIT | BARE),
          CASE(numbered_3_child_closes, SPLIT | BARE), CASE(child_replaces, SPLIT | BARE), CASE(child_replaces_in_set, SPLIT | BARE), CASE(child_replaces_of_set, SPLIT | BARE),
          CASE(both_converse, SPLIT | BARE), CASE(child_accepts, SPLIT | BARE), CASE(child_closes_later, SPLIT | BARE), CASE(child_closes_in_set, SPLIT | BARE))
