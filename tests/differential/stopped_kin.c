// Relatives that share a connection since a fork, one of which is stopped, perhaps in the middle of a call.
// path: shunted
// timeout: 60
#include "diff.h"
#include <sys/mount.h>
#include <sys/time.h>

enum { ROUNDS = 60, MUCH = 1 << 20 };

// It looks at much, again and again.
static void looks(int fd)
{
    char *much = malloc(MUCH);
    for (;;)
        recv(fd, much, MUCH, MSG_PEEK | MSG_DONTWAIT);
}

static volatile sig_atomic_t alarms;
static void rings(int sig)
{
    (void)sig;
    alarms++;
}

// A call that does not wait, one that waits for a given time, and one that a signal interrupts come back. What they find
// may depend on where the other one was stopped.
static void come_back(struct end *e)
{
    int back = 0;
    char buf[4];
    struct kid kid = spawn(e);
    if (kid.pid == 0)
        looks(FD);
    struct timeval little = {0, 10000}, none = {0, 0};
    struct itimerval soon = {.it_value = {0, 10000}}, never = {0};
    struct sigaction sa = {.sa_handler = rings};
    sigaction(SIGALRM, &sa, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        nap();
        kill(kid.pid, SIGSTOP);
        MUST(waitpid(kid.pid, NULL, WUNTRACED));
        back += recv(FD, buf, 4, MSG_PEEK | MSG_DONTWAIT) == 4 || errno == EAGAIN;
        MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little));
        back += recv(FD, buf, 4, MSG_PEEK) == 4 || errno == EAGAIN;
        MUST(setsockopt(FD, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
        setitimer(ITIMER_REAL, &soon, NULL);
        back += recv(FD, buf, 4, MSG_PEEK) == 4 || errno == EINTR;
        setitimer(ITIMER_REAL, &never, NULL);
        kill(kid.pid, SIGCONT);
    }
    say(e, "%d came back", back);
    kill(kid.pid, SIGKILL);
    MUST(waitpid(kid.pid, NULL, 0));
    expect(e, FD, MUCH, 1);
}

static void others_come_back(struct end *e)
{
    if (e->role == C) {
        produce(e, FD, MUCH, 1);
        return;
    }
    await_bytes(e, FD, 4);
    come_back(e);
}

// Where nobody sees whether a process is stopped: /proc is hidden, if that is allowed.
static void others_come_back_unseen(struct end *e)
{
    if (e->role == C) {
        produce(e, FD, MUCH, 1);
        return;
    }
    await_bytes(e, FD, 4);
    struct kid unseeing = spawn(e);
    if (unseeing.pid == 0) {
        if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
            mount("none", "/proc", "tmpfs", 0, NULL);
        come_back(e);
        _exit(0);
    }
    reap(e, &unseeing);
}

DIFF_MAIN(CASE(others_come_back, SPLIT), CASE(others_come_back_unseen, SPLIT))
