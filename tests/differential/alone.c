// A process of one thread sleeps in poll or select on a connection that is not upgraded yet: while a child of its own uses that,
// by fork or on its parent's memory; and a child that borrows its parent's memory sleeps so itself.
// path: shunted
#include "diff.h"

enum { TURNS = 400 };
enum how { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, HOWS };
static const char *const names[] = {"poll", "ppoll", "select", "pselect"};

// Until there is something to read.
static int sleeps(int fd, enum how how)
{
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec some = {PATIENCE_MS / 1000, 0};
    struct timeval same = {PATIENCE_MS / 1000, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    switch (how) {
    case BY_POLL: return poll(&p, 1, PATIENCE_MS);
    case BY_PPOLL: return ppoll(&p, 1, &some, NULL);
    case BY_SELECT: return select(fd + 1, &set, NULL, NULL, &same);
    default: return pselect(fd + 1, &set, NULL, NULL, &some, NULL);
    }
}

// The child sends while its parent sleeps, often enough for an upgrade; its peer sends after all of that.
static int sends(void *of)
{
    struct end *e = of;
    await_sleep(e, e->pid, e->pid);
    for (int i = 0; i < TURNS; i++)
        send(FD, "c", 1, MSG_NOSIGNAL);
    _exit(0);
}

static pid_t by_fork(struct end *e)
{
    pid_t pid = MUST(fork());
    if (pid == 0)
        sends(e);
    return pid;
}

// A process of its own, with descriptors of its own, on this memory.
static pid_t on_this_memory(struct end *e)
{
    static char stack[1 << 18] __attribute__((aligned(16)));
    return MUST(clone(sends, stack + sizeof stack, CLONE_VM | SIGCHLD, e));
}

static void beside(struct end *e, pid_t (*child)(struct end *), enum how how)
{
    char c;
    int heard = 0;
    if (e->role == S) {
        int status = 0;
        pid_t pid = child(e);
        say(e, "%s tells of %d", names[how], sleeps(FD, how));
        MUST(waitpid(pid, &status, 0));
        say(e, "child ended with %x", status);
        T(recv(FD, &c, 1, MSG_DONTWAIT));
    } else {
        for (int i = 0; i < TURNS; i++)
            heard += get(FD, &c, 1);
        say(e, "heard %d", heard);
        T(send(FD, "p", 1, 0));
    }
}
static void child_has_it(struct end *e) { beside(e, by_fork, BY_POLL); }
static void child_has_it_too(struct end *e) { beside(e, by_fork, BY_PSELECT); }
static void beside_poll(struct end *e) { beside(e, on_this_memory, BY_POLL); }
static void beside_ppoll(struct end *e) { beside(e, on_this_memory, BY_PPOLL); }
static void beside_select(struct end *e) { beside(e, on_this_memory, BY_SELECT); }
static void beside_pselect(struct end *e) { beside(e, on_this_memory, BY_PSELECT); }

// The child sleeps, on the memory of its parent, which waits for its end.
static void of_vfork(struct end *e)
{
    for (enum how how = 0; how < HOWS; how++) {
        if (e->role == S) {
            int status = 0;
            pid_t pid = vfork();
            if (pid == 0) {
                pid_t self = getpid();
                give(e, &self, sizeof self);
                _exit(sleeps(FD, how));
            }
            MUST(waitpid(pid, &status, 0));
            say(e, "%s tells of %d", names[how], WEXITSTATUS(status));
            T(recv(FD, (char[1]){0}, 1, MSG_DONTWAIT));
        } else {
            pid_t child;
            take(e, &child, sizeof child);
            await_sleep(e, child, child);
            T(send(FD, "p", 1, 0));
        }
    }
}

DIFF_MAIN(CASE(child_has_it, SPLIT | COLD), CASE(child_has_it_too, SPLIT | COLD), CASE(beside_poll, SPLIT | COLD),
          CASE(beside_ppoll, SPLIT | COLD), CASE(beside_select, SPLIT | COLD), CASE(beside_pselect, SPLIT | COLD),
          CASE(of_vfork, SPLIT | COLD))
