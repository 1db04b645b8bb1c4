// Very many short connections: connect, ask, answer, close.
// path: shunted
// timeout: 60
#include "diff.h"

static void serve(struct end *e, int count, int server_first)
{
    int good = 0;
    for (int i = 0; i < count; i++) {
        char buf[64];
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        good += get(fd, buf, 32) == 32 && check(buf, 32, 0, 5) < 0;
        fill(buf, 64, 0, 6);
        good += put(fd, buf, 64) == 64;
        if (!server_first)
            good += recv(fd, buf, 1, 0) == 0;
        close(fd);
    }
    say(e, "%d good", good);
}

static void *ask(void *arg)
{
    struct end *e = arg;
    long good = 0;
    for (int i = 0; i < 125; i++) {
        char buf[64];
        int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
        good += fd >= 0 && tcp_connect(fd, e->fam, e->port) == 0;
        fill(buf, 32, 0, 5);
        good += put(fd, buf, 32) == 32;
        good += get(fd, buf, 64) == 64 && check(buf, 64, 0, 6) < 0;
        if (e->warm) // used here to say who closes first
            good += recv(fd, buf, 1, 0) == 0;
        close(fd);
    }
    return (void *)good;
}

static void client_closes(struct end *e)
{
    if (e->role == S)
        serve(e, 500, 0);
    else {
        long good = 0;
        e->warm = 0;
        for (int i = 0; i < 4; i++)
            good += (long)ask(e);
        say(e, "%ld good", good);
    }
    meet(e);
}

static void server_closes(struct end *e)
{
    if (e->role == S)
        serve(e, 500, 1);
    else {
        long good = 0;
        for (int i = 0; i < 4; i++)
            good += (long)ask(e);
        say(e, "%ld good", good);
    }
    meet(e);
}

static void by_threads(struct end *e)
{
    if (e->role == S) {
        serve(e, 500, 1);
    } else {
        pthread_t t[4];
        long good = 0;
        for (int i = 0; i < 4; i++)
            MUST(pthread_create(&t[i], NULL, ask, e));
        for (int i = 0; i < 4; i++) {
            void *r;
            pthread_join(t[i], &r);
            good += (long)r;
        }
        say(e, "%ld good", good);
    }
    meet(e);
}

// Connections that stay open while others come and go.
static void among_long_ones(struct end *e)
{
    char buf[64];
    for (int i = 0; i < 100; i++) {
        if (e->role == C) {
            int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            MUST(tcp_connect(fd, e->fam, e->port));
            put(fd, "short", 5);
            put(FD, "long", 4);
            if (get(fd, buf, 5) != 5 || get(FD, buf, 4) != 4)
                say(e, "lost at %d", i);
            close(fd);
        } else {
            int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
            if (get(fd, buf, 5) != 5 || get(FD, buf, 4) != 4)
                say(e, "lost at %d", i);
            put(FD, "long", 4);
            put(fd, "short", 5);
            recv(fd, buf, 1, 0);
            close(fd);
        }
    }
    say(e, "done");
}

DIFF_MAIN(CASE(client_closes, BARE | TWO | ALL), CASE(server_closes, BARE | TWO | ALL),
          CASE(by_threads, BARE | TWO), CASE(among_long_ones, TWO | ALL))
