// What a forked child can do to connections that it does not have: its parent's later ones. And
// what one that has a connection can do to its parent's memory by it.
// path: shunted 20%
// timeout: 60
#include "diff.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { TURNS = 2000, MESSAGE = 64 };
// What C and S say on the later connection, in each case something else: slots are used again, and their
// rings keep what earlier connections of the two processes have left there.
static char from_c[MESSAGE], from_s[MESSAGE];

// Ping-pong.
static int talk(int fd, enum role role, const char *says, const char *hears)
{
    char out[MESSAGE] = "", in[MESSAGE];
    strcpy(out, says);
    int good = 0;
    for (int i = 0; i < TURNS; i++) {
        if (role == C)
            put(fd, out, MESSAGE);
        good += get(fd, in, MESSAGE) == MESSAGE && !strcmp(in, hears);
        if (role == S)
            put(fd, out, MESSAGE);
    }
    return good;
}

static int later(struct end *e)
{
    if (e->role == S)
        return MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    return fd;
}

static const char arenas[] = "shunt-arena", files[] = "memfd:shunt", counts[] = "/dev/zero";

// Calls `visit` with each piece of shared memory of such a name here, readable ones or writable ones.
static void each(const char *name, const char *rights, void (*visit)(void *, size_t, void *), void *with)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char can[8];
    while (fgets(line, sizeof line, maps))
        if (strstr(line, name) && sscanf(line, "%lx-%lx %7s", &from, &to, can) == 3 && strstr(can, rights))
            visit((void *)from, to - from, with);
    fclose(maps);
}

static void look(void *memory, size_t n, void *found)
{
    if (memmem(memory, n, from_c, strlen(from_c)) || memmem(memory, n, from_s, strlen(from_s)))
        *(int *)found = 1;
}

// The same with what no mapping, but a descriptor of this process names.
static void each_file(void (*visit)(void *, size_t, void *), void *with)
{
    char path[300], name[64];
    struct dirent *entry;
    DIR *all = opendir("/proc/self/fd");
    while ((entry = readdir(all))) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
        struct stat file;
        int fd = atoi(entry->d_name);
        if (!strstr(name, files) || fstat(fd, &file) || file.st_size == 0)
            continue;
        void *memory = mmap(NULL, file.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED)
            continue;
        visit(memory, file.st_size, with);
        munmap(memory, file.st_size);
    }
    closedir(all);
}

static const char *search(void)
{
    int found = 0;
    each(files, "r", look, &found);
    each_file(look, &found);
    return found ? "everything" : "nothing";
}

// Nonsense on all pages that there are: for the share of memory that a relative must not have, any will do.
static void fill_pages(void *memory, size_t n, void *unused)
{
    (void)unused;
    long page = sysconf(_SC_PAGESIZE);
    unsigned char there;
    for (size_t at = 0; at < n; at += page)
        if (mincore((char *)memory + at, page, &there) == 0 && there & 1)
            memset((char *)memory + at, 0x5a, page);
}

enum child { KEEPS, CLOSES, BECOMES_NOBODY, FORKS, IS_CONFINED, EXECUTES, FORGES };

// Calls that it needs no more.
static void confine(struct end *e)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

// Becomes another program, which inherits the connection.
static void execute(struct end *e, int cue)
{
    char numbers[2][16];
    int inherited[] = {cue, e->out->fd, FD};
    for (int i = 0; i < 3; i++)
        fcntl(inherited[i], F_SETFD, 0);
    snprintf(numbers[0], sizeof numbers[0], "%d", cue);
    snprintf(numbers[1], sizeof numbers[1], "%d", e->out->fd);
    execl("/proc/self/exe", "spy", "spy", numbers[0], numbers[1], from_c, from_s, NULL);
    _exit(99);
}

static int executed(int cue, int out)
{
    char line[64];
    if (read(cue, line, 1) != 1)
        return 98;
    raw_write(out, line, snprintf(line, sizeof line, "a program finds %s\n", search()));
    return 0;
}

// Looks for what its parent, or that one's peer, says later, or forges it.
static void spy(struct end *e, enum child child, int cue)
{
    if (child != KEEPS && child != EXECUTES && child != FORGES)
        close(FD);
    if (child == BECOMES_NOBODY && getuid() == 0)
        MUST(setresuid(65534, 65534, 65534));
    if (child == IS_CONFINED)
        confine(e);
    if (child == EXECUTES)
        execute(e, cue);
    if (child == FORKS && MUST(fork())) {
        wait(NULL);
        _exit(0);
    }
    MUST(read(cue, (char[1]){0}, 1));
    say(e, "a relative finds %s", search());
    if (child == FORGES) {
        each(files, "w", fill_pages, NULL);
        each(counts, "w", fill_pages, NULL);
        // It has broken its own connections, too.
        kill(getpid(), SIGKILL);
    }
    _exit(0);
}

// The end of the role `forking` forks, and both make another connection.
static void spied_on(struct end *e, enum role forking, enum child child)
{
    int cue[2] = {-1, -1};
    struct kid kid = {0};
    snprintf(from_c, sizeof from_c, "what C says later in %s", e->name);
    snprintf(from_s, sizeof from_s, "what S says later in %s", e->name);
    say(e, "%d good", talk(FD, e->role, "hello", "hello"));
    if (e->role == forking) {
        MUST(pipe2(cue, O_CLOEXEC));
        kid = spawn(e);
        if (kid.pid == 0)
            spy(e, child, cue[0]);
    }
    meet(e);
    int fd = later(e);
    const char *mine = e->role == C ? from_c : from_s, *others = e->role == C ? from_s : from_c;
    say(e, "%d good", talk(fd, e->role, mine, others));
    meet(e);
    if (e->role == forking) {
        MUST(write(cue[1], "x", 1));
        reap(e, &kid);
        close(cue[0]), close(cue[1]);
    }
    meet(e);
    say(e, "%d good afterwards", talk(fd, e->role, mine, others));
    close(fd);
}

static void keeps(struct end *e) { spied_on(e, C, KEEPS); }
static void keeps_of_server(struct end *e) { spied_on(e, S, KEEPS); }
static void closes(struct end *e) { spied_on(e, C, CLOSES); }
static void closes_of_server(struct end *e) { spied_on(e, S, CLOSES); }
static void becomes_nobody(struct end *e) { spied_on(e, C, BECOMES_NOBODY); }
static void grandchild(struct end *e) { spied_on(e, S, FORKS); }
static void is_confined(struct end *e) { spied_on(e, C, IS_CONFINED); }
static void is_confined_of_server(struct end *e) { spied_on(e, S, IS_CONFINED); }
static void executes(struct end *e) { spied_on(e, C, EXECUTES); }
static void executes_of_server(struct end *e) { spied_on(e, S, EXECUTES); }
static void forges(struct end *e) { spied_on(e, C, FORGES); }
static void forges_of_server(struct end *e) { spied_on(e, S, FORGES); }

// The control lines of an arena's slots: those of the two halves begin with a word that says which
// thread is at work, which a relative may keep others waiting by.
enum { SLOTS_AT = 532 << 10, SLOT = 512, SLOTS = 16, SENDING = 192, RECEIVING = 320, OPTIONS = 448, RING = 3584 << 10 };

static void scribble(void *memory, size_t n, void *seed)
{
    static const unsigned values[] = {0, 1, 7, 8, RING - 32, RING - 8, RING, RING + 8, 1u << 30, 0xf0000000, 0xffffffff};
    if (n < SLOTS_AT + SLOTS * SLOT)
        return; // Rings.
    unsigned *random = seed, round = *random;
    unsigned from = (unsigned[]){8, SENDING + 8, RECEIVING + 8}[round % 3];
    unsigned to = (unsigned[]){SLOT, RECEIVING, OPTIONS}[round % 3];
    for (unsigned at = 0; at < SLOTS * SLOT; at += 4) {
        unsigned in = at % SLOT;
        *random = *random * 1103515245 + 12345;
        unsigned pick = *random >> 16;
        if (in >= from && in < to && in / 8 != SENDING / 8 && in / 8 != RECEIVING / 8 && pick % 3 == 0)
            *(volatile unsigned *)((char *)memory + SLOTS_AT + at) = values[pick / 3 % (sizeof values / 4)];
    }
}

// A child writes nonsense where the state of a connection lies that it shares. Its parent's calls
// on that may fail, but they end, and its own memory stays what it was.
static void scribbled(struct end *e)
{
    static char own[1 << 20];
    memset(own, 'o', sizeof own);
    for (unsigned round = 1; round <= 60; round++) {
        int fd = later(e);
        if (talk(fd, e->role, "hello", "hello") != TURNS)
            say(e, "a conversation ended early");
        if (e->role == S) {
            struct pollfd p = {fd, POLLIN, 0};
            // The end that it waits for may never come.
            while (poll(&p, 1, 100) == 1 && recv(fd, scratch(), SCRATCH, MSG_DONTWAIT) > 0) {}
            meet(e);
            close(fd);
            continue;
        }
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            each(arenas, "w", scribble, &round);
            _exit(0);
        }
        reap(e, &kid);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 20; i++) {
            send(fd, own, i % 2 ? 64 : 40000, MSG_NOSIGNAL);
            recv(fd, scratch(), i % 3 ? 64 : SCRATCH, i % 5 ? 0 : MSG_PEEK);
            poll(&(struct pollfd){fd, POLLIN | POLLOUT, 0}, 1, 0);
            ioctl(fd, FIONREAD, &(int){0});
        }
        shutdown(fd, SHUT_RDWR);
        meet(e);
        close(fd);
        for (size_t i = 0; i < sizeof own; i++)
            if (own[i] != 'o')
                say(e, "memory changed"), i = sizeof own;
    }
    say(e, "lives");
}

// A child's own memory may lie where its parent had rings. What the child makes of the connection
// that it has must not touch it: its own children have all of it.
static void forks_on(struct end *e)
{
    enum { PIECES = 512, PIECE = 1 << 20 };
    char c;
    if (e->role == C) {
        share(e, S, &c, 1);
        get(FD, &c, 1);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        char *pieces[PIECES];
        for (int i = 0; i < PIECES; i++) {
            pieces[i] = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            pieces[i][0] = (char)i;
        }
        int set = MUST(epoll_create1(EPOLL_CLOEXEC)), good = 0;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &(struct epoll_event){EPOLLOUT, {.u32 = 1}}));
        for (int i = 0; i < 3; i++) {
            // Before the last time the connection is the kernel's, and needs no ring.
            if (i == 2)
                shutdown(FD, SHUT_WR);
            pid_t child = MUST(fork());
            if (child == 0) {
                for (int k = 0; k < PIECES; k++)
                    good += pieces[k][0] == (char)k;
                _exit(good != PIECES || epoll_wait(set, &(struct epoll_event){0}, 1, 0) != 1);
            }
            int status = -1;
            waitpid(child, &status, 0);
            say(e, "grandchild ended with %x", status);
        }
        _exit(0);
    }
    reap(e, &kid);
    share(e, S, "x", 1);
}

static const struct test all_tests[] = {
    CASE(forks_on, SPLIT | COLD), CASE(keeps, SPLIT), CASE(keeps_of_server, SPLIT), CASE(closes, SPLIT),
    CASE(closes_of_server, SPLIT), CASE(becomes_nobody, SPLIT), CASE(grandchild, SPLIT), CASE(is_confined, SPLIT),
    CASE(is_confined_of_server, SPLIT), CASE(executes, SPLIT), CASE(executes_of_server, SPLIT), CASE(forges, SPLIT | BUSY),
    CASE(forges_of_server, SPLIT | BUSY), CASE(scribbled, SPLIT | BUSY),
};

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "spy")) {
        snprintf(from_c, sizeof from_c, "%s", argv[4]);
        snprintf(from_s, sizeof from_s, "%s", argv[5]);
        return executed(atoi(argv[2]), atoi(argv[3]));
    }
    return diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests);
}
