// A thread forks while others connect, accept and talk: a fork may come at any moment of a
// connection's life.
// path: shunted
// timeout: 60
#include "diff.h"

enum { CONNECTIONS = 500, TURNS = 10 };

struct family {
    volatile int ends;
    void (*child)(void);
};

static void ends_at_once(void) {}

static void closes_all(void)
{
    for (int fd = 3; fd < 200; fd++)
        close(fd);
}

static void runs_another(void)
{
    closes_all();
    execl("/bin/true", "true", NULL);
}

static void *forks(void *of)
{
    struct family *family = of;
    while (!family->ends) {
        pid_t pid = fork();
        if (pid == 0) {
            family->child();
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
        usleep(300); // Else no connection is ever its parent's alone.
    }
    return NULL;
}

// An answer that never comes ends the case: its connection's ends are on two ways.
static int is_answered(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, 5000) == 1;
}

static int talks(int fd, int number)
{
    unsigned char out[64], in[64];
    for (int i = 0; i < TURNS; i++) {
        fill(out, sizeof out, number + i, 1);
        if (put(fd, out, sizeof out) != sizeof out || !is_answered(fd))
            return 0;
        if (get(fd, in, sizeof in) != sizeof in || memcmp(in, out, sizeof in))
            return 0;
    }
    shutdown(fd, SHUT_WR);
    return recv(fd, in, 1, 0) == 0;
}

static void beside(struct end *e, enum role forking, void (*child)(void))
{
    struct family family = {0, child};
    pthread_t thread;
    int good = 0;
    if (e->role == forking)
        MUST(pthread_create(&thread, NULL, forks, &family));
    for (int i = 0; i < CONNECTIONS && good == i; i++) {
        if (e->role == C) {
            int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd, e->fam, e->port));
            good += talks(fd, i);
            close(fd);
        } else {
            unsigned char buf[64];
            size_t n;
            int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            while ((n = get(fd, buf, sizeof buf)) == sizeof buf)
                put(fd, buf, n);
            good += n == 0;
            close(fd);
        }
    }
    say(e, "%d good", good);
    family.ends = 1;
    if (e->role == forking)
        pthread_join(thread, NULL);
}
static void connector_forks(struct end *e) { beside(e, C, ends_at_once); }
static void connector_forks_and_closes(struct end *e) { beside(e, C, closes_all); }
static void connector_forks_and_runs(struct end *e) { beside(e, C, runs_another); }
static void acceptor_forks(struct end *e) { beside(e, S, ends_at_once); }
static void acceptor_forks_and_closes(struct end *e) { beside(e, S, closes_all); }
static void acceptor_forks_and_runs(struct end *e) { beside(e, S, runs_another); }

DIFF_MAIN(CASE(connector_forks, SPLIT | BARE), CASE(connector_forks_and_closes, SPLIT | BARE),
          CASE(connector_forks_and_runs, SPLIT | BARE), CASE(acceptor_forks, SPLIT | BARE),
          CASE(acceptor_forks_and_closes, SPLIT | BARE), CASE(acceptor_forks_and_runs, SPLIT | BARE))
