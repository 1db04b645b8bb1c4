// What a program inherits beyond numbers that are open and idle: the library looks at the descriptors from 0 on until none is
// behind them, and one on which nothing happens looks at first glance like one that is not there.
// path: shunted 60%
// sync: free (what was attached before it is handed on stays on TCP)
#include "diff.h"

// A connection has some ten milliseconds of short rounds to get to its rings, and most of its bytes after them.
enum { SHORT_ROUNDS = 2000, ROUNDS = SHORT_ROUNDS + 1000, BYTES = 1024 };
static int length(int round) { return round < SHORT_ROUNDS ? 32 : BYTES; }
// Where the library asks whether any are behind, and the kernel's table of descriptors grows.
static const int idle[] = {64, 128, 256, 512};
enum { IDLES = sizeof idle / sizeof *idle };

static void asks(struct end *e)
{
    unsigned char buf[BYTES];
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int n = length(i);
        fill(buf, n, i, 1);
        put(FD, buf, n);
        good += get(FD, buf, n) == n && check(buf, n, i, 2) < 0;
    }
    say(e, "%d good", good);
    T(shutdown(FD, SHUT_WR));
    T(recv(FD, buf, 1, 0));
}

// In a child: the next program has an idle pipe at each of these numbers, and says what it says for this one.
static void keep_idle(struct end *e)
{
    int ends[2];
    MUST(pipe(ends));
    for (int i = 0; i < IDLES; i++)
        MUST(dup2(ends[0], idle[i]));
    MUST(dup2(e->out->fd, 1));
}

// A connection that nobody has used is another program's, behind the first of them, or the last.
static void bequeaths(struct end *e, int number, const char *name)
{
    connect_anew(e);
    if (e->role == C) {
        asks(e);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        keep_idle(e);
        MUST(dup2(FD, number));
        execl("/proc/self/exe", "inherited", "echo", name, NULL);
        _exit(99);
    }
    close(FD), FD = -1;
    reap(e, &kid);
}
static void connection_behind_first(struct end *e) { bequeaths(e, 70, "70"); }
static void connection_behind_last(struct end *e) { bequeaths(e, 600, "600"); }

// The program that inherits it: answers until its peer has ended.
static int answers(int fd)
{
    unsigned char buf[BYTES];
    int good = 0;
    for (int i = 0, n; n = length(i), get(fd, buf, n) == n; i++) {
        good += check(buf, n, i, 1) < 0;
        fill(buf, n, i, 2);
        put(fd, buf, n);
    }
    return printf("inherited: %d good\n", good) < 0;
}

static const struct test all_tests[] = {
    CASE(connection_behind_first, BARE | SPLIT | ALL | BUSY),
    CASE(connection_behind_last, BARE | SPLIT | ALL | BUSY),
};

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "echo"))
        return answers(atoi(argv[2]));
    return diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests);
}
