// A peer that is stopped in the middle of a copy: at memory that the kernel leaves to the program to
// fill, which it never does. Nobody who makes a call meanwhile waits for it. (Natively the kernel's
// copy fails there, and the peer is stopped behind its call.)
// path: shunted 20%
// timeout: 60
#include "diff.h"

// One second a connection is what a call once took; all of them together must take less than LATE.
enum { WAYS = 3, TURNS = 30, REGION = 1 << 20, UNREAD = 50000, LATE = 2000 };

struct stuck {
    struct end *e;
    int receives;
    char *memory;
};

// Tells who it is, until both ends are in shared memory, and gets stuck.
static void *gets_stuck(void *of)
{
    struct stuck *s = of;
    struct end *e = s->e;
    pid_t tid = gettid();
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    for (int i = 0; i < TURNS; i++) {
        put(fd, &tid, sizeof tid);
        get(fd, &tid, sizeof tid);
    }
    if (s->receives)
        recv(fd, s->memory, REGION, 0);
    else
        send(fd, s->memory, REGION, MSG_NOSIGNAL);
    for (;;)
        pause();
}

static void stuck_peer(struct end *e, int receives)
{
    char *memory = mmap(NULL, WAYS * REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int faults = MUST(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {{(uintptr_t)memory, WAYS * REGION}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(faults, UFFDIO_API, &api));
    MUST(ioctl(faults, UFFDIO_REGISTER, &all));
    struct stuck s[WAYS];
    for (int i = 0; i < WAYS; i++) {
        pthread_t thread;
        s[i] = (struct stuck){e, receives, memory + i * REGION};
        MUST(pthread_create(&thread, NULL, gets_stuck, &s[i]));
    }
    for (;;)
        pause();
}

static void runs(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(99);
    }
    waitpid(pid, NULL, 0);
}

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
    for (int i = 0; i < WAYS; i++)
        fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < WAYS; i++) {
        for (int k = 0; k < TURNS; k++) {
            get(fds[i], &tids[i], sizeof tids[i]);
            put(fds[i], &tids[i], sizeof tids[i]);
        }
        if (receives)
            produce(e, fds[i], UNREAD, 1);
        await_sleep(e, stuck, tids[i]);
        nonblocking(fds[i], 1);
    }
    kill(stuck, SIGSTOP);
    for (int i = 0; i < WAYS; i++)
        await_stop(e, stuck, tids[i]);
    long long start = now_ms();
    // A program that is run gets all connections back to TCP.
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
