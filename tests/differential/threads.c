// One connection and several threads, and several of both.
// path: shunted 20%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"

struct record {
    uint32_t thread, number, length, sum;
};
enum { SENDERS = 4, RECORDS = 400, LONGEST = 4096 };

struct worker {
    struct end *e;
    int index;
    long result;
};

static long in_threads(struct end *e, int count, void *(*run)(void *))
{
    pthread_t t[16];
    struct worker w[16];
    long total = 0;
    for (int i = 0; i < count; i++) {
        w[i] = (struct worker){e, i, 0};
        MUST(pthread_create(&t[i], NULL, run, &w[i]));
    }
    for (int i = 0; i < count; i++) {
        pthread_join(t[i], NULL);
        total += w[i].result;
    }
    return total;
}

static uint32_t sum_of(const unsigned char *p, size_t n)
{
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++)
        s = s * 31 + p[i];
    return s;
}

static void *sends_records(void *arg)
{
    struct worker *w = arg;
    unsigned char buf[LONGEST];
    struct record *r = (struct record *)buf;
    for (int i = 0; i < RECORDS; i++) {
        size_t n = sizeof *r + (i * 131 + w->index * 977) % (LONGEST - sizeof *r);
        fill(buf, n, i, w->index);
        r->thread = w->index, r->number = i, r->length = n;
        r->sum = sum_of(buf + sizeof *r, n - sizeof *r);
        struct iovec v[2] = {{buf, sizeof *r}, {buf + sizeof *r, n - sizeof *r}};
        ssize_t sent = i % 3 == 0 ? writev(w->e->fd, v, 2) : send(w->e->fd, buf, n, 0);
        w->result += sent == (ssize_t)n;
    }
    return NULL;
}

// Each blocking send of one record stays in one piece.
static void framed(struct end *e)
{
    if (e->role == C) {
        say(e, "%ld sent", in_threads(e, SENDERS, sends_records));
        return;
    }
    int next[SENDERS] = {0}, bad = 0, n = 0;
    unsigned char buf[LONGEST];
    struct record *r = (struct record *)buf;
    for (; n < SENDERS * RECORDS; n++) {
        if (get(FD, buf, sizeof *r) != sizeof *r || r->length > LONGEST || r->length < sizeof *r ||
            r->thread >= SENDERS)
            break;
        if (get(FD, buf + sizeof *r, r->length - sizeof *r) != r->length - sizeof *r)
            break;
        bad += sum_of(buf + sizeof *r, r->length - sizeof *r) != r->sum;
        bad += next[r->thread]++ != (int)r->number;
    }
    say(e, "%d received, %d bad", n, bad);
}

static void *receives_bytes(void *arg)
{
    struct worker *w = arg;
    unsigned char buf[7];
    ssize_t n;
    while ((n = recv(w->e->fd, buf, 1 + w->index % 7, 0)) > 0)
        for (int i = 0; i < n; i++)
            w->result += buf[i];
    return NULL;
}

// Several receivers take every byte once; all see the end.
static void several_receivers(struct end *e)
{
    if (e->role == C) {
        unsigned char buf[100];
        memset(buf, 3, sizeof buf);
        for (int i = 0; i < 400; i++)
            put(FD, buf, i % 100 + 1);
        T(shutdown(FD, SHUT_WR));
    } else {
        say(e, "sum %ld", in_threads(e, 3, receives_bytes));
    }
}

static void *sends_or_receives(void *arg)
{
    struct worker *w = arg;
    struct end *e = w->e;
    const size_t n = 8 << 20;
    unsigned seed = (e->role == C) == (w->index == 0) ? 1 : 2;
    if (w->index == 0) {
        produce(e, FD, n, seed);
    } else {
        unsigned char buf[30000];
        size_t done = 0;
        while (done < n) {
            ssize_t r = recv(FD, buf, n - done < sizeof buf ? n - done : sizeof buf, 0);
            if (r <= 0 || check(buf, r, done, seed) >= 0)
                break;
            done += r;
        }
        w->result = done == n;
    }
    return NULL;
}

static void full_duplex(struct end *e)
{
    say(e, "good %ld", in_threads(e, 2, sends_or_receives));
}

static void *leaves(void *arg)
{
    struct worker *w = arg;
    unsigned char buf[32];
    fill(buf, 32, w->index, 1);
    put(w->e->fd, buf, 32);
    w->result = get(w->e->fd, buf, 32) == 32 && check(buf, 32, w->index, 2) < 0;
    return NULL;
}

// Each message is sent by a thread that then ends.
static void threads_that_leave(struct end *e)
{
    long good = 0;
    unsigned char buf[32];
    for (int i = 0; i < 60; i++) {
        if (e->role == C) {
            good += in_threads(e, 1, leaves);
        } else {
            good += get(FD, buf, 32) == 32 && check(buf, 32, 0, 1) < 0;
            fill(buf, 32, 0, 2);
            put(FD, buf, 32);
        }
    }
    say(e, "%ld good", good);
}

static int ports_of_own[8];
static void *own_connection(void *arg)
{
    struct worker *w = arg;
    struct end *e = w->e;
    unsigned char buf[512];
    int fd = ports_of_own[w->index];
    for (int i = 0; i < 300; i++) {
        size_t n = 1 + (i * 37) % 512;
        if (e->role == C)
            fill(buf, n, i, 1), put(fd, buf, n);
        w->result += get(fd, buf, n) == n && check(buf, n, i, 1) < 0;
        if (e->role == S)
            put(fd, buf, n);
    }
    return NULL;
}

// Eight connections, a thread for each on both sides.
static void own_connections(struct end *e)
{
    for (int i = 0; i < 8; i++) {
        if (e->role == C) {
            ports_of_own[i] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(ports_of_own[i], e->fam, e->port));
        } else {
            ports_of_own[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        }
    }
    say(e, "%ld good", in_threads(e, 8, own_connection));
    for (int i = 0; i < 8; i++)
        close(ports_of_own[i]);
}

static void *sleeps_in_recv(void *arg)
{
    struct end *e = arg;
    char c;
    e->tid = syscall(SYS_gettid);
    go(e);
    return (void *)recv(FD, &c, 1, 0);
}

// One thread sleeps in recv while another sends on the same connection.
static void receiver_asleep(struct end *e)
{
    char c;
    if (e->role == S) {
        pthread_t t;
        void *r;
        pid_t self = e->tid;
        MUST(pthread_create(&t, NULL, sleeps_in_recv, e));
        await_go(e);
        await_sleep(e, e->pid, e->tid);
        e->tid = self;
        for (int i = 0; i < 100; i++)
            put(FD, "x", 1);
        pthread_join(t, &r);
        say(e, "%ld", (long)r);
    } else {
        await_go(e); // the other side's thread runs
        go(e);
        for (int i = 0; i < 100; i++)
            if (get(FD, &c, 1) != 1)
                say(e, "lost");
        T(send(FD, "y", 1, 0));
    }
}

// Another file takes the number on which a thread sleeps (Java closes so): the
// thread goes on with what it had, and takes nothing from the other.
static void replaced_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        void *r;
        int pair[2], left = 0;
        pid_t self = e->tid;
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        MUST(write(pair[1], "HELLO-WORLD", 11));
        MUST(pthread_create(&t, NULL, sleeps_in_recv, e));
        await_go(e);
        await_sleep(e, e->pid, e->tid);
        e->tid = self;
        MUST(dup2(pair[0], FD));
        go(e);
        pthread_join(t, &r);
        say(e, "%ld", (long)r);
        MUST(ioctl(FD, FIONREAD, &left));
        say(e, "left in the other: %d", left);
        close(pair[0]), close(pair[1]);
    } else {
        await_go(e); // the other side's thread runs
        go(e);
        await_go(e);
        T(send(FD, "y", 1, 0));
    }
}

// A thread with descriptors of its own closes its copy: nobody else notices.
static void *closes_its_own(void *arg)
{
    struct worker *w = arg;
    struct end *e = w->e;
    MUST(unshare(CLONE_FILES));
    w->result = close(FD);
    return NULL;
}
static void own_descriptors(struct end *e)
{
    AT(S) {
        say(e, "closed: %ld", in_threads(e, 1, closes_its_own));
        T(send(FD, "ok", 2, 0));
    }
    AT(C) {
        T(recv(FD, (char[4]){0}, 2, MSG_WAITALL));
        T(recv(FD, (char[4]){0}, 2, MSG_DONTWAIT));
        T(send(FD, "too", 3, 0));
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

// What a thread with descriptors of its own has at the number of a connection is not that connection.
static void *puts_a_file_there(void *arg)
{
    struct worker *w = arg;
    struct end *e = w->e;
    char buf[16] = "";
    if (w->index)
        MUST(unshare(CLONE_FILES));
    else
        MUST(close_range(FD, FD, CLOSE_RANGE_UNSHARE));
    int file = memfd_create("file", MFD_CLOEXEC);
    w->result = MUST(dup2(file, FD)) == FD && write(FD, "to the file", 11) == 11 && lseek(FD, 0, SEEK_SET) == 0
        && read(FD, buf, sizeof buf) == 11 && strcmp(buf, "to the file") == 0;
    close(file);
    return NULL;
}
static void file_at_number(struct end *e, int by_unshare)
{
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        struct worker w = {.e = e, .index = by_unshare};
        pthread_t thread;
        await_bytes(e, FD, 6);
        MUST(pthread_create(&thread, NULL, puts_a_file_there, &w));
        pthread_join(thread, NULL);
        say(e, "a file: %ld", w.result);
        T(recv(FD, (char[8]){0}, 8, 0));
        T(send(FD, "ok", 2, 0));
    }
    AT(C) {
        T(recv(FD, (char[4]){0}, 2, MSG_WAITALL));
        T(recv(FD, (char[4]){0}, 2, MSG_DONTWAIT));
        T(send(FD, "too", 3, 0));
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}
static void file_at_unshared_number(struct end *e) { file_at_number(e, 1); }
static void file_at_closed_number(struct end *e) { file_at_number(e, 0); }

struct blocked {
    struct end *e;
    int how;
    pid_t tid;
    long result;
    int error;
};

// Waits for room in one way or another.
static void *waits_for_room(void *arg)
{
    struct blocked *b = arg;
    struct end *e = b->e;
    struct pollfd p = {FD, POLLOUT, 0};
    struct epoll_event ev = {.events = EPOLLOUT};
    struct timeval limit = {60, 0};
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    fd_set w;
    FD_ZERO(&w);
    FD_SET(FD, &w);
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    if (b->how == 1)
        MUST(setsockopt(FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    __atomic_store_n(&b->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
    switch (b->how) {
    case 0:
    case 1: b->result = send(FD, "x", 1, MSG_NOSIGNAL); break;
    case 2: b->result = poll(&p, 1, PATIENCE_MS); break;
    case 3: b->result = select(FD + 1, NULL, &w, NULL, &limit); break;
    case 4: b->result = epoll_wait(ep, &ev, 1, PATIENCE_MS); break;
    }
    b->error = b->result < 0 ? errno : 0;
    close(ep);
    return NULL;
}

// One thread waits for room; another shuts down sending, and it waits no more.
static void shut_down_under_sender(struct end *e)
{
    for (int how = 0; how < 5; how++) {
        size_t total = 0;
        join_ends(e);
        if (e->role == C) {
            struct blocked b = {e, how, 0, 0, 0};
            pthread_t t;
            total = stuff(e, FD, 1);
            MUST(pthread_create(&t, NULL, waits_for_room, &b));
            while (!__atomic_load_n(&b.tid, __ATOMIC_ACQUIRE))
                nap();
            await_sleep(e, e->pid, b.tid);
            long long start = now_ms();
            T(shutdown(FD, SHUT_WR));
            pthread_join(t, NULL);
            say(e, "%ld %s, at once %d", b.result, errname(b.error), now_ms() - start < PATIENCE_MS / 2);
        }
        share(e, C, &total, sizeof total);
        if (e->role == S) {
            drain(e, FD, total, 1);
            T(recv(FD, scratch(), 1, 0));
        }
        part_ends(e);
    }
}

// Two sleepers and one byte: one of them gets it, the other the end.
static void *takes_one(void *arg)
{
    struct worker *w = arg;
    char c;
    w->result = recv(w->e->fd, &c, 1, 0);
    return NULL;
}
static void two_sleepers(struct end *e)
{
    if (e->role == S) {
        go(e);
        say(e, "together %ld", in_threads(e, 2, takes_one));
    } else {
        await_blocked(e);
        T(send(FD, "x", 1, 0));
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
        T(shutdown(FD, SHUT_WR));
    }
}

static void *on_a_small_stack(void *arg)
{
    struct worker *w = arg;
    struct end *e = w->e;
    char buf[16];
    for (int i = 0; i < 50; i++) {
        struct pollfd p = {FD, POLLIN, 0};
        w->result += put(FD, "ping", 4) == 4;
        w->result += poll(&p, 1, 5000) == 1;
        w->result += get(FD, buf, 4) == 4;
    }
    return NULL;
}

static void small_stack(struct end *e)
{
    char buf[16];
    if (e->role == C) {
        pthread_attr_t attr;
        pthread_t t;
        struct worker w = {e, 0, 0};
        pthread_attr_init(&attr);
        // What the C library itself needs for thread-local storage, and little more.
        T(pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN));
        T(pthread_create(&t, &attr, on_a_small_stack, &w));
        pthread_join(t, NULL);
        say(e, "%ld good", w.result);
    } else {
        for (int i = 0; i < 50; i++) {
            get(FD, buf, 4);
            put(FD, "pong", 4);
        }
    }
}

struct file_sender {
    struct end *e;
    int file;
};

static void *sends_files(void *arg)
{
    struct file_sender *s = arg;
    struct end *e = s->e;
    int p[2];
    off_t at = 0;
    while (at < 50000 && sendfile(FD, s->file, &at, 50000 - at) > 0)
        ;
    MUST(pipe2(p, O_CLOEXEC));
    for (int i = 0; i < 8; i++) {
        if (splice(FD, NULL, p[1], NULL, 4096, 0) <= 0)
            break;
        while (splice(p[0], NULL, FD, NULL, 4096, SPLICE_F_NONBLOCK) > 0)
            ;
    }
    close(p[0]), close(p[1]);
    return NULL;
}

// None of it needs more stack than a system call does.
static void small_stack_files(struct end *e)
{
    if (e->role == C) {
        pthread_attr_t attr;
        pthread_t t;
        struct file_sender s = {e, memfd_create("file", MFD_CLOEXEC)};
        fill(scratch(), 50000, 0, 1);
        raw_write(s.file, (char *)scratch(), 50000);
        pthread_attr_init(&attr);
        T(pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN));
        T(pthread_create(&t, &attr, sends_files, &s));
        pthread_join(t, NULL);
        close(s.file);
    } else {
        expect(e, FD, 50000, 1);
        unsigned char buf[100];
        for (int i = 0; i < 8; i++) {
            fill(buf, 100, 0, i);
            put(FD, buf, 100);
            expect(e, FD, 100, i);
        }
    }
}

static struct end *signalled;
static void sends_in_handler(int sig)
{
    (void)sig;
    int saved = errno;
    hits += send(signalled->fd, "h", 1, MSG_DONTWAIT) == 1;
    errno = saved;
}

// A handler on a stack of its own uses the connection.
static void alternate_stack(struct end *e)
{
    if (e->role == C) {
        static char stack[1 << 15];
        stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack}, old;
        signalled = e;
        sigaltstack(&ss, &old);
        handle(SIGUSR1, sends_in_handler, SA_ONSTACK | SA_RESTART);
        struct pest pest;
        pest_start(e, &pest, SIGUSR1, 4, 1);
        T(recv(FD, (char[4]){0}, 4, 0));
        pest_end(&pest);
        sigaltstack(&old, NULL);
    } else {
        await_go(e);
        T(recv(FD, (char[4]){0}, 4, MSG_WAITALL));
        T(send(FD, "abc", 3, 0));
    }
}

struct receiver {
    int fd, got;
    char c;
    _Atomic pid_t tid;
    pthread_t thread;
};

static void *receives_one(void *arg)
{
    struct receiver *r = arg;
    r->tid = gettid();
    r->got = recv(r->fd, &r->c, 1, 0);
    return NULL;
}

static void await_receiver(struct end *e, struct receiver *r)
{
    MUST(pthread_create(&r->thread, NULL, receives_one, r));
    while (!r->tid)
        sched_yield();
    await_sleep(e, getpid(), r->tid);
}

// A thread goes on receiving on a connection that another has closed; its return says nothing
// about the one that was made meanwhile.
static void closed_under_receiver(struct end *e)
{
    struct receiver a = {0}, b = {0};
    int first = -1;
    AT(C) {
        first = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(first, e->fam, e->port));
    }
    AT(S) {
        a.fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        await_receiver(e, &a);
        close(a.fd);
    }
    AT(C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    AT(C) T(send(first, "x", 1, 0));
    AT(S) {
        MUST(pthread_join(a.thread, NULL));
        T(poll(&(struct pollfd){FD, POLLIN, 0}, 1, 50));
        b.fd = FD;
        await_receiver(e, &b);
    }
    AT(C) T(send(FD, "y", 1, 0));
    AT(S) {
        MUST(pthread_join(b.thread, NULL));
        say(e, "%d %c, %d %c", a.got, a.c, b.got, b.c);
    }
    AT(C) close(first);
}

static void *receives_some(void *arg)
{
    struct receiver *r = arg;
    char buf[8];
    r->tid = gettid();
    r->got = recv(r->fd, buf, sizeof buf, 0);
    r->c = r->got > 0 ? buf[0] : '-';
    return NULL;
}

// A thread receives while another one asks for more at a time: less does not wake it, but a signal has it return what there is.
static void low_water_under_receiver(struct end *e)
{
    struct receiver r = {.fd = FD};
    int least = 5;
    if (e->role == S) {
        handle(SIGUSR1, count_hit, 0);
        MUST(pthread_create(&r.thread, NULL, receives_some, &r));
        while (!r.tid)
            nap();
        await_sleep(e, getpid(), r.tid);
        T(setsockopt(FD, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least));
        await_sleep(e, getpid(), r.tid);
        go(e);
        await_bytes(e, FD, 2);
        await_sleep(e, getpid(), r.tid);
        pthread_kill(r.thread, SIGUSR1);
        MUST(pthread_join(r.thread, NULL));
        say(e, "%d %c", r.got, r.c);
    } else {
        await_go(e);
        T(send(FD, "ab", 2, 0));
    }
}

DIFF_MAIN(CASE(low_water_under_receiver, TWO | COLD), CASE(framed, TWO | ALL | COLD), CASE(several_receivers, TWO | COLD), CASE(full_duplex, TWO | COLD),
          CASE(threads_that_leave, TWO | COLD), CASE(own_connections, SPLIT | BARE | ALL),
          CASE(receiver_asleep, TWO | COLD), CASE(replaced_under_receiver, TWO | COLD), CASE(own_descriptors, COLD | APART),
          CASE(file_at_unshared_number, COLD | APART), CASE(file_at_closed_number, COLD | APART),
          CASE(shut_down_under_sender, TWO | BARE | COLD | STEADY), CASE(two_sleepers, TWO | COLD), CASE(small_stack, TWO | COLD),
          CASE(small_stack_files, TWO | COLD), CASE(alternate_stack, TWO | COLD), CASE(closed_under_receiver, BARE))
