// Processes in other PID namespaces, as every container has one of its own: their numbers say nothing here, where there is no
// process of that number, or another one.
// path: shunted
// timeout: 120
#include "diff.h"
#include "plain.h"
#include <linux/sched.h>

enum { TURNS = 30, UNREAD = 50000, MORE = 3000, STOPPED_MS = 300, HIGH = 32000 };

struct told {
    _Atomic int ready, go, done;
    _Atomic pid_t number;
};

static struct told *tellable(void)
{
    return mmap(NULL, sizeof(struct told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

// A number that no process has here.
static pid_t free_number(void)
{
    pid_t number = HIGH;
    while (kill(number, 0) == 0 || errno != ESRCH)
        number--;
    return number;
}

// Ends with its namespace.
static pid_t first_of_namespace(struct end *e)
{
    pid_t first = MUST(fork());
    if (first == 0)
        for (;;)
            pause();
    return first;
}

// A child in a PID namespace of its own, where it has a number that nobody has here; an ordinary one where that is refused.
static pid_t fork_apart(struct end *e, pid_t *first)
{
    pid_t number = free_number();
    struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1};
    int apart = unshare(CLONE_NEWPID) == 0;
    *first = first_of_namespace(e);
    return apart ? MUST(syscall(SYS_clone3, &args, sizeof args)) : MUST(fork());
}

// What becomes of a process that has what is to come do so by TCP.
enum { HALF_CLOSED = 1, DIES = 2, WITH_SLEEPER = 4 };

static void recalls(struct end *e, struct told *told, int how)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    int i, on = 1;
    for (i = 0; i < TURNS; i++) {
        put(fd, &i, sizeof i);
        get(fd, &i, sizeof i);
    }
    if (how & HALF_CLOSED)
        MUST(shutdown(fd, SHUT_WR));
    told->ready = 1;
    while (!told->go)
        usleep(1000);
    MUST(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    told->done = 1;
    while (how & DIES)
        pause();
    expect(e, fd, UNREAD, 2);
    expect(e, fd, MORE, 3);
    close(fd);
    _exit(0);
}

// Lets it run until it is in the middle of its change of way, at the barrier, or through. Natively it is in none.
static int stop_midway(pid_t pid, struct told *told)
{
    struct __ptrace_syscall_info call;
    int status;
    int traced = ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) == 0 && ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0;
    told->go = 1;
    if (!traced) {
        while (!told->done)
            usleep(1000);
        return 0;
    }
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        int enters = WSTOPSIG(status) == (SIGTRAP | 0x80) &&
                     ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY;
        if (enters && call.entry.nr == SYS_membarrier)
            return 1;
        if (told->done) {
            ptrace(PTRACE_DETACH, pid, 0, 0);
            return 0;
        }
        ptrace(PTRACE_SYSCALL, pid, 0, 0);
    }
    return 0;
}

// A child that goes on as before.
static pid_t fork_beside(struct end *e, pid_t *first)
{
    *first = first_of_namespace(e);
    return MUST(fork());
}

// Role C: the other side's peer is a process of what `makes` makes that is stopped when both meet for the second time, and goes on, or
// dies, a while after that. Without a sleeper it is dead by then.
static void stops(struct end *e, pid_t (*makes)(struct end *, pid_t *), int how)
{
    struct kid maker = spawn(e);
    if (maker.pid) {
        reap(e, &maker);
        return;
    }
    struct told *told = tellable();
    pid_t first, pid = makes(e, &first);
    int status;
    if (pid == 0)
        recalls(e, told, how);
    while (!told->ready)
        usleep(1000);
    meet(e);
    int is_stopped = stop_midway(pid, told), waits = !(how & DIES) || how & WITH_SLEEPER;
    if (waits)
        meet(e);
    if (is_stopped && waits)
        usleep(STOPPED_MS * 1000);
    if (how & DIES)
        kill(pid, SIGKILL);
    else if (is_stopped)
        ptrace(PTRACE_DETACH, pid, 0, 0);
    MUST(waitpid(pid, &status, 0));
    say(e, "it ended with %d", status);
    if (!waits)
        meet(e);
    kill(first, SIGKILL);
    MUST(waitpid(first, NULL, 0));
    _exit(0);
}

static int accepts(struct end *e)
{
    int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), n;
    for (int i = 0; i < TURNS; i++) {
        get(fd, &n, sizeof n);
        put(fd, &n, sizeof n);
    }
    return fd;
}

// It has sent all that it will ever send, and has what is to come do so by TCP.
static void recalled_by_half_closed(struct end *e)
{
    if (e->role == C) {
        stops(e, fork_apart, HALF_CLOSED);
        return;
    }
    int fd = accepts(e);
    char c;
    produce(e, fd, UNREAD, 2);
    meet(e);
    meet(e);
    produce(e, fd, MORE, 3);
    T(recv(fd, &c, 1, 0));
    close(fd);
}

// Where there is no /proc it is known of a peer of one's own namespace nevertheless that it has died in the middle of that.
static void killed_without_proc(struct end *e)
{
    if (e->role == C) {
        stops(e, fork_beside, DIES);
        return;
    }
    struct kid server = spawn(e);
    if (server.pid) {
        reap(e, &server);
        return;
    }
    // As a user that may not it goes on.
    if (chroot("/dev") == 0)
        MUST(chdir("/"));
    int fd = accepts(e);
    char more[MORE] = {0};
    produce(e, fd, UNREAD, 2);
    meet(e);
    meet(e);
    while (send(fd, more, sizeof more, MSG_NOSIGNAL) > 0)
        ;
    say(e, "nobody is there");
    _exit(0);
}

// It is killed in the middle of that, with bytes unread: what is sent finds that out, whether it waits already or comes after that.
static void killed(struct end *e, int how)
{
    if (e->role == C) {
        stops(e, fork_apart, DIES | how);
        return;
    }
    int fd = accepts(e);
    char c;
    produce(e, fd, UNREAD, 2);
    meet(e);
    meet(e);
    while (send(fd, "", 1, MSG_NOSIGNAL) == 1)
        nap();
    say(e, "no more can be sent: %s", errname(errno));
    T(recv(fd, &c, 1, 0));
    close(fd);
}
static void killed_in_a_recall(struct end *e) { killed(e, 0); }
static void killed_beside_a_sleeper(struct end *e) { killed(e, WITH_SLEEPER); }
static void half_closed_and_killed(struct end *e) { killed(e, HALF_CLOSED); }
static void half_closed_and_killed_beside_a_sleeper(struct end *e) { killed(e, HALF_CLOSED | WITH_SLEEPER); }

// ---- One connection on both sides of a border ------------------------------

enum { BEFORE = 700, EACH = 40000, PIECE = 700, STOPS = 60, STOP_US = 2000 };

static void sends(int fd, char what, int pieces)
{
    char piece[PIECE];
    memset(piece, what, sizeof piece);
    for (int i = 0; i < pieces; i++)
        put(fd, piece, sizeof piece);
}

// Stops a process now and then, wherever it is.
static void disturbs(pid_t pid)
{
    for (int i = 0; i < STOPS; i++) {
        usleep(STOP_US / 2);
        kill(pid, SIGSTOP);
        usleep(STOP_US);
        kill(pid, SIGCONT);
    }
}

static void counts(struct end *e)
{
    static unsigned char buf[SCRATCH];
    size_t of[256] = {0};
    ssize_t n;
    while ((n = recv(FD, buf, sizeof buf, 0)) > 0)
        for (ssize_t i = 0; i < n; i++)
            of[buf[i]]++;
    say(e, "%zu of before, %zu of the child, %zu of the parent", of['b'], of['c'], of['p']);
}

// `makes` makes the child.
static void both_send(struct end *e, pid_t (*makes)(struct end *, pid_t *))
{
    if (e->role == S) {
        send(FD, "unread before", 13, 0);
        go(e);
        await_go(e);
        counts(e);
        return;
    }
    await_go(e);
    struct kid parent = spawn(e);
    if (parent.pid) {
        close(FD);
        FD = -1;
        reap(e, &parent);
        return;
    }
    struct told *told = tellable();
    pid_t pest = MUST(fork());
    if (pest == 0) {
        close(FD);
        while (!told->number)
            usleep(1000);
        disturbs(told->number);
        _exit(0);
    }
    char piece[PIECE];
    memset(piece, 'b', sizeof piece);
    for (int i = 0; i < BEFORE; i++)
        put(FD, piece, sizeof piece);
    pid_t first = 0, child = makes(e, &first);
    if (child == 0) {
        sends(FD, 'c', EACH);
        _exit(0);
    }
    told->number = child;
    get(FD, piece, 13);
    say(e, "%.13s", piece);
    go(e);
    sends(FD, 'p', EACH);
    MUST(waitpid(pest, NULL, 0));
    MUST(waitpid(child, NULL, 0));
    close(FD);
    if (first) {
        kill(first, SIGKILL);
        MUST(waitpid(first, NULL, 0));
    }
    _exit(0);
}

static pid_t clone_apart(struct end *e, pid_t *first)
{
    (void)first;
    struct clone_args args = {.flags = CLONE_NEWPID, .exit_signal = SIGCHLD};
    pid_t child = syscall(SYS_clone3, &args, sizeof args);
    return child < 0 ? MUST(fork()) : child;
}

static void shared_after_unshare(struct end *e) { both_send(e, fork_apart); }
static void shared_with_clone(struct end *e) { both_send(e, clone_apart); }

// ---- Threads on both sides of a border -------------------------------------

enum { THREADS = 2, EACH_THREAD = 10000, FROM_PEER = 10000 };

struct job {
    int fd;
    char what;
    _Atomic long *received;
};

static void *sends_in_thread(void *arg)
{
    struct job *job = arg;
    sends(job->fd, job->what, EACH_THREAD);
    return NULL;
}

static void *receives_in_thread(void *arg)
{
    struct job *job = arg;
    char buf[PIECE];
    ssize_t n;
    while ((n = recv(job->fd, buf, sizeof buf, 0)) > 0)
        *job->received += n;
    return NULL;
}

// As many threads send as receive.
static void work(struct job *job)
{
    pthread_t threads[2 * THREADS];
    for (int i = 0; i < 2 * THREADS; i++)
        if (pthread_create(&threads[i], NULL, i < THREADS ? sends_in_thread : receives_in_thread, job))
            abort();
    for (int i = 0; i < 2 * THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void *answers_in_thread(void *arg)
{
    struct job *job = arg;
    sends(job->fd, job->what, FROM_PEER);
    shutdown(job->fd, SHUT_WR);
    return NULL;
}

static void shared_by_threads(struct end *e)
{
    if (e->role == S) {
        struct job job = {FD, 's', NULL};
        pthread_t answers;
        await_go(e);
        if (pthread_create(&answers, NULL, answers_in_thread, &job))
            abort();
        counts(e);
        pthread_join(answers, NULL);
        return;
    }
    _Atomic long *received = mmap(NULL, sizeof *received, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t first, child = clone_apart(e, &first);
    struct job job = {FD, child ? 'p' : 'c', received};
    if (child == 0) {
        work(&job);
        _exit(0);
    }
    pid_t pest = MUST(fork());
    if (pest == 0) {
        close(FD);
        disturbs(child);
        _exit(0);
    }
    go(e);
    work(&job);
    MUST(waitpid(pest, NULL, 0));
    MUST(waitpid(child, NULL, 0));
    say(e, "%ld of the peer's came", *received);
    close(FD);
    FD = -1;
}

// ---- Another program on the far side of a border ---------------------------

enum { PASSED = 1, OTHER = 2 }; // it is passed the connection, which it inherits otherwise; it has libshunt

static void other_program(struct end *e, int how)
{
    struct plain p = {-1, -1, ""};
    pid_t first = 0;
    char c;
    AT(S) produce(e, FD, UNREAD, 2);
    if (e->role == C) {
        struct kid maker = spawn(e);
        if (maker.pid) {
            close(FD);
            FD = -1;
            reap(e, &maker);
            return;
        }
        unshare(CLONE_NEWPID);
        first = first_of_namespace(e);
    }
    AT(C) {
        p = plain_on(e, how & PASSED ? -1 : FD, THERE, e->fam | (how & OTHER ? SHUNTED : 0));
        if (how & PASSED)
            give_to(e, &p, FD);
        tell_it(e, &p, RECEIVE, UNREAD, 2);
        tell_it(e, &p, SEND, MORE, 3);
    }
    // Both have it now, and take turns.
    AT(S) {
        expect(e, FD, MORE, 3);
        produce(e, FD, MORE, 4);
    }
    AT(C) {
        expect(e, FD, MORE, 4);
        produce(e, FD, MORE, 5);
    }
    AT(S) {
        expect(e, FD, MORE, 5);
        produce(e, FD, MORE, 6);
    }
    AT(C) {
        tell_it(e, &p, RECEIVE, MORE, 6);
        close(FD);
        tell_it(e, &p, SEND, MORE, 7);
        plain_end(e, &p);
        kill(first, SIGKILL);
        MUST(waitpid(first, NULL, 0));
    }
    AT(S) {
        expect(e, FD, MORE, 7);
        T(recv(FD, &c, 1, 0));
    }
    if (e->role == C)
        _exit(0);
}
static void inherited(struct end *e) { other_program(e, 0); }
static void other_inherited(struct end *e) { other_program(e, OTHER); }
static void passed_on(struct end *e) { other_program(e, PASSED); }
static void other_passed_on(struct end *e) { other_program(e, PASSED | OTHER); }

PLAIN_MAIN(CASE(recalled_by_half_closed, SPLIT | BARE), CASE(killed_without_proc, SPLIT | BARE),
           CASE(killed_in_a_recall, SPLIT | BARE),
           CASE(killed_beside_a_sleeper, SPLIT | BARE), CASE(half_closed_and_killed, SPLIT | BARE),
           CASE(half_closed_and_killed_beside_a_sleeper, SPLIT | BARE), CASE(shared_after_unshare, SPLIT),
           CASE(shared_with_clone, SPLIT), CASE(shared_by_threads, SPLIT), CASE(inherited, SPLIT | PIDFD),
           CASE(other_inherited, SPLIT | PIDFD), CASE(passed_on, SPLIT | PIDFD), CASE(other_passed_on, SPLIT | PIDFD))
