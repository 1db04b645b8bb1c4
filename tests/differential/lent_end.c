// With `--recycle`: a side keeps a connection that it has closed, and its peer sends. Only the kernel can tell that of the
// end, by the descriptor that shuntd lends; where shuntd is late, a later send is told.
// path: free
// timeout: 60
#include "diff.h"

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

// Both sides make a connection at the same time, and use it.
static int join_anew(struct end *e)
{
    char buf[8];
    if (e->role == C) {
        dial(e);
        put(FD, "question", 8);
        return get(FD, buf, 6) != 6;
    }
    answer(e);
    int wrong = get(FD, buf, 8) != 8;
    put(FD, "answer", 6);
    return wrong;
}

// A sender that does not hear of the end is told by the kernel, as ever.
static void sends_to_the_closed(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 12; i++) {
        wrong += join_anew(e);
        if (e->role == C) {
            MUST(close(FD));
            FD = -1;
            go(e);
            await_go(e);
        } else {
            await_go(e);
            await_events(e, FD, POLLRDHUP);
            wrong += differs(e, "first send", send(FD, "x", 1, MSG_NOSIGNAL), 1);
            await_events(e, FD, POLLERR);
            wrong += differs(e, "second", send(FD, "x", 1, MSG_NOSIGNAL), -1) + differs(e, "error", errno, EPIPE);
            MUST(close(FD));
            FD = -1;
            go(e);
        }
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(sends_to_the_closed, BARE | TWO))
