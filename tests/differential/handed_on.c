// A connection changes hands, to programs without libshunt and with it, while its peer is stopped, after that was killed, or
// while that hands it on, too; also between network namespaces (--apart), where shuntd sends again what lies unread.
// needs: lending
// path: shunted
// timeout: 60
#include "diff.h"
#include "plain.h"

// S gives its end away, of which this is left.
static struct plain given_away(struct end *e, unsigned how)
{
    struct plain p = plain_on(e, -1, -1, how);
    give_to(e, &p, FD);
    close(FD), FD = -1;
    return p;
}

// What a program gives back, which ends.
static void take_back(struct end *e, struct plain *p)
{
    order(p, GIVE, 0, 0);
    FD = passed(p->leash);
    await_report(e, p);
    plain_end(e, p);
}

// The peer is stopped from before the hand-over until all that it had sent has been received.
static void while_stopped(struct end *e, unsigned how)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    AT(C) produce(e, FD, MUCH, 1);
    AT(S) {
        produce(e, FD, FEW, 2);
        stop_peer(e);
        p = given_away(e, how);
        tell_it(e, &p, RECEIVE, MUCH, 1);
        tell_it(e, &p, SEND, 1000, 3);
        kill(e->peer_pid, SIGCONT);
    }
    AT(C) {
        expect(e, FD, FEW, 2);
        expect(e, FD, 1000, 3);
        produce(e, FD, 1000, 4);
    }
    AT(S) {
        tell_it(e, &p, RECEIVE, 1000, 4);
        plain_end(e, &p);
    }
    AT(C) T(recv(FD, (char[1]){0}, 1, 0));
}
static void stopped_peer(struct end *e) { while_stopped(e, e->fam); }
static void other_stopped_peer(struct end *e) { while_stopped(e, e->fam | SHUNTED); }

// A child of C's that connects, sends, and waits to be killed.
static struct kid sender(struct end *e)
{
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
        for (int i = 0; i < 20; i++) {
            put(FD, "t", 1);
            get(FD, (char[1]){0}, 1);
        }
        produce(e, FD, MUCH, 1);
        go(e);
        pause();
    }
    return kid;
}

// The peer is killed: before its bytes change hands, or before they are received there.
static void of_killed(struct end *e, int late, unsigned how)
{
    struct plain p = {-1, -1, ""};
    if (e->role == C) {
        struct kid kid = sender(e);
        give(e, &kid.pid, sizeof kid.pid);
        reap(e, &kid);
        return;
    }
    pid_t pid;
    take(e, &pid, sizeof pid);
    FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < 20; i++) {
        get(FD, (char[1]){0}, 1);
        put(FD, "t", 1);
    }
    // All of it is sent.
    await_go(e);
    if (!late)
        kill(pid, SIGKILL);
    p = given_away(e, how);
    if (late)
        kill(pid, SIGKILL);
    tell_it(e, &p, RECEIVE, MUCH, 1);
    tell_it(e, &p, END, 0, 0);
    plain_end(e, &p);
}
static void killed_peer(struct end *e) { of_killed(e, 0, e->fam); }
static void peer_killed_later(struct end *e) { of_killed(e, 1, e->fam); }
static void other_killed_peer(struct end *e) { of_killed(e, 0, e->fam | SHUNTED); }
static void other_peer_killed_later(struct end *e) { of_killed(e, 1, e->fam | SHUNTED); }

// From one to the next, with bytes unread each time, and the peer stopped now and then.
static void second_hand_over(struct end *e)
{
    struct plain p = {-1, -1, ""};
    at_once(e);
    for (int i = 0; i < 6; i++) {
        AT(C) {
            produce(e, FD, 2 * FEW, i);
            produce(e, FD, i & 1 ? MUCH : 0, 20 + i);
        }
        AT(S) {
            if (i & 2)
                stop_peer(e);
            p = given_away(e, e->fam | (i % 3 ? SHUNTED : 0));
            tell_it(e, &p, RECEIVE, FEW, i);
            take_back(e, &p);
            unsigned char buf[FEW];
            T(get(FD, buf, FEW));
            say(e, "%ld", check(buf, FEW, FEW, i));
            p = given_away(e, e->fam);
            if (i & 1)
                tell_it(e, &p, RECEIVE, MUCH, 20 + i);
            tell_it(e, &p, SEND, FEW, 10 + i);
            if (i & 2)
                kill(e->peer_pid, SIGCONT);
            take_back(e, &p);
        }
        AT(C) expect(e, FD, FEW, 10 + i);
    }
    goes_on(e);
}

// Both ends change hands at once, and once more.
static void both_hand_on(struct end *e)
{
    struct plain s = {-1, -1, ""}, c = s;
    for (int i = 0; i < 4; i++) {
        AT(C) produce(e, FD, MUCH, 2 * i);
        AT(S) produce(e, FD, MUCH, 2 * i + 1);
        if (e->role == C)
            c = given_away(e, e->fam | (i & 1 ? SHUNTED : 0));
        else
            s = given_away(e, e->fam | (i & 2 ? SHUNTED : 0));
        meet(e);
        AT(C) tell_it(e, &c, RECEIVE, MUCH, 2 * i + 1);
        AT(S) tell_it(e, &s, RECEIVE, MUCH, 2 * i);
        AT(C) tell_it(e, &c, SEND, FEW, i);
        AT(S) {
            tell_it(e, &s, RECEIVE, FEW, i);
            take_back(e, &s);
        }
        AT(C) take_back(e, &c);
    }
    goes_on(e);
}

PLAIN_MAIN(CASE(stopped_peer, SPLIT | COLD), CASE(other_stopped_peer, SPLIT | COLD), CASE(killed_peer, SPLIT | BARE), CASE(peer_killed_later, SPLIT | BARE),
           CASE(other_killed_peer, SPLIT | BARE), CASE(other_peer_killed_later, SPLIT | BARE), CASE(second_hand_over, SPLIT | COLD),
           CASE(both_hand_on, SPLIT | COLD))
