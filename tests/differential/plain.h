// A program that runs beside the test, with or without libshunt, and does with
// a connection what it is told: the connection is inherited by exec, or passed
// to it. Programs that use it have PLAIN_MAIN instead of DIFF_MAIN.
#ifndef PLAIN_H
#define PLAIN_H

#include <sys/prctl.h>

#include "pass.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#define SYS_pidfd_getfd 438
#endif

enum { LEASH = 900, THERE = 901 }; // its descriptors: the way to its master, the connection

enum deed { RECEIVE, SEND, END, SHUT, TAKE, GIVE, DROP, ECHO, COPY, TALLY, STUFF };
struct order {
    int deed;
    uint64_t n;
    uint32_t seed;
};
struct report {
    char text[96];
};

struct plain {
    pid_t pid;
    int leash;
    const char *title;
};

// ---- What it does ----------------------------------------------------------

static const char *receive_there(int fd, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    size_t done = 0;
    while (done < n) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        ssize_t r = recv(fd, buf, want, 0);
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLIN, 0};
            if (poll(&p, 1, PATIENCE_MS) == 0)
                return "in vain";
            continue;
        }
        if (r < 0)
            return errname(errno);
        if (r == 0)
            return "short";
        if (check(buf, r, done, seed) >= 0)
            return "garbled";
        done += r;
    }
    return "intact";
}

static const char *send_there(int fd, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    for (size_t done = 0; done < n; done += SCRATCH) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        fill(buf, want, done, seed);
        if (put(fd, buf, want) < want)
            return errname(errno);
    }
    return "ok";
}

static int echo_there(int fd, int rounds)
{
    unsigned char buf[32];
    int good = 0;
    for (int i = 0; i < rounds; i++) {
        good += get(fd, buf, 32) == 32 && check(buf, 32, i, 1) < 0;
        fill(buf, 32, i, 2);
        put(fd, buf, 32);
    }
    return good;
}

// Whether `n` bytes find room that nobody receives.
static int fit_there(int fd, size_t n)
{
    size_t done = 0;
    ssize_t sent;
    while (done < n && (sent = send(fd, scratch(), SCRATCH, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
        done += sent;
    return done >= n;
}

// How much somebody received who was not alone with that.
struct tally {
    long bytes, sum;
};

static struct tally tally_there(int fd)
{
    unsigned char buf[32];
    struct tally all = {0, 0};
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
        all.bytes += n;
        for (ssize_t i = 0; i < n; i++)
            all.sum += buf[i];
    }
    return all;
}

static void obey(int *fd, const struct order *o, struct report *r)
{
    char c;
    ssize_t n;
    switch (o->deed) {
    case RECEIVE:
        snprintf(r->text, sizeof r->text, "receives: %s", receive_there(*fd, o->n, o->seed));
        break;
    case SEND:
        snprintf(r->text, sizeof r->text, "sends: %s", send_there(*fd, o->n, o->seed));
        break;
    case END:
        n = recv(*fd, &c, 1, 0);
        snprintf(r->text, sizeof r->text, "end: %s", n == 0 ? "orderly" : n > 0 ? "there is more" : errname(errno));
        break;
    case SHUT:
        snprintf(r->text, sizeof r->text, "shuts down: %s", shutdown(*fd, SHUT_WR) ? errname(errno) : "ok");
        break;
    case TAKE:
        *fd = passed(LEASH);
        snprintf(r->text, sizeof r->text, "is given: %s", *fd >= 0 ? "ok" : "nothing");
        break;
    case GIVE:
        pass(LEASH, *fd);
        snprintf(r->text, sizeof r->text, "gives");
        break;
    case DROP:
        snprintf(r->text, sizeof r->text, "closes: %s", close(*fd) ? errname(errno) : "ok");
        *fd = -1;
        break;
    case ECHO:
        snprintf(r->text, sizeof r->text, "echoes: %d good", echo_there(*fd, o->n));
        break;
    case STUFF:
        snprintf(r->text, sizeof r->text, "%ld bytes fit: %d", (long)o->n, fit_there(*fd, o->n));
        break;
    case TALLY: {
        struct tally all = tally_there(*fd);
        snprintf(r->text, sizeof r->text, "%ld %ld", all.bytes, all.sum);
        break;
    }
    case COPY: { // of descriptor `seed` of process `n`
        int process = syscall(SYS_pidfd_open, (pid_t)o->n, 0);
        *fd = syscall(SYS_pidfd_getfd, process, o->seed, 0);
        snprintf(r->text, sizeof r->text, "copies: %s", *fd >= 0 ? "ok" : errname(errno));
        close(process);
        break;
    }
    }
}

// The whole program: argv is NAME, "plain", NUMBER OF THE CONNECTION.
static int plain_main(int argc, char **argv)
{
    struct order o;
    if (argc != 3 || strcmp(argv[1], "plain"))
        return -1;
    int fd = atoi(argv[2]);
    while (get(LEASH, &o, sizeof o) == sizeof o) {
        struct report r = {""};
        obey(&fd, &o, &r);
        put(LEASH, &r, sizeof r);
    }
    return 0;
}

// ---- Its master ------------------------------------------------------------

extern char **environ;

// The environment without libshunt. Leaked: cases are few.
__attribute__((noinline)) static char **plain_environment(void)
{
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **clean = calloc(n + 1, sizeof *clean);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) && strncmp(environ[i], "SHUNT", 5))
            clean[k++] = environ[i];
    return clean;
}

enum { BY_FORK, BY_VFORK, BY_SPAWN, WAYS, SHUNTED = 16 };

// Start the program with `fd` (or none, -1) as its descriptor `as`. Only calls
// that are safe after fork in a threaded program lie between fork and exec.
static struct plain plain_on(struct end *e, int fd, int as, unsigned way)
{
    int pair[2];
    char number[16];
    char *argv[] = {"plain", "plain", number, NULL};
    char **env = way & SHUNTED ? environ : plain_environment();
    struct plain p = {-1, -1, way & SHUNTED ? "other" : "plain"};
    way = (way & ~SHUNTED) % WAYS;
    snprintf(number, sizeof number, "%d", fd >= 0 ? as : -1);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    if (way == BY_SPAWN) {
        posix_spawn_file_actions_t acts;
        posix_spawn_file_actions_init(&acts);
        posix_spawn_file_actions_adddup2(&acts, pair[1], LEASH);
        if (fd >= 0)
            posix_spawn_file_actions_adddup2(&acts, fd, as);
        errno = posix_spawn(&p.pid, "/proc/self/exe", &acts, NULL, argv, env);
        if (errno)
            say(e, "not spawned: %s", errname(errno));
        posix_spawn_file_actions_destroy(&acts);
    } else {
        p.pid = way == BY_FORK ? fork() : vfork();
        if (p.pid == 0) {
            dup2(pair[1], LEASH);
            if (fd >= 0)
                dup2(fd, as);
            execve("/proc/self/exe", argv, env);
            _exit(99);
        }
    }
    close(pair[1]);
    p.leash = pair[0];
    return p;
}
#define PLAIN(fd) plain_on(e, fd, THERE, e->fam)

// Begin a deed; its report is awaited apart.
static void order(struct plain *p, enum deed deed, uint64_t n, unsigned seed)
{
    struct order o = {deed, n, seed};
    put(p->leash, &o, sizeof o);
}
static void await_report(struct end *e, struct plain *p)
{
    struct report r;
    if (get(p->leash, &r, sizeof r) == sizeof r)
        say(e, "%s %s", p->title, r.text);
    else
        say(e, "%s is gone", p->title);
}
static void tell_it(struct end *e, struct plain *p, enum deed deed, uint64_t n, unsigned seed)
{
    order(p, deed, n, seed);
    await_report(e, p);
}

// Pass it a connection; it takes it when it is told to.
__attribute__((unused)) static void give_to(struct end *e, struct plain *p, int fd)
{
    order(p, TAKE, 0, 0);
    pass(p->leash, fd);
    await_report(e, p);
}

// Let it end, and wait for that.
static void plain_end(struct end *e, struct plain *p)
{
    int status = 0;
    close(p->leash);
    MUST(waitpid(p->pid, &status, 0));
    if (status)
        say(e, "%s ended with %#x", p->title, status);
}

// ---- Amounts ---------------------------------------------------------------

enum { FEW = 10, MUCH = 100000, FULL = 0 };

// Send `n` bytes, or as many as fit; returns how many.
__attribute__((unused)) static size_t send_some(struct end *e, size_t n, unsigned seed)
{
    if (n == FULL)
        return stuff(e, FD, seed);
    produce(e, FD, n, seed);
    return n;
}

// Small messages leave at once, so that many turns take no time.
__attribute__((unused)) static void at_once(struct end *e)
{
    int on = 1;
    AT(C) MUST(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    AT(S) MUST(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

// ---- Streams of the C library ----------------------------------------------

__attribute__((unused)) static void expect_stream(struct end *e, FILE *f, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    size_t done = 0, r = 1;
    long bad = -1;
    while (done < n && bad < 0 && r > 0) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        r = fread(buf, 1, want, f);
        bad = check(buf, r, done, seed);
        done += r;
    }
    say(e, "stream reads: %s, %s", done == n ? "all" : "short", bad < 0 ? "intact" : "garbled");
}

__attribute__((unused)) static void produce_stream(struct end *e, FILE *f, size_t n, unsigned seed)
{
    unsigned char *buf = scratch();
    for (size_t done = 0; done < n; done += SCRATCH) {
        size_t want = n - done < SCRATCH ? n - done : SCRATCH;
        fill(buf, want, done, seed);
        if (fwrite(buf, 1, want, f) != want)
            say(e, "stream stops: %s", errname(errno));
    }
    T(fflush(f));
}

// ---- Afterwards ------------------------------------------------------------

// What is left of the connection is an ordinary one.
__attribute__((unused)) static void goes_on(struct end *e)
{
    char buf[8] = "";
    AT(C) T(send(FD, "more", 4, 0));
    AT(S) {
        T(recv(FD, buf, 4, MSG_WAITALL));
        say(e, "%.4s", buf);
        T(send(FD, "yes", 3, 0));
    }
    AT(C) {
        T(recv(FD, buf, 3, MSG_WAITALL));
        say(e, "%.3s", buf);
        T(recv(FD, buf, 1, MSG_DONTWAIT));
    }
    AT(S) T(recv(FD, buf, 1, MSG_DONTWAIT));
}

// The main of a program that may be called as the plain one.
#define PLAIN_MAIN(...) \
    static const struct test all_tests[] = {__VA_ARGS__}; \
    int main(int argc, char **argv) \
    { \
        int status = plain_main(argc, argv); \
        return status >= 0 ? status : diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests); \
    }

#endif
