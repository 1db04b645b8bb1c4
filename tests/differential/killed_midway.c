// A peer that is killed in the middle of a copy, at memory that the kernel leaves to the program to fill: nobody waits for it. (What
// a call says then is told by other programs: see close.c.)
// path: shunted 20%
// timeout: 120
#include "diff.h"
#include "plain.h"

// A close or shutdown once took a second, a way back to TCP three.
enum { TURNS = 30, REGION = 1 << 20, UNREAD = 50000, LATE = 700 };

struct stuck { struct end *e; int receives; char *memory; };

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
    char *memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int faults = MUST(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {{(uintptr_t)memory, REGION}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(faults, UFFDIO_API, &api));
    MUST(ioctl(faults, UFFDIO_REGISTER, &all));
    struct stuck s = {e, receives, memory};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, gets_stuck, &s));
    for (;;)
        pause();
}
static void runs(void)
{
    pid_t pid = fork();
    if (pid == 0) { execl("/bin/true", "true", NULL); _exit(99); }
    waitpid(pid, NULL, 0);
}
static const char *const deeds[] = {"close", "shutdown", "shutdown both", "receive", "send", "urgent", "option", "poll", "poll out", "set", "system", "fork and exec", "pass", "stream", "fionread"};
enum { CLOSE, SHUTDOWN, SHUTBOTH, RECV, SENDS, URGENT, OPTION, POLL, POLLOUTS, SET, SYSTEM, EXEC, PASS, STREAM, UNREADS, DEEDS };
static void act(struct end *e, int deed, int fd)
{
    static char buf[100000];
    struct epoll_event event = {EPOLLIN | EPOLLOUT, {.u32 = 7}};
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    int on = 1, set, pair[2];
    switch (deed) {
    case CLOSE: close(fd); break;
    case SHUTDOWN: shutdown(fd, SHUT_WR); break;
    case SHUTBOTH: shutdown(fd, SHUT_RDWR); break;
    case RECV: recv(fd, buf, sizeof buf, 0); break;
    case SENDS: for (int i = 0; i < 100; i++) send(fd, buf, sizeof buf, MSG_NOSIGNAL); break;
    case URGENT: send(fd, "u", 1, MSG_OOB | MSG_NOSIGNAL); break;
    case OPTION: setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on); break;
    case POLL: poll(&p, 1, 0); break;
    case POLLOUTS: p.events = POLLOUT; poll(&p, 1, 0); break;
    case SET: set = MUST(epoll_create1(EPOLL_CLOEXEC)); epoll_ctl(set, EPOLL_CTL_ADD, fd, &event); epoll_wait(set, &event, 1, 0); close(set); break;
    case SYSTEM: (void)!system("true"); break;
    case EXEC: runs(); break;
    case PASS: MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)); pass(pair[0], fd); close(pair[0]), close(pair[1]); break;
    case STREAM: { FILE *f = fdopen(dup(fd), "r+"); fclose(f); break; }
    case UNREADS: ioctl(fd, FIONREAD, &on); break;
    }
    (void)e;
}
static void meets_dead(struct end *e, int deed, pid_t stuck, int receives, int nonblock)
{
    pid_t tid;
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int k = 0; k < TURNS; k++) {
        get(fd, &tid, sizeof tid);
        put(fd, &tid, sizeof tid);
    }
    if (receives)
        produce(e, fd, UNREAD, 1);
    await_sleep(e, stuck, tid);
    nonblocking(fd, nonblock);
    go(e);
    await_go(e); // It is dead.
    long long start = now_ms();
    act(e, deed, fd);
    long long took = now_ms() - start;
    say(e, "%s: %s", deeds[deed], took < LATE ? "soon" : "late");
    if (deed != CLOSE)
        close(fd);
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
            meets_dead(e, deed, kid.pid, receives, 1);
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
PLAIN_MAIN(CASE(killed_in_copy_out, SPLIT | BARE | FAULTS), CASE(killed_in_copy_in, SPLIT | BARE | FAULTS))
