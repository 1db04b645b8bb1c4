// A connection that nobody has used yet goes to another program under Shunt, over a
// Unix socket or by exec, and its giver closes its copy: the other program is shunted.
// path: shunted 20%
// sync: free (what was attached before it is handed on stays on TCP)
// timeout: 120
#include "diff.h"
#include "plain.h"

enum { ROUNDS = 5000, FEWER = 2000 };
enum { KEPT = 1, TAKEN = 2, INHERITED = 4 }; // the giver's copy; the receiver's way to it

// The other side of ECHO.
static void ask(struct end *e, int rounds)
{
    unsigned char buf[32];
    int good = 0;
    for (int i = 0; i < rounds; i++) {
        fill(buf, 32, i, 1);
        put(FD, buf, 32);
        good += get(FD, buf, 32) == 32 && check(buf, 32, i, 2) < 0;
    }
    say(e, "%d good", good);
}

// `giver` hands its end on; the other end talks to whoever has it.
static void adopt(struct end *e, enum role giver, int how)
{
    int rounds = how & KEPT ? FEWER : ROUNDS;
    connect_anew(e);
    if (e->role != giver) {
        ask(e, rounds);
        produce(e, FD, MUCH, 3);
        expect(e, FD, MUCH, 4);
        T(recv(FD, (char[1]){0}, 1, 0));
        return;
    }
    struct plain p;
    if (how & INHERITED) {
        p = plain_on(e, FD, THERE, BY_FORK | SHUNTED);
    } else {
        p = plain_on(e, -1, -1, BY_FORK | SHUNTED);
        give_to(e, &p, FD);
    }
    if (!(how & KEPT))
        close(FD), FD = -1;
    tell_it(e, &p, ECHO, rounds, 0);
    tell_it(e, &p, RECEIVE, MUCH, 3);
    tell_it(e, &p, SEND, MUCH, 4);
    plain_end(e, &p);
    if (how & KEPT)
        close(FD), FD = -1;
}
static void acceptor_passes(struct end *e) { adopt(e, S, TAKEN); }
static void acceptor_bequeaths(struct end *e) { adopt(e, S, INHERITED); }
static void connector_passes(struct end *e) { adopt(e, C, TAKEN); }
static void connector_bequeaths(struct end *e) { adopt(e, C, INHERITED); }
// Nobody knows whether the giver uses its copy, so this stays TCP.
static void acceptor_keeps(struct end *e) { adopt(e, S, TAKEN | KEPT); }
static void connector_keeps(struct end *e) { adopt(e, C, INHERITED | KEPT); }

// A send buffer that its giver has made small is small.
static void with_small_buffer(struct end *e, int how)
{
    connect_anew(e);
    if (e->role == C) {
        ask(e, ROUNDS);
        await_go(e);
        while (recv(FD, scratch(), SCRATCH, 0) > 0)
            ;
        return;
    }
    struct plain p;
    MUST(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, &(int){4097}, sizeof(int)));
    if (how & INHERITED) {
        p = plain_on(e, FD, THERE, BY_FORK | SHUNTED);
    } else {
        p = plain_on(e, -1, -1, BY_FORK | SHUNTED);
        give_to(e, &p, FD);
    }
    close(FD), FD = -1;
    tell_it(e, &p, ECHO, ROUNDS, 0);
    tell_it(e, &p, STUFF, 1000000, 0);
    go(e);
    plain_end(e, &p);
}
static void small_buffer_passed(struct end *e) { with_small_buffer(e, TAKEN); }
static void small_buffer_bequeathed(struct end *e) { with_small_buffer(e, INHERITED); }

// It goes on from hand to hand, each time before it has been used, and is used at last.
static void from_hand_to_hand(struct end *e)
{
    connect_anew(e);
    if (e->role == C) {
        ask(e, ROUNDS);
        T(recv(FD, (char[1]){0}, 1, 0));
        return;
    }
    struct plain first = plain_on(e, -1, -1, BY_FORK | SHUNTED);
    give_to(e, &first, FD);
    close(FD), FD = -1;
    order(&first, GIVE, 0, 0);
    int fd = passed(first.leash);
    await_report(e, &first);
    tell_it(e, &first, DROP, 0, 0);
    struct plain second = plain_on(e, fd, THERE, BY_FORK | SHUNTED);
    close(fd);
    tell_it(e, &second, ECHO, ROUNDS, 0);
    plain_end(e, &second);
    plain_end(e, &first);
}

PLAIN_MAIN(CASE(acceptor_passes, BARE | SPLIT | ALL), CASE(acceptor_bequeaths, BARE | SPLIT),
           CASE(connector_passes, BARE | SPLIT), CASE(connector_bequeaths, BARE | SPLIT),
           CASE(acceptor_keeps, BARE | SPLIT), CASE(connector_keeps, BARE | SPLIT),
           CASE(small_buffer_passed, BARE | SPLIT), CASE(small_buffer_bequeathed, BARE | SPLIT),
           CASE(from_hand_to_hand, BARE | SPLIT))
