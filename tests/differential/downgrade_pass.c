// A connection in the middle of its life is passed to other processes, with and
// without libshunt, over a Unix socket.
// needs: lending
// path: shunted
// timeout: 60
// variant: mmsg -DBY_MMSG
#include "diff.h"
#include "plain.h"

enum { KEEPS = 1, OTHER = 2 }; // the sender keeps its copy; the receiver has libshunt

// `theirs` bytes of the peer lie unread, and `ours` at the peer, when S passes
// its end on.
static void pass_on(struct end *e, size_t theirs, size_t ours, int how)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    AT(C) produce(e, FD, theirs, 1);
    AT(S) {
        produce(e, FD, ours, 2);
        p = plain_on(e, -1, -1, e->fam | (how & OTHER ? SHUNTED : 0));
        give_to(e, &p, FD);
        if (!(how & KEEPS)) {
            T(close(FD));
            FD = -1;
        }
        tell_it(e, &p, RECEIVE, theirs, 1);
    }
    AT(C) {
        drain(e, FD, ours, 2);
        produce(e, FD, 1000, 3);
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 1000, 3);
        tell_it(e, &p, SEND, 1000, 4);
    }
    AT(C) expect(e, FD, 1000, 4);
    if (!(how & KEEPS)) {
        AT(S) plain_end(e, &p);
        AT(C) T(recv(FD, (char[1]){0}, 1, 0));
        return;
    }
    // Both have it now, and take turns.
    for (int i = 0; i < 5; i++) {
        AT(C) produce(e, FD, 200, i);
        AT(S) {
            if (i & 1) {
                expect(e, FD, 200, i);
                tell_it(e, &p, SEND, 300, i);
            } else {
                tell_it(e, &p, RECEIVE, 200, i);
                produce(e, FD, 300, i);
            }
        }
        AT(C) expect(e, FD, 300, i);
    }
    AT(S) plain_end(e, &p);
    goes_on(e);
}
static void idle_kept(struct end *e) { pass_on(e, 0, 0, KEEPS); }
static void idle_closed(struct end *e) { pass_on(e, 0, 0, 0); }
static void few_kept(struct end *e) { pass_on(e, FEW, FEW, KEEPS); }
static void few_closed(struct end *e) { pass_on(e, FEW, FEW, 0); }
static void much_kept(struct end *e) { pass_on(e, MUCH, MUCH, KEEPS); }
static void much_closed(struct end *e) { pass_on(e, MUCH, MUCH, 0); }
static void other_idle_kept(struct end *e) { pass_on(e, 0, 0, KEEPS | OTHER); }
static void other_few_kept(struct end *e) { pass_on(e, FEW, FEW, KEEPS | OTHER); }
static void other_few_closed(struct end *e) { pass_on(e, FEW, FEW, OTHER); }
static void other_much_kept(struct end *e) { pass_on(e, MUCH, MUCH, KEEPS | OTHER); }
static void other_much_closed(struct end *e) { pass_on(e, MUCH, MUCH, OTHER); }

// As much as fits lies in both directions.
static void full(struct end *e, int how)
{
    struct plain p = {-1, -1, ""};
    size_t theirs = 0, ours = 0;
    AT(C) theirs = stuff(e, FD, 1);
    share(e, C, &theirs, sizeof theirs);
    AT(S) ours = stuff(e, FD, 2);
    share(e, S, &ours, sizeof ours);
    AT(S) {
        p = plain_on(e, -1, -1, e->fam | (how & OTHER ? SHUNTED : 0));
        give_to(e, &p, FD);
        tell_it(e, &p, RECEIVE, theirs, 1);
    }
    AT(C) drain(e, FD, ours, 2);
    AT(S) plain_end(e, &p);
    goes_on(e);
}
static void full_both(struct end *e) { full(e, KEEPS); }
static void other_full_both(struct end *e) { full(e, KEEPS | OTHER); }

// Between two processes a connection lies in a Unix socket: its sender has
// closed its copy, its receiver has not yet taken it, and the peer goes on.
static void under_way(struct end *e, int how)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        produce(e, FD, 1000, 2);
        p = plain_on(e, -1, -1, e->fam | (how & OTHER ? SHUNTED : 0));
        order(&p, TAKE, 0, 0);
        // It waits in recvmsg; stopped, it cannot have taken it before we say so.
        await_sleep(e, p.pid, p.pid);
        kill(p.pid, SIGSTOP);
        MUST(waitpid(p.pid, NULL, WUNTRACED));
        pass(p.leash, FD);
        T(close(FD));
        FD = -1;
    }
    AT(C) {
        produce(e, FD, 20000, 3);
        expect(e, FD, 1000, 2);
        T(recv(FD, (char[1]){0}, 1, MSG_DONTWAIT));
    }
    AT(S) {
        kill(p.pid, SIGCONT);
        await_report(e, &p);
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, RECEIVE, 20000, 3);
        tell_it(e, &p, SEND, 1000, 4);
        plain_end(e, &p);
    }
    AT(C) {
        expect(e, FD, 1000, 4);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}
static void lies_between(struct end *e) { under_way(e, 0); }
static void other_lies_between(struct end *e) { under_way(e, OTHER); }

// Twenty times to the same process, which lets go of it each time.
static void again_and_again(struct end *e, int how)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    AT(S) p = plain_on(e, -1, -1, e->fam | (how & OTHER ? SHUNTED : 0));
    for (int i = 0; i < 20; i++) {
        AT(C) produce(e, FD, 700, 2 * i);
        AT(S) {
            produce(e, FD, 300, 500 + i);
            give_to(e, &p, FD);
            tell_it(e, &p, RECEIVE, 700, 2 * i);
            tell_it(e, &p, SEND, 600, 2 * i + 1);
            tell_it(e, &p, DROP, 0, 0);
        }
        AT(C) {
            expect(e, FD, 300, 500 + i);
            expect(e, FD, 600, 2 * i + 1);
            produce(e, FD, 200, 600 + i);
        }
        AT(S) expect(e, FD, 200, 600 + i);
    }
    AT(S) plain_end(e, &p);
    goes_on(e);
}
static void twenty_passes(struct end *e) { again_and_again(e, 0); }
static void other_twenty_passes(struct end *e) { again_and_again(e, OTHER); }

// Away and back: the new descriptor is the old connection.
static void and_back(struct end *e, int how)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        p = plain_on(e, -1, -1, e->fam | (how & OTHER ? SHUNTED : 0));
        give_to(e, &p, FD);
        close(FD);
        tell_it(e, &p, RECEIVE, 500, 1);
        order(&p, GIVE, 0, 0);
        FD = passed(p.leash);
        await_report(e, &p);
        tell_it(e, &p, DROP, 0, 0);
        unsigned char buf[500];
        T(get(FD, buf, 500));
        say(e, "%ld", check(buf, 500, 500, 1));
        plain_end(e, &p);
        produce(e, FD, MUCH, 2);
    }
    AT(C) expect(e, FD, MUCH, 2);
    goes_on(e);
}
static void given_back(struct end *e) { and_back(e, 0); }
static void other_given_back(struct end *e) { and_back(e, OTHER); }

// Both ends go away at once.
static void both_pass(struct end *e)
{
    struct plain s = {-1, -1, ""}, c = s;
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) produce(e, FD, MUCH, 2);
    AT(C) {
        c = plain_on(e, -1, -1, e->fam);
        give_to(e, &c, FD);
        close(FD), FD = -1;
    }
    AT(S) {
        s = plain_on(e, -1, -1, e->fam | SHUNTED);
        give_to(e, &s, FD);
        close(FD), FD = -1;
    }
    AT(C) tell_it(e, &c, RECEIVE, MUCH, 2);
    AT(S) tell_it(e, &s, RECEIVE, MUCH, 1);
    AT(C) tell_it(e, &c, SEND, 1000, 3);
    AT(S) tell_it(e, &s, RECEIVE, 1000, 3);
    AT(S) tell_it(e, &s, SEND, 1000, 4);
    AT(C) tell_it(e, &c, RECEIVE, 1000, 4);
    AT(S) plain_end(e, &s);
    AT(C) {
        tell_it(e, &c, END, 0, 0);
        plain_end(e, &c);
    }
}

// The peer sleeps in recv while the connection changes hands.
static void peer_sleeps(struct end *e)
{
    if (e->role == C) {
        will_block(e);
        expect(e, FD, 5000, 1);
        produce(e, FD, 5000, 2);
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        await_blocked(e);
        struct plain p = plain_on(e, -1, -1, e->fam);
        give_to(e, &p, FD);
        close(FD), FD = -1;
        tell_it(e, &p, SEND, 5000, 1);
        tell_it(e, &p, RECEIVE, 5000, 2);
        plain_end(e, &p);
    }
}

// Another process takes a copy by itself, as debuggers and checkpointers do.
static void taken_by_pidfd(struct end *e)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        p = plain_on(e, -1, -1, e->fam);
        tell_it(e, &p, COPY, getpid(), FD);
        tell_it(e, &p, RECEIVE, 1000, 1);
        tell_it(e, &p, SEND, 1000, 2);
    }
    AT(C) expect(e, FD, 1000, 2);
    AT(S) plain_end(e, &p);
    goes_on(e);
}

// The same, and it sends first: so it is noticed.
static void sent_by_pidfd(struct end *e)
{
    struct plain p = {-1, -1, ""};
    AT(C) produce(e, FD, 1000, 1);
    AT(S) {
        expect(e, FD, 1000, 1);
        produce(e, FD, 1000, 2);
    }
    AT(C) expect(e, FD, 1000, 2);
    AT(S) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        p = plain_on(e, -1, -1, e->fam);
        tell_it(e, &p, COPY, getpid(), FD);
        tell_it(e, &p, SEND, 1000, 3);
    }
    AT(C) {
        T(poll(&(struct pollfd){FD, POLLIN, 0}, 1, PATIENCE_MS));
        expect(e, FD, 1000, 3);
        produce(e, FD, 1000, 4);
    }
    AT(S) {
        expect(e, FD, 500, 4);
        unsigned char buf[500];
        tell_it(e, &p, SEND, 500, 5);
        T(get(FD, buf, 500));
        say(e, "%ld", check(buf, 500, 500, 4));
    }
    AT(C) expect(e, FD, 500, 5);
    AT(S) plain_end(e, &p);
    goes_on(e);
}

PLAIN_MAIN(CASE(idle_kept, COLD | ALL), CASE(idle_closed, COLD), CASE(few_kept, COLD | ALL), CASE(few_closed, COLD | ALL),
           CASE(much_kept, COLD), CASE(much_closed, COLD), CASE(other_idle_kept, COLD), CASE(other_few_kept, COLD | ALL),
           CASE(other_few_closed, COLD | ALL), CASE(other_much_kept, COLD), CASE(other_much_closed, COLD),
           CASE(full_both, COLD), CASE(other_full_both, COLD), CASE(lies_between, COLD), CASE(other_lies_between, COLD),
           CASE(twenty_passes, COLD), CASE(other_twenty_passes, COLD), CASE(given_back, COLD),
           CASE(other_given_back, COLD), CASE(both_pass, COLD), CASE(peer_sleeps, TWO | COLD),
           CASE(sent_by_pidfd, COLD | PIDFD),
           KNOWN(taken_by_pidfd, COLD | PIDFD, "nobody tells libshunt that another process copies a descriptor"))
