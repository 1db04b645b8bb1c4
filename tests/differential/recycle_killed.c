// Processes are killed in the middle of short connections. With `--recycle` that is at any step of putting one aside, offering it,
// taking it, and giving it up (`--hesitant` has them pause between these): whoever is left hears of the end, goes on, and keeps nothing.
// path: free
// timeout: 90
#include "diff.h"

// In one run.
enum { KILLS = 25 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

// Descriptors of this process.
static int descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all))
        count++;
    closedir(all);
    return count;
}

// Some time between nothing and 4 ms, by turns.
static void a_while(int i)
{
    struct timespec t = {0, i * 7919L % 400 * 10000};
    nanosleep(&t, NULL);
}

static void kill_child(struct end *e, pid_t child)
{
    kill(child, SIGKILL);
    MUST(waitpid(child, NULL, 0));
}

// One question, or none, and the end. 0: the server has ended before.
static int call_once(struct end *e, int port, char c)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC)), done = 0;
    char reply = 0;
    if (tcp_connect(fd, e->fam, port) == 0)
        done = !c || (send(fd, &c, 1, MSG_NOSIGNAL) == 1 && get(fd, &reply, 1) == 1 && reply == c);
    close(fd);
    return done;
}

// Answers what it is asked, and waits for the end. Returns the last thing that it was asked.
static char serve_once(int fd)
{
    char c = 0, next;
    while (recv(fd, &next, 1, 0) == 1) {
        c = next;
        if (send(fd, &c, 1, MSG_NOSIGNAL) != 1)
            break;
    }
    close(fd);
    return c;
}

// Says so after a few calls.
static void call_for_ever(struct end *e, int port, int say_by)
{
    for (int i = 0;; i++) {
        call_once(e, port, i % 3 ? 'a' : 0);
        if (i == 3)
            MUST(write(say_by, "", 1));
    }
}

// After a while there are no more descriptors than there were, but for the few that a library opens for itself. Meanwhile this
// process calls, or waits for calls: what was kept can go.
static int await_descriptors(struct end *e, int fd, int port, int before)
{
    enum { FEW = 16 };
    struct pollfd p = {fd, POLLIN, 0};
    int more = descriptors() - before;
    for (long long end = now_ms() + PATIENCE_MS; more > FEW && now_ms() < end; more = descriptors() - before) {
        MUST(poll(&p, 1, 50));
        if (fd < 0)
            call_once(e, port, 0);
    }
    return differs(e, "many more descriptors", more > FEW ? more : 0, 0);
}

// Clients are killed one after the other. The server sees each of their connections end, and serves the next one.
static void clients(struct end *e)
{
    int port = 0, own = -1, wrong = 0, said[2];
    char c;
    if (e->role == S)
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 64, &port));
    share(e, S, &port, sizeof port);
    if (e->role == C) {
        MUST(pipe2(said, O_CLOEXEC));
        for (int i = 0; i < KILLS; i++) {
            pid_t child = MUST(fork());
            if (child == 0)
                call_for_ever(e, port, said[1]);
            MUST(read(said[0], &c, 1));
            a_while(i);
            kill_child(e, child);
        }
        close(said[0]);
        close(said[1]);
        wrong += differs(e, "the last", call_once(e, port, 'q'), 1);
        await_go(e);
    } else {
        serve_once(MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC)));
        int before = descriptors();
        while (serve_once(MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC))) != 'q')
            ;
        wrong += await_descriptors(e, own, port, before);
        MUST(close(own));
        go(e);
    }
    say(e, "wrong: %d", wrong);
}

// Servers are killed one after the other, which accept at the same listener. The client's calls are answered, or end.
static void servers(struct end *e)
{
    int port = 0, own = -1, wrong = 0;
    if (e->role == S)
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 64, &port));
    share(e, S, &port, sizeof port);
    if (e->role == S) {
        for (int i = 0; i < KILLS; i++) {
            pid_t child = MUST(fork());
            if (child == 0) {
                for (;;)
                    serve_once(MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC)));
            }
            await_go(e);
            a_while(i);
            kill_child(e, child);
        }
        go(e);
        while (serve_once(MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC))) != 'q')
            ;
        MUST(close(own));
    } else {
        int before = 0;
        for (int i = 0; i < KILLS; i++) {
            while (!call_once(e, port, 'a'))
                ;
            if (i == 0)
                before = descriptors();
            go(e);
            for (int n = 0; n < 4; n++)
                call_once(e, port, n % 2 ? 'a' : 0);
        }
        // There is no server left but the parent.
        await_go(e);
        while (!call_once(e, port, 'q'))
            ;
        wrong += await_descriptors(e, -1, port, before);
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(clients, BARE | SPLIT), CASE(servers, BARE | SPLIT))
