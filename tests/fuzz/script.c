// Runs a script of socket calls and prints what each of them came to; README.md has the language.
//
// The process that is started is the conductor. It hands one operation after another to two workers
// and goes on when nothing is in motion any more, so that the output of a native run depends on the
// script alone.
#include "worker.h"

// What is known of a stream, in each direction.
enum { CONNECTIONS = 64 };
static struct stream {
    uint64_t sent, received;
    int urgent;         // has had urgent data, which a receive passes over
} streams[CONNECTIONS * 2];
static int connections;

// Which end of which connection a slot has: a number of a stream that it sends, or -1.
static int ends[WORKERS][SLOTS];

static struct worker {
    pid_t pid, first;   // who answers now; who was started
    int channel;
    int port;
} workers[WORKERS];

static int stays;

// After this a call is taken to sleep for good, and interrupted.
enum { PATIENCE_MS = 500, AGAIN_MS = 100, LIMIT_MS = 4000 };

static void post_to(int worker, const struct op *o)
{
    if (send(workers[worker].channel, o, sizeof *o, MSG_NOSIGNAL) != sizeof *o) {
        printf("worker %c is gone\n", 'A' + worker);
        exit(4);
    }
}

static void fetch(int worker, struct answer *a)
{
    struct worker *w = &workers[worker];
    if (recv(w->channel, a, sizeof *a, 0) != sizeof *a) {
        printf("worker %c has died\n", 'A' + worker);
        exit(4);
    }
    w->pid = a->pid;
}

// Waits for an answer; interrupts a call that does not return. Whether that was necessary.
static int await(int worker, struct answer *a)
{
    struct worker *w = &workers[worker];
    struct pollfd p = {w->channel, POLLIN, 0};
    int spent = PATIENCE_MS;
    if (poll(&p, 1, PATIENCE_MS) > 0) {
        fetch(worker, a);
        return 0;
    }
    do {
        syscall(SYS_tgkill, w->pid, w->pid, SIGUSR1);
        spent += AGAIN_MS;
        if (spent > LIMIT_MS) {
            printf("worker %c hangs\n", 'A' + worker);
            // For whoever looks at its stacks.
            if (stays)
                pause();
            exit(3);
        }
    } while (poll(&p, 1, AGAIN_MS) == 0);
    fetch(worker, a);
    return 1;
}

static int ask(int worker, const struct op *o, struct answer *a)
{
    post_to(worker, o);
    return await(worker, a);
}

// Until all that was sent has arrived and is acknowledged: where something lies unread, that may
// take as long as the kernel delays it (TCP_DELACK_MAX).
static void settle(void)
{
    struct op o = {.kind = DO_settle, .thread = -1};
    struct answer a;
    for (int calm = 0, looks = 0; calm < 2 && looks < 250; looks++) {
        long moving = 0;
        for (int w = 0; w < WORKERS; w++) {
            ask(w, &o, &a);
            moving += a.result;
        }
        calm = moving ? 0 : calm + 1;
        nap(looks < 20 ? 100 : 1000);
    }
}

// ---- Streams ---------------------------------------------------------------

static void place_streams(struct op *o)
{
    int end = ends[o->worker][o->slot];
    o->out = o->in = -1;
    if (end < 0)
        return;
    o->out = end;
    o->in = streams[end ^ 1].urgent ? -1 : end ^ 1;
    o->out_at = streams[o->out].sent;
    o->in_at = streams[end ^ 1].received;
}

static void advance(const struct op *o, const struct answer *a)
{
    if (o->out < 0)
        return;
    if (o->kind == DO_send) {
        streams[o->out].sent += a->moved;
        streams[o->out].urgent |= o->flags & MSG_OOB;
    } else if (o->kind == DO_recv || o->kind == DO_drain) {
        streams[o->out ^ 1].received += a->moved;
    }
}

static int closes(const struct op *o)
{
    return o->kind == DO_close && (o->place == HERE || o->place == THREAD);
}

// Which slot names what after an operation.
static void rename_ends(const struct op *o, const struct answer *a)
{
    int (*mine)[SLOTS] = &ends[o->worker];
    if (o->kind == DO_dup && a->result == 0)
        (*mine)[o->to] = (*mine)[o->slot];
    else if (closes(o) || o->kind == DO_epoll || o->kind == DO_socket)
        (*mine)[o->slot] = -1;
    else if (o->kind == DO_pass && o->to_worker != o->worker && a->result == 1) {
        ends[o->to_worker][o->to] = (*mine)[o->slot];
        if (o->value)
            (*mine)[o->slot] = -1;
    }
}

// ---- Operations ------------------------------------------------------------

// Both at the same time: under --upgrade=sync the two wait for each other.
static void do_connection(struct op *o, struct answer *a)
{
    struct op accept = {.kind = DO_accept, .worker = o->to_worker, .slot = o->to, .how = o->how, .thread = -1};
    struct answer accepted;
    o->port = workers[o->to_worker].port;
    post_to(o->worker, o);
    if (o->worker == o->to_worker)
        await(o->worker, a);
    post_to(o->to_worker, &accept);
    if (o->worker != o->to_worker)
        await(o->worker, a);
    await(o->to_worker, &accepted);
    say(a, ", accepted%s", accepted.text);
    if (connections < CONNECTIONS) {
        ends[o->worker][o->slot] = connections * 2;
        ends[o->to_worker][o->to] = connections * 2 + 1;
        connections++;
    }
}

static void hand_over(const struct op *o, struct answer *a)
{
    struct op take = {.kind = DO_take, .worker = o->to_worker, .slot = o->to, .thread = -1};
    struct answer taken;
    if (a->result != 1)
        return;
    ask(o->to_worker, &take, &taken);
    say(a, ",%s", taken.text);
}

// What is begun in a thread is placed in its stream now and counted when it is joined.
static struct op begun[WORKERS][THREADS];

static int execute(struct op *o, struct answer *a)
{
    int interrupted = 0;
    place_streams(o);
    if (o->kind == DO_connect) {
        do_connection(o, a);
        return 0;
    }
    interrupted = ask(o->worker, o, a);
    if (o->kind == DO_pass && o->to_worker != o->worker)
        hand_over(o, a);
    if (o->thread >= 0 && o->kind == DO_join)
        advance(&begun[o->worker][o->thread], a);
    else if (o->thread >= 0 && o->kind != DO_signal)
        begun[o->worker][o->thread] = *o;
    else
        advance(o, a);
    rename_ends(o, a);
    return interrupted;
}

// Slots that an operation fills must be free, and both ends of a pass different workers' or one slot.
static int is_possible(const struct op *o, int taken[WORKERS][SLOTS])
{
    int fills = o->kind == DO_connect || o->kind == DO_socket || o->kind == DO_epoll;
    if (fills && taken[o->worker][o->slot])
        return 0;
    if (o->kind == DO_connect && (taken[o->to_worker][o->to] || (o->worker == o->to_worker && o->slot == o->to)))
        return 0;
    return o->kind != DO_pass || o->to_worker == o->worker || !taken[o->to_worker][o->to];
}

static void note_slots(const struct op *o, const struct answer *a, int taken[WORKERS][SLOTS])
{
    if (o->kind == DO_connect)
        taken[o->worker][o->slot] = taken[o->to_worker][o->to] = 1;
    else if (o->kind == DO_socket || o->kind == DO_epoll)
        taken[o->worker][o->slot] = 1;
    else if (o->kind == DO_dup && a->result == 0)
        taken[o->worker][o->to] = 1;
    else if (closes(o))
        taken[o->worker][o->slot] = 0;
    else if (o->kind == DO_pass && o->to_worker != o->worker && a->result == 1) {
        taken[o->to_worker][o->to] = 1;
        taken[o->worker][o->slot] = !o->value;
    }
}

static void run_line(int number, char *text)
{
    static int taken[WORKERS][SLOTS];
    struct op o;
    struct answer a = {0};
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    if (!parse(copy, &o) || o.kind >= DO_accept) {
        printf("%d %s: not understood\n", number, text);
        exit(2);
    }
    if (!is_possible(&o, taken)) {
        printf("%d %s: impossible here\n", number, text);
        return;
    }
    int interrupted = execute(&o, &a);
    note_slots(&o, &a, taken);
    printf("%d %s:%s%s\n", number, text, a.text, interrupted ? " INTERRUPTED" : "");
    settle();
}

// ---- Start and end ---------------------------------------------------------

static int out_of_the_way(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 300);
    close(fd);
    return high;
}

static void start_worker(int number, int bridge, int life)
{
    struct worker *w = &workers[number];
    struct op o = {.kind = DO_port, .thread = -1};
    struct answer a;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        exit(5);
    w->pid = w->first = fork();
    if (w->pid == 0) {
        close(pair[0]);
        post = (struct post){out_of_the_way(pair[1]), out_of_the_way(bridge), out_of_the_way(life)};
        for (int i = 0; i < 3; i++)
            fcntl(((int *)&post)[i], F_SETFD, 0);
        become("--resume", -1, NULL);
    }
    close(pair[1]);
    w->channel = pair[0];
    fetch(number, &a);
    ask(number, &o, &a);
    w->port = (int)a.result;
}

static int life_line;

static void start_workers(void)
{
    int bridge[2], life[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, bridge) || pipe2(life, O_CLOEXEC))
        exit(5);
    for (int i = 0; i < SLOTS; i++)
        fds[i] = ends[0][i] = ends[1][i] = -1;
    for (int i = 0; i < WORKERS; i++)
        start_worker(i, bridge[i], life[0]);
    close(bridge[0]);
    close(bridge[1]);
    close(life[0]);
    life_line = life[1];
}

static void end_workers(void)
{
    struct op quit = {.kind = DO_quit, .thread = -1};
    for (int i = 0; i < WORKERS; i++)
        post_to(i, &quit);
    close(life_line);
    // Those who went on in a child are not ours to wait for: their channel says that they have ended.
    for (int i = 0; i < WORKERS; i++) {
        struct answer a;
        while (recv(workers[i].channel, &a, sizeof a, 0) > 0)
            ;
        waitpid(workers[i].first, NULL, 0);
    }
}

static int conduct(FILE *script)
{
    char line[512];
    int number = 0;
    start_workers();
    while (fgets(line, sizeof line, script)) {
        number++;
        line[strcspn(line, "#\n")] = 0;
        if (line[strspn(line, " ")])
            run_line(number, line);
    }
    end_workers();
    puts("end");
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && !strcmp(argv[1], "--one"))
        return do_one(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--resume"))
        return resume(argv[2]);
    stays = argc == 3 && !strcmp(argv[2], "stay");
    FILE *script = argc == 2 + stays ? fopen(argv[1], "re") : NULL;
    if (!script) {
        fprintf(stderr, "usage: %s SCRIPT [stay]\n", argv[0]);
        return 2;
    }
    return conduct(script);
}
