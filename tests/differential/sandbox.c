// Processes that may do little: limits of resources, and filters of system calls.
// path: shunted
// timeout: 60
#include "diff.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)
#define TO(number, value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), ANSWER(value)

static void confine(struct sock_filter *filter, size_t count)
{
    struct sock_fprog program = {count, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(97);
}
#define CONFINE(...) \
    do { \
        struct sock_filter filter_[] = {__VA_ARGS__}; \
        confine(filter_, sizeof filter_ / sizeof *filter_); \
    } while (0)
#define KILL(number) TO(number, SECCOMP_RET_KILL)
#define ALLOW(number) TO(number, SECCOMP_RET_ALLOW)

static void limit(int resource, rlim_t bytes)
{
    if (setrlimit(resource, &(struct rlimit){bytes, bytes}))
        _exit(96);
}

// By nothing but `read`.
static int all_comes(int fd, char *buf, size_t n, unsigned seed)
{
    return get(fd, buf, n) == n && check(buf, n, 0, seed) < 0;
}

// OpenSSH's way: a child without a free descriptor, and with no calls for sockets but read and
// write, serves what its parent has accepted.
static void few_calls(struct end *e)
{
    static char buf[4096];
    if (e->role == C) {
        produce(e, FD, 1500, 1);
        expect(e, FD, 1010, 2);
        return;
    }
    await_bytes(e, FD, 1500);
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        limit(RLIMIT_NOFILE, 1);
        CONFINE(NUMBER, KILL(SYS_sendmsg), KILL(SYS_recvmsg), KILL(SYS_sendto), KILL(SYS_recvfrom), KILL(SYS_socket),
            KILL(SYS_connect), KILL(SYS_openat), ANSWER(SECCOMP_RET_ALLOW));
        int good = all_comes(FD, buf, 1500, 1);
        fill(buf, 1010, 0, 2);
        _exit(!good || write(FD, buf, 1010) != 1010);
    }
    reap(e, &kid);
}

// The same where hardly another call is allowed: the child was in the middle of a conversation.
static void read_and_write_only(struct end *e)
{
    static char buf[4096];
    // Enough for the default mode, too.
    for (int i = 0; i < 50; i++) {
        if (e->role == C)
            put(FD, buf, 1);
        get(FD, buf, 1);
        if (e->role == S)
            put(FD, buf, 1);
    }
    if (e->role == C) {
        produce(e, FD, 1500, 1);
        expect(e, FD, 1000, 2);
        produce(e, FD, 700, 3);
        expect(e, FD, 10, 4);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        int good = 0;
        limit(RLIMIT_NOFILE, 1);
        CONFINE(NUMBER, ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_close), ALLOW(SYS_poll),
            ALLOW(SYS_ppoll), ALLOW(SYS_getpid), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_futex), ALLOW(SYS_brk),
            ALLOW(SYS_mmap), ALLOW(SYS_munmap), ANSWER(SECCOMP_RET_KILL));
        good += all_comes(FD, buf, 1500, 1);
        fill(buf, 1000, 0, 2);
        good += write(FD, buf, 1000) == 1000;
        good += all_comes(FD, buf, 700, 3);
        fill(buf, 10, 0, 4);
        good += write(FD, buf, 10) == 10;
        _exit(good != 4);
    }
    reap(e, &kid);
}

// Statistics are no reason to make a call that the program has forbidden itself.
static void no_opening(struct end *e)
{
    AT(S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            limit(RLIMIT_NOFILE, 1);
            CONFINE(NUMBER, KILL(SYS_openat), KILL(SYS_prctl), ANSWER(SECCOMP_RET_ALLOW));
            exit(0);
        }
        reap(e, &kid);
    }
}

// Nor is any other call that they take.
static void no_asking(struct end *e)
{
    AT(S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            CONFINE(NUMBER, KILL(SYS_getpid), KILL(SYS_prctl), KILL(SYS_fstat), KILL(SYS_getsockopt), KILL(SYS_write),
                KILL(SYS_rt_sigprocmask), ANSWER(SECCOMP_RET_ALLOW));
            exit(0);
        }
        reap(e, &kid);
    }
}

enum { LARGE = 100000 };

// Many small messages, and one that is large for a ring that begins with a page.
static int pings(int fd)
{
    static char large[LARGE];
    char buf[64];
    int good = 0;
    for (int i = 0; i < 200; i++) {
        fill(buf, sizeof buf, i, 1);
        put(fd, buf, sizeof buf);
        good += get(fd, buf, sizeof buf) == sizeof buf && check(buf, sizeof buf, i, 1) < 0;
    }
    fill(large, LARGE, 0, 3);
    return put(fd, large, LARGE) == LARGE ? good : -1;
}

static void serves(struct end *e)
{
    char buf[64];
    FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < 200 && get(FD, buf, sizeof buf) == sizeof buf; i++)
        put(FD, buf, sizeof buf);
    expect(e, FD, LARGE, 3);
}

// A limit of files is none of sockets.
static void small_files(struct end *e)
{
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            signal(SIGXFSZ, SIG_DFL);
            limit(RLIMIT_FSIZE, 100000);
            int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd, e->fam, e->port));
            say(e, "%d good", pings(fd));
            _exit(0);
        }
        reap(e, &kid);
    } else {
        serves(e);
    }
}

// Under a filter the kid becomes a program that connects, with `preload` as it is, or as the library leaves it.
static void successor(struct end *e, struct sock_filter *filter, size_t count, char *preload)
{
    char family[16], port[16];
    snprintf(family, sizeof family, "%d", e->fam);
    snprintf(port, sizeof port, "%d", e->port);
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        confine(filter, count);
        if (preload)
            setenv("LD_PRELOAD", preload, 1);
        execl("/proc/self/exe", "unadvised", "unadvised", family, port, NULL);
        _exit(99);
    }
    reap(e, &kid);
}

// A filter that was there before the library refuses `madvise`.
static void no_advice(struct end *e)
{
    if (e->role == C) {
        struct sock_filter filter[] = {NUMBER, TO(SYS_madvise, SECCOMP_RET_ERRNO | EPERM), ANSWER(SECCOMP_RET_ALLOW)};
        char *preload = getenv("LD_PRELOAD");
        successor(e, filter, sizeof filter / sizeof *filter, preload ? strdup(preload) : NULL);
    } else {
        serves(e);
    }
}

// One that came with the program ends whoever makes a call that only the library makes.
static void deadly_calls(struct end *e)
{
    if (e->role == C) {
        struct sock_filter filter[] = {NUMBER, KILL(SYS_memfd_create), KILL(SYS_membarrier), KILL(SYS_ftruncate),
            ANSWER(SECCOMP_RET_ALLOW)};
        successor(e, filter, sizeof filter / sizeof *filter, NULL);
    } else {
        serves(e);
    }
}

static int unadvised(int family, int port)
{
    int fd = tcp_socket(family, SOCK_CLOEXEC);
    alarm(15);
    return tcp_connect(fd, family, port) || pings(fd) != 200;
}

static const struct test all_tests[] = {
    CASE(few_calls, SPLIT | COLD), CASE(read_and_write_only, SPLIT | COLD), CASE(no_opening, SPLIT | COLD), CASE(no_asking, SPLIT | COLD),
    CASE(small_files, SPLIT | BARE), CASE(no_advice, SPLIT | BARE),
    CASE(deadly_calls, SPLIT | BARE),
};

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "unadvised"))
        return unadvised(atoi(argv[2]), atoi(argv[3]));
    return diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests);
}
