// A worker: a process that holds ends of connections and does one operation after another, by itself
// or in threads, children and other programs.
#ifndef WORKER_H
#define WORKER_H
#include "call.h"

// What a worker has from the conductor, all out of the way of the script's descriptors.
static struct post {
    int channel;   // operations and answers
    int bridge;    // to the other worker, for descriptors
    int life;      // its end means: the script is over
} post;

static struct runner {
    pthread_t id;
    volatile pid_t tid;
    volatile int busy;
    sem_t done;
    struct op op;
    struct answer answer;
} runners[THREADS];

// Called for SIGUSR1 (calls are not restarted), SIGUSR2 (they are), SIGALRM and SIGPIPE.
void on_signal(int signal)
{
    if (signal == SIGPIPE)
        sigpipes++;
    else if (signal == SIGALRM)
        alarms++;
}

static void handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGPIPE, &action, NULL);
}

static void nap(long microseconds)
{
    struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, NULL);
}

// ---- The kernel's view -----------------------------------------------------

// A system call that no library sees.
static long bare(long number, long a, long b, long c, long d, long e)
{
#if defined __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

// ---- Threads ---------------------------------------------------------------

static void *run_thread(void *argument)
{
    struct runner *r = argument;
    r->tid = (pid_t)syscall(SYS_gettid);
    perform(&r->op, &r->answer);
    r->busy = 0;
    sem_post(&r->done);
    return NULL;
}

static int switches_asleep(pid_t tid, long *switches)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    long n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    char *state = strstr(text, "State:\t"), *count = strstr(text, "\nvoluntary_ctxt_switches:");
    *switches = count ? atol(count + 25) : 0;
    return state && state[7] == 'S';
}

// Until the thread has ended or sleeps for good.
static void await_rest(struct runner *r)
{
    long last = -1, now;
    for (int calm = 0, looks = 0; r->busy && calm < 3 && looks < 200; looks++) {
        calm = r->tid && switches_asleep(r->tid, &now) && now == last ? calm + 1 : 0;
        last = r->tid ? now : -1;
        nap(300);
    }
}

// Has the kernel acknowledge what came, and counts the sockets of which something is still under
// way. Unread bytes that fill a window are not. A thread that was woken gets what there is before the next line takes it away.
static void do_settle(struct answer *a)
{
    for (int i = 0; i < THREADS; i++)
        await_rest(&runners[i]);
    for (int i = 0; i < SLOTS; i++) {
        uint32_t info[64] = {0}; // struct tcp_info; older headers lack its later fields
        unsigned size = sizeof info;
        int on = 1;
        if (fds[i] < 0 || bare(SYS_getsockopt, fds[i], IPPROTO_TCP, TCP_INFO, (long)info, (long)&size))
            continue;
        bare(SYS_setsockopt, fds[i], IPPROTO_TCP, TCP_QUICKACK, (long)&on, sizeof on);
        uint32_t unacked = info[6], unsent = info[36], window = info[57];
        int has_ended = (info[0] & 0xff) == TCP_CLOSE;
        a->result += !has_ended && (unacked > 0 || (unsent > 0 && window > 0));
    }
}

static int begin_thread(struct runner *r, const struct op *o)
{
    r->op = *o;
    memset(&r->answer, 0, sizeof r->answer);
    r->tid = 0;
    r->busy = 1;
    sem_init(&r->done, 0, 0);
    return pthread_create(&r->id, NULL, run_thread, r) == 0;
}

// Waits for a thread; what interrupts this wait is passed on to it.
static void end_thread(struct runner *r, struct answer *a)
{
    while (sem_wait(&r->done) < 0)
        pthread_kill(r->id, SIGUSR1);
    pthread_join(r->id, NULL);
    r->id = 0;
    *a = r->answer;
}

static void start(const struct op *o, struct answer *a)
{
    struct runner *r = &runners[o->thread];
    if (r->id) {
        say(a, " thread in use");
        return;
    }
    say(a, begin_thread(r, o) ? " begun" : " no thread");
    await_rest(r);
}

static void do_join(const struct op *o, struct answer *a)
{
    struct runner *r = &runners[o->thread < 0 ? 0 : o->thread];
    if (r->id)
        end_thread(r, a);
    else
        say(a, " none");
}

static void do_signal(const struct op *o, struct answer *a)
{
    struct runner *r = &runners[o->thread < 0 ? 0 : o->thread];
    if (r->id) {
        pthread_kill(r->id, o->restart ? SIGUSR2 : SIGUSR1);
        nap(500);
        await_rest(r);
    }
    say(a, r->id ? " sent" : " none");
}

static void in_thread(const struct op *o, struct answer *a)
{
    static struct runner r;
    if (begin_thread(&r, o))
        end_thread(&r, a);
}

static int threads_begun(void)
{
    int count = 0;
    for (int i = 0; i < THREADS; i++)
        count += runners[i].id != 0;
    return count;
}

// ---- Children and programs -------------------------------------------------

// What another program must know to do an operation, or to go on as this worker.
struct luggage {
    struct op op;
    int fds[SLOTS], listener, report;
    struct post post;
};

static void become(const char *role, int report, const struct op *o)
{
    struct luggage luggage = {.listener = listener, .report = report, .post = post};
    char number[16];
    if (o)
        luggage.op = *o;
    memcpy(luggage.fds, fds, sizeof fds);
    int file = memfd_create("luggage", 0);
    if (write(file, &luggage, sizeof luggage) != sizeof luggage)
        _exit(9);
    snprintf(number, sizeof number, "%d", file);
    execl("/proc/self/exe", "script", role, number, NULL);
    _exit(9);
}

static struct luggage unpack(const char *number)
{
    struct luggage luggage;
    int file = atoi(number);
    if (pread(file, &luggage, sizeof luggage, 0) != sizeof luggage)
        _exit(9);
    close(file);
    memcpy(fds, luggage.fds, sizeof fds);
    listener = luggage.listener;
    post = luggage.post;
    handle_signals();
    return luggage;
}

// Another program does one operation.
static int do_one(const char *number)
{
    struct answer a = {0};
    struct luggage luggage = unpack(number);
    perform(&luggage.op, &a);
    return write(luggage.report, &a, sizeof a) != sizeof a;
}

static void be_child(const struct op *o, int report)
{
    struct answer a = {0};
    if (o->place == CHILD) {
        perform(o, &a);
        _exit(write(report, &a, sizeof a) != sizeof a);
    }
    fcntl(report, F_SETFD, 0);
    if (o->place == PLAIN)
        unsetenv("LD_PRELOAD");
    become("--one", report, o);
}

// Reads the child's answer; what interrupts this is passed on to it.
static void hear(pid_t child, int from, struct answer *a)
{
    long got = 0, r = 1;
    int status;
    while (got < (long)sizeof *a && r != 0) {
        r = read(from, (char *)a + got, sizeof *a - got);
        if (r < 0)
            kill(child, SIGUSR1);
        else
            got += r;
    }
    while (waitpid(child, &status, 0) < 0)
        kill(child, SIGUSR1);
    if (got < (long)sizeof *a)
        say(a, " no answer");
    if (status)
        say(a, " status %#x", (unsigned)status);
}

static void in_child(const struct op *o, struct answer *a)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC))
        return;
    pid_t child = fork();
    if (child == 0)
        be_child(o, report[1]);
    close(report[1]);
    hear(child, report[0], a);
    close(report[0]);
}

// The child goes on as the worker. Its parent has all the descriptors until the script is over, or
// ends at once.
static void do_fork(const struct op *o, struct answer *a)
{
    if (threads_begun()) {
        say(a, " not with threads");
        return;
    }
    int gone[2];
    char c;
    if (pipe2(gone, O_CLOEXEC))
        return;
    pid_t child = fork();
    if (child > 0) {
        close(gone[0]);
        close(gone[1]);
        if (o->value)
            while (read(post.life, &c, 1) < 0)
                ;
        _exit(0);
    }
    close(gone[1]);
    // The end of the parent's copy: it is gone, or has begun to sleep.
    while (read(gone[0], &c, 1) < 0)
        ;
    close(gone[0]);
    say(a, " %s", child < 0 ? "failed" : "done");
}

static void do_exec(const struct op *o, struct answer *a)
{
    if (threads_begun()) {
        say(a, " not with threads");
        return;
    }
    fcntl(post.channel, F_SETFD, 0);
    fcntl(post.bridge, F_SETFD, 0);
    fcntl(post.life, F_SETFD, 0);
    fcntl(listener, F_SETFD, 0);
    if (o->value)
        unsetenv("LD_PRELOAD");
    become("--resume", -1, NULL);
}

// ---- Passing ---------------------------------------------------------------

union one_descriptor {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

static long give(int by, int fd)
{
    char c = 'd';
    union one_descriptor control;
    struct iovec part = {&c, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    return sendmsg(by, &message, 0);
}

static int take(int by)
{
    char c;
    int fd = -1;
    union one_descriptor control;
    struct iovec part = {&c, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(by, &message, 0) == 1 && message.msg_controllen >= CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}

static pid_t child_that_returns_it(int slot, int by, int other)
{
    pid_t child = fork();
    if (child == 0) {
        close(other);
        close(fds[slot]);
        _exit(give(by, take(by)) != 1);
    }
    return child;
}

// To this process itself, or to a child and back.
static void pass_around(const struct op *o, struct answer *a)
{
    int pair[2], status = 0;
    pid_t child = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return;
    if (o->place == CHILD)
        child = child_that_returns_it(o->slot, pair[1], pair[0]);
    long r = give(pair[0], fds[o->slot]);
    say_result(a, r);
    if (r == 1) {
        close(fds[o->slot]);
        fds[o->slot] = take(child ? pair[0] : pair[1]);
        say(a, " back %d", fds[o->slot] >= 0);
    } else if (child) {
        shutdown(pair[0], SHUT_RDWR);
    }
    if (child && waitpid(child, &status, 0) == child)
        say(a, " status %#x", (unsigned)status);
    close(pair[0]);
    close(pair[1]);
}

static void do_pass(const struct op *o, struct answer *a)
{
    if (o->to_worker == o->worker) {
        pass_around(o, a);
        return;
    }
    say_result(a, give(post.bridge, fds[o->slot]));
    if (a->result == 1 && o->value) {
        close(fds[o->slot]);
        fds[o->slot] = -1;
    }
}

static void do_take(const struct op *o, struct answer *a)
{
    fds[o->slot] = take(post.bridge);
    say(a, " %s", fds[o->slot] >= 0 ? "taken" : "nothing");
}

// ---- The worker ------------------------------------------------------------

static void do_port(struct answer *a)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int high = fcntl(listener, F_DUPFD_CLOEXEC, 300);
    close(listener);
    listener = high;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        _exit(6);
    a->result = ntohs(address.sin_port);
}

static void obey(const struct op *o, struct answer *a)
{
    switch (o->kind) {
    case DO_settle: do_settle(a); return;
    case DO_port: do_port(a); return;
    case DO_join: do_join(o, a); return;
    case DO_signal: do_signal(o, a); return;
    case DO_fork: do_fork(o, a); return;
    case DO_exec: do_exec(o, a); return;
    case DO_pass: do_pass(o, a); return;
    case DO_take: do_take(o, a); return;
    default: break;
    }
    if (o->thread >= 0)
        start(o, a);
    else if (o->place == HERE)
        perform(o, a);
    else if (o->place == THREAD)
        in_thread(o, a);
    else
        in_child(o, a);
}

static void answer_with(struct answer *a)
{
    a->pid = getpid();
    while (send(post.channel, a, sizeof *a, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            _exit(7);
}

static int work(void)
{
    struct op o;
    struct answer a;
    for (;;) {
        long r = recv(post.channel, &o, sizeof o, 0);
        if (r < 0 && errno == EINTR)
            continue;
        if (r != sizeof o || o.kind == DO_quit)
            exit(0);
        memset(&a, 0, sizeof a);
        obey(&o, &a);
        answer_with(&a);
    }
}

static int resume(const char *number)
{
    struct answer a = {.text = " done"};
    unpack(number);
    fcntl(post.channel, F_SETFD, FD_CLOEXEC);
    fcntl(post.bridge, F_SETFD, FD_CLOEXEC);
    fcntl(post.life, F_SETFD, FD_CLOEXEC);
    fcntl(listener, F_SETFD, FD_CLOEXEC);
    answer_with(&a);
    return work();
}

#endif
