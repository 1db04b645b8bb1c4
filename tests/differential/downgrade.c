// A connection goes back to plain TCP in the middle of its life: streams of the
// C library on it, and programs without libshunt that inherit it.
// needs: lending
// path: shunted
// timeout: 90
#include "diff.h"
#include "plain.h"

// ---- A stream --------------------------------------------------------------

// `theirs` bytes of the peer lie unread, and `ours` at the peer, when the
// stream comes; then it is used, and closed, and the connection goes on.
static void stream_on(struct end *e, int has_theirs, size_t theirs, int has_ours, size_t ours)
{
    FILE *in = NULL, *out = NULL;
    if (has_theirs) {
        AT(C) theirs = send_some(e, theirs, 1);
        share(e, C, &theirs, sizeof theirs);
    }
    if (has_ours) {
        AT(S) ours = send_some(e, ours, 2);
        share(e, S, &ours, sizeof ours);
    }
    AT(S) {
        in = fdopen(dup(FD), "r");
        out = fdopen(dup(FD), "w");
        if (has_theirs)
            expect_stream(e, in, theirs, 1);
    }
    AT(C) {
        if (has_ours)
            drain(e, FD, ours, 2);
        produce(e, FD, 1000, 3);
    }
    AT(S) {
        expect_stream(e, in, 1000, 3);
        produce_stream(e, out, 1000, 4);
    }
    AT(C) expect(e, FD, 1000, 4);
    AT(S) {
        T(fclose(in));
        T(fclose(out));
    }
    goes_on(e);
}
static void stream_idle(struct end *e) { stream_on(e, 0, 0, 0, 0); }
static void stream_few_theirs(struct end *e) { stream_on(e, 1, FEW, 0, 0); }
static void stream_much_theirs(struct end *e) { stream_on(e, 1, MUCH, 0, 0); }
static void stream_full_theirs(struct end *e) { stream_on(e, 1, FULL, 0, 0); }
static void stream_few_ours(struct end *e) { stream_on(e, 0, 0, 1, FEW); }
static void stream_much_ours(struct end *e) { stream_on(e, 0, 0, 1, MUCH); }
static void stream_full_ours(struct end *e) { stream_on(e, 0, 0, 1, FULL); }
static void stream_few_both(struct end *e) { stream_on(e, 1, FEW, 1, FEW); }
static void stream_much_both(struct end *e) { stream_on(e, 1, MUCH, 1, MUCH); }
static void stream_full_both(struct end *e) { stream_on(e, 1, FULL, 1, FULL); }

// The peer reads none of ours until the stream has written more.
static void stream_writes_behind(struct end *e)
{
    FILE *out = NULL;
    AT(S) {
        produce(e, FD, MUCH, 1);
        out = fdopen(dup(FD), "w");
        produce_stream(e, out, 1000, 2);
        produce(e, FD, 1000, 3);
    }
    AT(C) {
        expect(e, FD, MUCH, 1);
        expect(e, FD, 1000, 2);
        expect(e, FD, 1000, 3);
    }
    AT(S) T(fclose(out));
    goes_on(e);
}

// Part of what waits is read before, part by the stream.
static void stream_in_the_middle(struct end *e)
{
    unsigned char buf[1000];
    AT(C) produce(e, FD, 50000, 1);
    AT(S) {
        T(get(FD, buf, 1000));
        say(e, "%ld", check(buf, 1000, 0, 1));
        T(recv(FD, buf, 10, MSG_PEEK));
        FILE *in = fdopen(dup(FD), "r");
        long bad = -1;
        for (int i = 1; i < 50 && bad < 0; i++) {
            if (fread(buf, 1, 1000, in) != 1000)
                say(e, "short");
            bad = check(buf, 1000, i * 1000, 1);
        }
        say(e, "%ld", bad);
        T(fclose(in));
    }
    goes_on(e);
}

static void both_ends(struct end *e, size_t n)
{
    // Each role's own; the case is for two.
    produce(e, FD, n, e->role);
    meet(e);
    FILE *in = fdopen(dup(FD), "r"), *out = fdopen(dup(FD), "w");
    expect_stream(e, in, n, !e->role);
    produce_stream(e, out, 5000, 3 + e->role);
    expect_stream(e, in, 5000, 3 + !e->role);
    T(fclose(in));
    T(fclose(out));
    meet(e);
    goes_on(e);
}
static void streams_at_both_ends(struct end *e) { both_ends(e, FEW); }
static void streams_at_both_ends_much(struct end *e) { both_ends(e, MUCH); }

// ---- The peer sleeps -------------------------------------------------------

enum sleep { IN_RECV, IN_POLL, IN_SELECT, IN_LEVEL, IN_EDGE, IN_ONESHOT };

static void sleeps(struct end *e, enum sleep how)
{
    struct pollfd p = {FD, POLLIN, 0};
    struct epoll_event ev = {EPOLLIN, {.u32 = 7}}, got = {0};
    fd_set set;
    int ep;
    switch (how) {
    case IN_RECV:
        return;
    case IN_POLL:
        T(poll(&p, 1, -1));
        say(e, "%s", events(p.revents));
        return;
    case IN_SELECT:
        FD_ZERO(&set);
        FD_SET(FD, &set);
        T(select(FD + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(FD, &set));
        return;
    case IN_LEVEL:
    case IN_EDGE:
    case IN_ONESHOT:
        ev.events |= how == IN_EDGE ? EPOLLET : how == IN_ONESHOT ? EPOLLONESHOT : 0;
        ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        T(epoll_wait(ep, &got, 1, -1));
        say(e, "%s %u", events(got.events), got.data.u32);
        T(epoll_wait(ep, &got, 1, 0) == (how == IN_LEVEL));
        close(ep);
        return;
    }
}

// It must not be woken by the change as such, nor sleep through what comes.
static void asleep(struct end *e, enum sleep how, int by_program)
{
    char buf[16] = "";
    if (e->role == C) {
        will_block(e);
        sleeps(e, how);
        T(recv(FD, buf, 5, MSG_WAITALL));
        say(e, "%.5s", buf);
        T(send(FD, "answer", 6, 0));
        go(e);
    } else {
        await_blocked(e);
        if (by_program) {
            struct plain p = PLAIN(FD);
            await_sleep(e, e->peer_pid, e->peer_tid);
            tell_it(e, &p, SEND, 5, 1);
            await_go(e);
            plain_end(e, &p);
            T(recv(FD, buf, 6, MSG_WAITALL));
        } else {
            FILE *in = fdopen(dup(FD), "r"), *out = fdopen(dup(FD), "w");
            await_sleep(e, e->peer_pid, e->peer_tid);
            T(fputs("hello", out) >= 0);
            T(fflush(out));
            await_go(e);
            T(fread(buf, 1, 6, in));
            fclose(in), fclose(out);
        }
        say(e, "%.6s", buf);
    }
    meet(e);
    goes_on(e);
}
static void peer_in_recv(struct end *e) { asleep(e, IN_RECV, 0); }
static void peer_in_poll(struct end *e) { asleep(e, IN_POLL, 0); }
static void peer_in_select(struct end *e) { asleep(e, IN_SELECT, 0); }
static void peer_in_level(struct end *e) { asleep(e, IN_LEVEL, 0); }
static void peer_in_edge(struct end *e) { asleep(e, IN_EDGE, 0); }
static void peer_in_oneshot(struct end *e) { asleep(e, IN_ONESHOT, 0); }
static void program_peer_in_recv(struct end *e) { asleep(e, IN_RECV, 1); }
static void program_peer_in_poll(struct end *e) { asleep(e, IN_POLL, 1); }
static void program_peer_in_level(struct end *e) { asleep(e, IN_LEVEL, 1); }
static void program_peer_in_edge(struct end *e) { asleep(e, IN_EDGE, 1); }

// The peer sleeps in a send that has no room.
static void peer_in_send(struct end *e)
{
    size_t n = 0;
    if (e->role == C)
        n = stuff(e, FD, 1);
    share(e, C, &n, sizeof n);
    if (e->role == C) {
        will_block(e);
        produce(e, FD, 300000, 2);
        say(e, "sent");
    } else {
        await_blocked(e);
        FILE *in = fdopen(dup(FD), "r");
        expect_stream(e, in, n, 1);
        expect_stream(e, in, 300000, 2);
        fclose(in);
    }
    meet(e);
    goes_on(e);
}

// ---- A program -------------------------------------------------------------

static void program_on(struct end *e, int has_theirs, size_t theirs, int has_ours, size_t ours)
{
    struct plain p = {-1, -1, ""};
    if (has_theirs) {
        AT(C) theirs = send_some(e, theirs, 1);
        share(e, C, &theirs, sizeof theirs);
    }
    if (has_ours) {
        AT(S) ours = send_some(e, ours, 2);
        share(e, S, &ours, sizeof ours);
    }
    AT(S) {
        p = PLAIN(FD);
        if (has_theirs)
            tell_it(e, &p, RECEIVE, theirs, 1);
    }
    AT(C) {
        if (has_ours)
            drain(e, FD, ours, 2);
        produce(e, FD, 1000, 3);
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 1000, 3);
        tell_it(e, &p, SEND, 1000, 4);
    }
    AT(C) expect(e, FD, 1000, 4);
    AT(S) plain_end(e, &p);
    goes_on(e);
}
static void program_idle(struct end *e) { program_on(e, 0, 0, 0, 0); }
static void program_few_theirs(struct end *e) { program_on(e, 1, FEW, 0, 0); }
static void program_much_theirs(struct end *e) { program_on(e, 1, MUCH, 0, 0); }
static void program_full_theirs(struct end *e) { program_on(e, 1, FULL, 0, 0); }
static void program_few_ours(struct end *e) { program_on(e, 0, 0, 1, FEW); }
static void program_much_ours(struct end *e) { program_on(e, 0, 0, 1, MUCH); }
static void program_full_ours(struct end *e) { program_on(e, 0, 0, 1, FULL); }
static void program_few_both(struct end *e) { program_on(e, 1, FEW, 1, FEW); }
static void program_much_both(struct end *e) { program_on(e, 1, MUCH, 1, MUCH); }
static void program_full_both(struct end *e) { program_on(e, 1, FULL, 1, FULL); }

// Both ends hand the connection to programs, with bytes under way.
static void programs_at_both_ends(struct end *e)
{
    struct plain s = {-1, -1, ""}, c = s;
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) produce(e, FD, MUCH, 2);
    AT(C) c = PLAIN(FD);
    AT(S) s = PLAIN(FD);
    AT(C) tell_it(e, &c, RECEIVE, MUCH, 2);
    AT(S) tell_it(e, &s, RECEIVE, MUCH, 1);
    AT(C) tell_it(e, &c, SEND, 1000, 3);
    AT(S) tell_it(e, &s, RECEIVE, 1000, 3);
    AT(S) plain_end(e, &s);
    AT(C) plain_end(e, &c);
    goes_on(e);
}

// The program may touch nothing: what waits is still there for its parent.
static void program_looks_away(struct end *e)
{
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        produce(e, FD, MUCH, 2);
        struct plain p = PLAIN(FD);
        plain_end(e, &p);
        expect(e, FD, MUCH, 1);
    }
    AT(C) expect(e, FD, MUCH, 2);
    goes_on(e);
}

// Program and parent share the connection in strict turns.
static void in_turns(struct end *e, int rounds, int one_program)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    for (int i = 0; i < rounds; i++) {
        AT(C) produce(e, FD, 700, 2 * i);
        AT(S) {
            if (i == 0 || !one_program)
                p = plain_on(e, FD, THERE, e->fam + i);
            tell_it(e, &p, RECEIVE, 700, 2 * i);
            tell_it(e, &p, SEND, 600, 2 * i + 1);
            if (!one_program)
                plain_end(e, &p);
            produce(e, FD, 300, 500 + i);
        }
        AT(C) {
            expect(e, FD, 600, 2 * i + 1);
            expect(e, FD, 300, 500 + i);
            produce(e, FD, 200, 600 + i);
        }
        AT(S) expect(e, FD, 200, 600 + i);
    }
    AT(S) if (one_program) plain_end(e, &p);
    goes_on(e);
}
static void turns_with_a_program(struct end *e) { in_turns(e, 10, 1); }
static void twenty_programs(struct end *e) { in_turns(e, 20, 0); }

// It outlives the parent's copy.
static void program_inherits_all(struct end *e)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        produce(e, FD, MUCH, 2);
        p = PLAIN(FD);
        T(close(FD));
        FD = -1;
        tell_it(e, &p, RECEIVE, MUCH, 1);
        tell_it(e, &p, SEND, MUCH, 3);
    }
    AT(C) {
        expect(e, FD, MUCH, 2);
        expect(e, FD, MUCH, 3);
        produce(e, FD, 32, 4);
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 32, 4);
        plain_end(e, &p);
    }
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}

// As standard input, output and error; parent's own ones are left alone.
static void standard_descriptors(struct end *e)
{
    for (int as = 0; as < 3; as++) {
        struct plain p = {-1, -1, ""};
        AT(C) produce(e, FD, 5000, as);
        AT(S) {
            p = plain_on(e, FD, as, e->fam + as);
            tell_it(e, &p, RECEIVE, 5000, as);
            tell_it(e, &p, SEND, 5000, as + 10);
            plain_end(e, &p);
        }
        AT(C) expect(e, FD, 5000, as + 10);
    }
    goes_on(e);
}

// The connection is our own standard input and output when the program comes.
static void onto_standard(struct end *e)
{
    if (e->role == S) {
        await_bytes(e, FD, 10);
        int in = MUST(fcntl(0, F_DUPFD_CLOEXEC, 500)), out = MUST(fcntl(1, F_DUPFD_CLOEXEC, 500));
        MUST(dup2(FD, 0));
        MUST(dup2(FD, 1));
        struct plain p = plain_on(e, 0, 0, e->fam);
        order(&p, RECEIVE, 10, 1);
        struct report r;
        get(p.leash, &r, sizeof r);
        T(write(1, "first", 5));
        MUST(dup2(in, 0));
        MUST(dup2(out, 1));
        close(in), close(out);
        say(e, "%s", r.text);
        plain_end(e, &p);
    } else {
        char buf[8] = "";
        produce(e, FD, 10, 1);
        T(recv(FD, buf, 5, MSG_WAITALL));
        say(e, "%.5s", buf);
    }
    meet(e);
    goes_on(e);
}

// Ordinary programs that know nothing of leashes.
static void runs_by(struct end *e, const posix_spawn_file_actions_t *acts, char *const argv[], char **env)
{
    pid_t pid;
    int status = 0;
    if (posix_spawnp(&pid, argv[0], acts, NULL, argv, env))
        say(e, "not spawned");
    else
        MUST(waitpid(pid, &status, 0));
    say(e, "exited with %d", WEXITSTATUS(status));
}

static void on_number(posix_spawn_file_actions_t *acts, int number)
{
    posix_spawn_file_actions_init(acts);
    posix_spawn_file_actions_adddup2(acts, number, 0);
    posix_spawn_file_actions_adddup2(acts, number, 1);
}

static void runs(struct end *e, char *const argv[], char **env)
{
    posix_spawn_file_actions_t acts;
    on_number(&acts, FD);
    runs_by(e, &acts, argv, env);
    posix_spawn_file_actions_destroy(&acts);
}

static void head(struct end *e)
{
    AT(C) produce(e, FD, 5000, 1);
    AT(S) {
        char *argv[] = {"head", "-c", "5000", NULL};
        produce(e, FD, MUCH, 2);
        runs(e, argv, plain_environment());
    }
    AT(C) {
        expect(e, FD, MUCH, 2);
        expect(e, FD, 5000, 1);
    }
    goes_on(e);
}

// The actions name a number that the connection gets only later.
static void head_by_older_actions(struct end *e)
{
    enum { NUMBER = 600 };
    char *argv[] = {"head", "-c", "5000", NULL};
    posix_spawn_file_actions_t acts;
    AT(C) produce(e, FD, 5000, 1);
    AT(S) {
        on_number(&acts, NUMBER);
        MUST(dup3(FD, NUMBER, O_CLOEXEC));
        runs_by(e, &acts, argv, plain_environment());
        posix_spawn_file_actions_destroy(&acts);
        close(NUMBER);
    }
    AT(C) expect(e, FD, 5000, 1);
    goes_on(e);
}

// The actions are moved, as a function does that returns them.
static void head_by_moved_actions(struct end *e)
{
    char *argv[] = {"head", "-c", "5000", NULL};
    AT(C) produce(e, FD, 5000, 1);
    AT(S) {
        posix_spawn_file_actions_t first, second;
        MUST(fcntl(FD, F_SETFD, FD_CLOEXEC));
        on_number(&first, FD);
        second = first;
        runs_by(e, &second, argv, plain_environment());
        posix_spawn_file_actions_destroy(&second);
    }
    AT(C) expect(e, FD, 5000, 1);
    goes_on(e);
}

// A program with libshunt becomes one without.
static void head_by_env(struct end *e)
{
    char buf[16] = "";
    AT(C) produce(e, FD, 5000, 1);
    AT(S) {
        char *argv[] = {"env", "-u", "LD_PRELOAD", "head", "-c", "5000", NULL};
        runs(e, argv, environ);
    }
    AT(C) expect(e, FD, 5000, 1);
    AT(S) {
        T(send(FD, "first", 5, 0));
        runs(e, (char *[]){"true", NULL}, environ);
    }
    AT(C) {
        T(get(FD, buf, 5));
        say(e, "%.5s", buf);
        T(send(FD, "abcde", 5, 0));
    }
    AT(S) {
        char *argv[] = {"sh", "-c", "env -u LD_PRELOAD head -c 3; head -c 2; env -u LD_PRELOAD echo end", NULL};
        runs(e, argv, environ);
    }
    AT(C) {
        T(get(FD, buf, 9));
        say(e, "%.8s", buf);
    }
    goes_on(e);
}

// The role itself becomes the program: a child with the connection alone.
static void cat(struct end *e)
{
    char *argv[] = {"cat", NULL};
    if (e->role == S) {
        produce(e, FD, MUCH, 2);
        await_go(e);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            dup2(FD, 0);
            dup2(FD, 1);
            execve("/bin/cat", argv, plain_environment());
            _exit(99);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        produce(e, FD, 5000, 1);
        go(e);
        expect(e, FD, MUCH, 2);
        expect(e, FD, 5000, 1);
        for (int i = 0; i < 20; i++) {
            produce(e, FD, 100, i);
            expect(e, FD, 100, i);
        }
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

PLAIN_MAIN(CASE(stream_idle, COLD | ALL), CASE(stream_few_theirs, COLD | ALL), CASE(stream_much_theirs, COLD),
           CASE(stream_full_theirs, 0), CASE(stream_few_ours, COLD), CASE(stream_much_ours, COLD),
           CASE(stream_full_ours, 0), CASE(stream_few_both, COLD), CASE(stream_much_both, COLD),
           CASE(stream_full_both, COLD), CASE(stream_writes_behind, COLD), CASE(stream_in_the_middle, COLD),
           CASE(streams_at_both_ends, TWO | COLD), CASE(streams_at_both_ends_much, TWO | COLD),
           CASE(peer_in_recv, TWO | COLD), CASE(peer_in_poll, TWO | COLD), CASE(peer_in_select, TWO),
           CASE(peer_in_level, TWO | COLD), CASE(peer_in_edge, TWO | COLD), CASE(peer_in_oneshot, TWO),
           CASE(program_peer_in_recv, TWO | COLD), CASE(program_peer_in_poll, TWO), CASE(program_peer_in_level, TWO),
           CASE(program_peer_in_edge, TWO | COLD), CASE(peer_in_send, TWO), CASE(program_idle, COLD | ALL),
           CASE(program_few_theirs, COLD | ALL), CASE(program_much_theirs, COLD), CASE(program_full_theirs, 0),
           CASE(program_few_ours, COLD), CASE(program_much_ours, COLD), CASE(program_full_ours, 0),
           CASE(program_few_both, COLD), CASE(program_much_both, COLD), CASE(program_full_both, COLD),
           CASE(programs_at_both_ends, COLD), CASE(program_looks_away, COLD), CASE(turns_with_a_program, COLD),
           CASE(twenty_programs, COLD), CASE(program_inherits_all, SPLIT | COLD), CASE(standard_descriptors, COLD),
           CASE(onto_standard, SPLIT | COLD), CASE(head, COLD), CASE(head_by_older_actions, COLD), CASE(head_by_moved_actions, COLD), CASE(head_by_env, COLD), CASE(cat, SPLIT | COLD))
