// Connections across fork and its relatives.
// path: shunted 1%
// timeout: 60
#include "diff.h"
#include <setjmp.h>

static int converse(int fd, int first, int turns)
{
    unsigned char buf[32];
    int good = 0;
    for (int i = 0; i < turns; i++) {
        if (first)
            fill(buf, 32, i, 1), put(fd, buf, 32);
        if (get(fd, buf, 32) == 32 && check(buf, 32, i, first ? 2 : 1) < 0)
            good++;
        if (!first)
            fill(buf, 32, i, 2), put(fd, buf, 32);
    }
    return good;
}

static void client_converses(struct end *e, int turns)
{
    say(e, "%d good", converse(FD, 1, turns));
}

// The usual server: accept, fork, serve in the child.
static void child_serves(struct end *e)
{
    if (e->role == C) {
        client_converses(e, 40);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, (char[1]){0}, 1, 0));
    } else {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            say(e, "%d good", converse(FD, 0, 40));
            T(recv(FD, (char[1]){0}, 1, 0));
            _exit(5);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    }
}

// Parent and child take strict turns on one connection, both ways.
static void alternating(struct end *e)
{
    char c;
    int good = 0;
    if (e->role == C) {
        for (int i = 0; i < 60; i++) {
            c = 'a' + i % 26;
            good += put(FD, &c, 1) == 1 && get(FD, &c, 1) == 1 && c == (i & 1 ? 'c' : 'p');
        }
        say(e, "%d good", good);
        return;
    }
    int down[2], up[2];
    MUST(pipe2(down, O_CLOEXEC));
    MUST(pipe2(up, O_CLOEXEC));
    struct kid kid = spawn(e);
    for (int i = 0; i < 60; i++) {
        int mine = (i & 1) == (kid.pid == 0);
        if (mine) {
            good += get(FD, &c, 1) == 1 && c == 'a' + i % 26;
            put(FD, kid.pid == 0 ? "c" : "p", 1);
            raw_write(kid.pid == 0 ? up[1] : down[1], "t", 1);
        } else {
            get(kid.pid == 0 ? down[0] : up[0], &c, 1);
        }
    }
    say(e, "%d good", good);
    if (kid.pid == 0)
        _exit(0);
    reap(e, &kid);
    close(down[0]), close(down[1]), close(up[0]), close(up[1]);
}

// Both ends fork; the children converse, then the parents.
static void both_fork(struct end *e)
{
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        say(e, "%d good", converse(FD, e->role == C, 20));
        _exit(0);
    }
    reap(e, &kid);
    meet(e);
    say(e, "%d good", converse(FD, e->role == C, 20));
}

static void child_looks_away(struct end *e)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0)
            _exit(0);
        reap(e, &kid);
        kid = spawn(e);
        if (kid.pid == 0)
            exit(0);
        reap(e, &kid);
        kid = spawn(e);
        if (kid.pid == 0) {
            T(close(FD));
            T(send(FD, "x", 1, 0));
            _exit(0);
        }
        reap(e, &kid);
        kid = spawn(e);
        if (kid.pid == 0)
            abort();
        reap(e, &kid);
        go(e);
        say(e, "%d good", converse(FD, 0, 20));
    } else {
        await_go(e);
        client_converses(e, 20);
    }
}

// Shutdown by the child is shutdown for all.
static void child_shuts_down(struct end *e)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            T(send(FD, "abc", 3, 0));
            T(shutdown(FD, SHUT_WR));
            _exit(0);
        }
        reap(e, &kid);
        T(send(FD, "x", 1, 0));
        T(recv(FD, (char[8]){0}, 3, MSG_WAITALL));
    } else {
        T(recv(FD, (char[8]){0}, 8, MSG_WAITALL));
        T(send(FD, "def", 3, 0));
    }
}

// The end comes only when the last holder closes.
static void last_holder(struct end *e)
{
    if (e->role == S) {
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            get(p[0], (char[1]){0}, 1);
            T(send(FD, "abc", 3, 0));
            _exit(0);
        }
        close(FD), FD = -1;
        await_go(e);
        raw_write(p[1], "x", 1);
        reap(e, &kid);
        close(p[0]), close(p[1]);
    } else {
        struct pollfd q = {FD, POLLIN | POLLRDHUP, 0};
        T(poll(&q, 1, 20));
        go(e);
        T(recv(FD, (char[8]){0}, 8, MSG_WAITALL));
        T(recv(FD, (char[8]){0}, 8, 0));
    }
}

// Unread bytes are there for whichever process reads first.
static void unread_bytes(struct end *e)
{
    if (e->role == S) {
        char buf[8];
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 2, 0));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            T(recv(FD, buf, 2, 0));
            say(e, "%.2s", buf);
            _exit(0);
        }
        reap(e, &kid);
        T(recv(FD, buf, 8, 0));
        say(e, "%.2s", buf);
    } else {
        T(send(FD, "abcdef", 6, 0));
    }
}

// A grandchild inherits it all, as with daemons.
static void grandchild(struct end *e)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            setsid();
            if (MUST(fork()) == 0) {
                e->pid = getpid();
                say(e, "%d good", converse(FD, 0, 40));
                _exit(0);
            }
            _exit(1);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        client_converses(e, 40);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

// A child sleeps in recv while the parent sends on the same connection.
static void child_receives_parent_sends(struct end *e)
{
    char c;
    int good = 0;
    if (e->role == C) {
        for (int i = 0; i < 200; i++) {
            good += get(FD, &c, 1) == 1 && c == (char)i;
            put(FD, &c, 1);
        }
        say(e, "%d good", good);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        for (int i = 0; i < 200; i++)
            good += get(FD, &c, 1) == 1 && c == (char)i;
        say(e, "%d good", good);
        _exit(0);
    }
    for (int i = 0; i < 200; i++) {
        c = i;
        put(FD, &c, 1);
    }
    reap(e, &kid);
}

// Large transfer begun by the parent, ended by the child.
static void handed_over(struct end *e)
{
    if (e->role == C) {
        expect(e, FD, 1 << 20, 1);
        expect(e, FD, 1 << 20, 2);
        T(recv(FD, (char[1]){0}, 1, 0));
        return;
    }
    produce(e, FD, 1 << 20, 1);
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        produce(e, FD, 1 << 20, 2);
        _exit(0);
    }
    close(FD), FD = -1;
    reap(e, &kid);
}

// A child that leaves with the connection full of what it sent.
static void child_leaves_full(struct end *e)
{
    size_t total = 0;
    if (e->role == S) {
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            total = stuff(e, FD, 3);
            raw_write(p[1], (char *)&total, sizeof total);
            _exit(0);
        }
        close(FD), FD = -1;
        get(p[0], &total, sizeof total);
        reap(e, &kid);
        close(p[0]), close(p[1]);
    }
    share(e, S, &total, sizeof total);
    if (e->role == C) {
        drain(e, FD, total, 3);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
}

static void killed_child(struct end *e)
{
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            recv(FD, (char[8]){0}, 8, 0);
            pause();
        }
        await_sleep(e, kid.pid, kid.pid);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        go(e);
        say(e, "%d good", converse(FD, 0, 20));
    } else {
        await_go(e);
        client_converses(e, 20);
    }
}

// A child dies in the middle of a send; its parent goes on where it stopped.
static void killed_in_send(struct end *e)
{
    static unsigned char buf[1 << 20];
    size_t n = 0, odd = 0;
    ssize_t r;
    if (e->role == S) {
        converse(FD, 0, 20);
        for (int round = 0; round < 12; round++) {
            struct kid kid = spawn(e);
            if (kid.pid == 0) {
                memset(buf, 'k', sizeof buf);
                while (send(FD, buf, sizeof buf, 0) > 0) {
                }
                _exit(1);
            }
            await_go(e); // much has arrived
            kill(kid.pid, SIGKILL);
            reap(e, &kid);
            T(send(FD, "p", 1, 0));
        }
        T(shutdown(FD, SHUT_WR));
        return;
    }
    client_converses(e, 20);
    for (int round = 0; round < 12; round++) {
        int parent = 0;
        for (size_t some = 0; !parent; n += r) {
            r = recv(FD, buf, sizeof buf, 0);
            if (r <= 0) {
                say(e, "ended early");
                return;
            }
            for (ssize_t i = 0; i < r; i++) {
                parent += buf[i] == 'p';
                odd += buf[i] != 'p' && buf[i] != 'k';
            }
            if (some < 3000000 && some + r >= 3000000)
                go(e);
            some += r;
        }
    }
    say(e, "odd: %zu", odd);
    T(recv(FD, buf, 1, 0));
}

enum { KILLS = 60, TAKES = 200000 };

// Counts upwards in words of 8 bytes until the peer says that it is enough.
static void send_numbers(struct end *e)
{
    static uint64_t words[4096];
    uint64_t next = 1;
    while (recv(FD, (char[1]){0}, 1, MSG_DONTWAIT) < 0) {
        for (int i = 0; i < 4096; i++)
            words[i] = next++;
        if (send(FD, words, sizeof words, MSG_NOSIGNAL) != sizeof words)
            break;
    }
    T(shutdown(FD, SHUT_WR));
}

// Where in the stream of numbers `buf` begins; 0 if nowhere.
static uint64_t place(const unsigned char *buf, size_t n)
{
    for (size_t shift = 0; shift < 8; shift++) {
        uint64_t first, word;
        memcpy(&first, buf + shift, 8);
        size_t at = shift + 8;
        for (uint64_t want = first + 1; at + 8 <= n; at += 8, want++) {
            memcpy(&word, buf + at, 8);
            if (word != want)
                break;
        }
        if (at + 8 > n && first * 8 > shift)
            return first * 8 - shift;
    }
    return 0;
}

// A child dies in the middle of a receive; what it had taken is lost with it, and
// its parent goes on behind that.
static void killed_in_receive(struct end *e)
{
    static unsigned char buf[TAKES];
    int in_place = 0;
    if (e->role == C) {
        client_converses(e, 20);
        send_numbers(e);
        return;
    }
    converse(FD, 0, 20);
    volatile uint64_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *at = 8;
    for (int round = 0; round < KILLS; round++) {
        uint64_t before = *at;
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            for (unsigned i = round * 7919;; i += 104729) {
                ssize_t r = recv(FD, buf, 1 + i % TAKES, i % 5 == 0 ? MSG_PEEK : 0);
                if (r <= 0)
                    _exit(1);
                *at += i % 5 == 0 ? 0 : r;
            }
        }
        for (int i = 0; *at < before + 100000 && i < 50000; i++)
            usleep(100);
        usleep(round * 37 % 1000);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
        ssize_t n = recv(FD, buf, 5000, MSG_WAITALL);
        uint64_t now = n == 5000 ? place(buf, n) : 0;
        if (now < *at || now > *at + TAKES)
            break;
        in_place++;
        *at = now + n;
    }
    say(e, "%d in place", in_place);
    T(send(FD, "x", 1, 0));
    uint64_t odd = 0;
    for (ssize_t n; (n = recv(FD, buf, 5000, MSG_WAITALL)) > 0; *at += n)
        odd += n >= 24 && place(buf, n) != *at;
    say(e, "odd: %llu", (unsigned long long)odd);
}

// fork(2) past libc.
static pid_t raw_fork(void)
{
    long pid;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(pid) : "0"((long)SYS_fork) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = SYS_clone;
    register long flags __asm__("x0") = SIGCHLD;
    register long b __asm__("x1") = 0, c __asm__("x2") = 0, d __asm__("x3") = 0, f __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(flags) : "r"(number), "r"(b), "r"(c), "r"(d), "r"(f) : "memory");
    pid = flags;
#endif
    return pid;
}

// What a child closes is closed only for itself, also where it runs in our memory.
static void closes_and_ends(struct end *e)
{
    close(FD);
    close(e->lfd);
    _exit(3);
}

// A child has what its parent has, also one that nobody has seen coming.
static void looks_and_ends(struct end *e)
{
    struct pollfd p = {FD, POLLIN, 0};
    int is_quiet = recv(FD, (char[1]){0}, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN && poll(&p, 1, 0) == 0;
    _exit(is_quiet && close(FD) == 0 ? 3 : 4);
}

#define CHILD_ENDS(name, make, ends) \
    static void name(struct end *e) \
    { \
        AT(S) { \
            int status = 0; \
            pid_t pid = make; \
            if (pid == 0) \
                ends(e); \
            MUST(waitpid(pid, &status, 0)); \
            say(e, "child ended with %x", status); \
            T(fcntl(FD, F_GETFD)); \
        } \
        AT(C) T(send(FD, "abc", 3, 0)); \
        AT(S) { \
            T(recv(FD, (char[8]){0}, 8, 0)); \
            T(send(FD, "def", 3, 0)); \
        } \
        AT(C) T(recv(FD, (char[8]){0}, 8, 0)); \
    }

#define CHILD_CLOSES(name, make) CHILD_ENDS(name, make, closes_and_ends)

CHILD_CLOSES(vfork_closes, vfork())
CHILD_ENDS(raw_child_looks, raw_fork(), looks_and_ends)

// The same with the signal blocked that tells of memory which is not there.
static pid_t raw_fork_deaf(void)
{
    sigset_t fault, former;
    sigemptyset(&fault);
    sigaddset(&fault, SIGSEGV);
    sigprocmask(SIG_BLOCK, &fault, &former);
    pid_t pid = raw_fork();
    if (pid)
        sigprocmask(SIG_SETMASK, &former, NULL);
    return pid;
}
CHILD_ENDS(raw_deaf_child_looks, raw_fork_deaf(), looks_and_ends)
// A `vfork` without libc's: the child goes over to a stack of its own before it calls anything, since the way
// back of its parent lies on this one. By its number, and by an instruction.
#ifdef __x86_64__
#define VFORK(name, call) \
    pid_t name(void (*child)(struct end *), struct end *e, void *stack); \
    __asm__(".text\n" \
            #name ":\n" \
            "    push %rbx\n" \
            "    push %r12\n" \
            "    push %r13\n" \
            "    mov %rdi, %rbx\n" \
            "    mov %rsi, %r12\n" \
            "    mov %rdx, %r13\n" \
            "    xor %edx, %edx\n" \
            "    xor %ecx, %ecx\n" \
            "    xor %r8d, %r8d\n" \
            "    xor %r9d, %r9d\n" \
            "    xor %r10d, %r10d\n" \
            call \
            "    test %eax, %eax\n" \
            "    jnz 1f\n" \
            "    mov %r13, %rsp\n" \
            "    mov %r12, %rdi\n" \
            "    call *%rbx\n" \
            "1:  pop %r13\n" \
            "    pop %r12\n" \
            "    pop %rbx\n" \
            "    ret\n")
// 56: SYS_clone; 0x4111: CLONE_VFORK | CLONE_VM | SIGCHLD
VFORK(numbered_vfork, "mov $56, %edi\n mov $0x4111, %esi\n xor %eax, %eax\n call syscall@PLT\n");
VFORK(raw_vfork, "mov $56, %eax\n mov $0x4111, %edi\n xor %esi, %esi\n syscall\n");
static pid_t lent_child(struct end *e, pid_t (*make)(void (*)(struct end *), struct end *, void *))
{
    static char stacks[2][65536] __attribute__((aligned(16)));
    return make(closes_and_ends, e, stacks[e->role == S] + sizeof stacks[0]);
}
#else
static pid_t numbered_vfork(void (*child)(struct end *), struct end *e, void *stack)
{
    (void)stack;
    pid_t pid = vfork();
    if (pid == 0)
        child(e);
    return pid;
}
#define raw_vfork numbered_vfork
static pid_t lent_child(struct end *e, pid_t (*make)(void (*)(struct end *), struct end *, void *))
{
    return make(closes_and_ends, e, NULL);
}
#endif
CHILD_CLOSES(numbered_vfork_closes, lent_child(e, numbered_vfork))
CHILD_CLOSES(raw_vfork_closes, lent_child(e, raw_vfork))
CHILD_CLOSES(raw_child_closes, raw_fork())

// What a `vfork` child puts at the number of a connection is not that connection.
static void vfork_replaces(struct end *e)
{
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        int told[2];
        char buf[16];
        MUST(pipe2(told, O_CLOEXEC));
        await_bytes(e, FD, 6);
        pid_t pid = vfork();
        if (pid == 0) {
            dup2(told[1], FD);
            execl("/nonexistent", "x", NULL);
            _exit(write(FD, "fails", 5) == 5 ? 0 : 9);
        }
        int status = 0;
        MUST(waitpid(pid, &status, 0));
        say(e, "child exited with %d", WEXITSTATUS(status));
        close(told[1]);
        T(read(told[0], buf, sizeof buf));
        close(told[0]);
        T(recv(FD, buf, sizeof buf, 0));
        T(send(FD, "abc", 3, 0));
    }
    AT(C) {
        T(recv(FD, (char[8]){0}, 3, MSG_WAITALL));
        T(recv(FD, (char[8]){0}, 8, MSG_DONTWAIT));
    }
}

static void vfork_rearranges(struct end *e)
{
    AT(S) {
        int status = 0;
        pid_t pid = vfork();
        if (pid == 0) {
            dup2(FD, 0);
            dup2(FD, 700);
            close_range(3, ~0U, 0);
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        MUST(waitpid(pid, &status, 0));
        say(e, "child exited with %d", WEXITSTATUS(status));
        T(fcntl(700, F_GETFD));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        T(recv(FD, (char[8]){0}, 8, 0));
        T(send(FD, "def", 3, 0));
    }
    AT(C) T(recv(FD, (char[8]){0}, 8, 0));
}

extern char **environ;
static void spawned(struct end *e)
{
    AT(S) {
        posix_spawn_file_actions_t acts;
        posix_spawn_file_actions_init(&acts);
        posix_spawn_file_actions_addclose(&acts, FD);
        posix_spawn_file_actions_adddup2(&acts, 1, 700);
        posix_spawn_file_actions_addclosefrom_np(&acts, 3);
        pid_t pid;
        int status = -1;
        char *argv[] = {"sh", "-c", "exit 7", NULL};
        T(posix_spawn(&pid, "/bin/sh", &acts, NULL, argv, environ));
        MUST(waitpid(pid, &status, 0));
        say(e, "exited with %d", WEXITSTATUS(status));
        T(posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ) == ENOENT);
        T(system("exit 3") >> 8);
        char line[32] = "";
        FILE *f = popen("echo hello", "r");
        if (!f || !fgets(line, sizeof line, f))
            say(e, "popen failed");
        T(pclose(f));
        say(e, "%.5s", line);
        posix_spawn_file_actions_destroy(&acts);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        T(recv(FD, (char[8]){0}, 8, 0));
        T(send(FD, "def", 3, 0));
    }
    AT(C) T(recv(FD, (char[8]){0}, 8, 0));
}

// Forks that no handler of the library hears of.
static void quiet_forks(struct end *e)
{
    if (e->role == S) {
        for (int how = 0; how < 2; how++) {
            int p[2];
            MUST(pipe2(p, O_CLOEXEC));
            pid_t pid = how ? (pid_t)syscall(SYS_fork) : _Fork();
            if (pid == 0) {
                int good = converse(FD, 0, 20);
                raw_write(p[1], (char *)&good, sizeof good);
                _exit(0);
            }
            int good = -1;
            get(p[0], &good, sizeof good);
            MUST(waitpid(pid, NULL, 0));
            say(e, "%d good in the child", good);
            say(e, "%d good", converse(FD, 0, 20));
            close(p[0]), close(p[1]);
        }
    } else {
        for (int i = 0; i < 4; i++)
            client_converses(e, 20);
    }
}

static void *receives(void *arg)
{
    struct end *e = arg;
    char buf[8];
    return (void *)recv(FD, buf, 8, 0);
}

// Until the other thread sleeps: there is only one.
static void await_other_thread(struct end *e)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *entry;
    while ((entry = readdir(d)))
        if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != e->tid)
            await_sleep(e, e->pid, atoi(entry->d_name));
    closedir(d);
}

// Fork while another thread sleeps in recv on the connection.
static void fork_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        void *r;
        MUST(pthread_create(&t, NULL, receives, e));
        await_other_thread(e);
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            T(send(FD, "abc", 3, 0));
            _exit(0);
        }
        reap(e, &kid);
        go(e);
        pthread_join(t, &r);
        say(e, "received %ld", (long)r);
        go(e);
        say(e, "%d good", converse(FD, 0, 20));
    } else {
        T(recv(FD, (char[3]){0}, 3, MSG_WAITALL));
        await_go(e);
        T(send(FD, "def", 3, 0));
        await_go(e); // the other thread has received that, and nothing else
        client_converses(e, 20);
    }
}

// A fork in the middle of many others' traffic, again and again.
static void often(struct end *e)
{
    if (e->role == S) {
        for (int i = 0; i < 10; i++) {
            struct kid kid = spawn(e);
            if (kid.pid == 0)
                _exit(converse(FD, 0, 3) == 3 ? 0 : 1);
            reap(e, &kid);
        }
    } else {
        for (int i = 0; i < 10; i++)
            client_converses(e, 3);
    }
}

// The child makes connections of its own.
static void child_connects(struct end *e)
{
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
            T(tcp_connect(fd, e->fam, e->port));
            say(e, "%d good", converse(fd, 1, 30));
            close(fd);
            _exit(0);
        }
        reap(e, &kid);
        client_converses(e, 10);
    } else {
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        say(e, "%d good", converse(fd, 0, 30));
        T(recv(fd, (char[1]){0}, 1, 0));
        close(fd);
        say(e, "%d good", converse(FD, 0, 10));
    }
}

// What a child does with its copy of an epoll set is nothing to its parent, as long as it
// only closes it.
static void child_closes_set(struct end *e)
{
    enum { TURNS = 60 };
    char c = 0;
    struct epoll_event ev = {.events = EPOLLIN};
    int bad = 0, ep = e->role == S ? MUST(epoll_create1(0)) : -1;
    if (e->role == S)
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev) + 1);
    for (int i = 0; i < TURNS; i++) {
        if (e->role == C) {
            bad += send(FD, &c, 1, 0) != 1 || recv(FD, &c, 1, 0) != 1;
            continue;
        }
        bad += epoll_wait(ep, &ev, 1, 5000) != 1 || recv(FD, &c, 1, 0) != 1 || send(FD, &c, 1, 0) != 1;
        if (i % 20 != 0)
            continue;
        pid_t pid = fork();
        if (pid == 0) {
            close(ep);
            _exit(0);
        }
        bad += waitpid(pid, NULL, 0) != pid;
    }
    if (e->role == S) {
        will_block(e);
        bad += epoll_wait(ep, &ev, 1, 5000) != 1 || recv(FD, &c, 1, 0) != 1;
        close(ep);
    } else {
        await_blocked(e);
        bad += send(FD, &c, 1, 0) != 1;
    }
    say(e, "%d bad", bad);
}

static void *waits(void *arg)
{
    struct epoll_event ev;
    return (void *)(long)epoll_wait(*(int *)arg, &ev, 1, -1);
}

static void *polls(void *arg)
{
    struct pollfd p = {*(int *)arg, POLLIN, 0};
    return (void *)(long)poll(&p, 1, -1);
}

static int descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

// How many descriptors a child has less once it has closed its copy of the set. A library
// may have some behind it, always as many.
static int freed_by_child(struct end *e, int ep)
{
    int status = 0;
    pid_t pid = MUST(fork());
    if (pid == 0) {
        int before = descriptors();
        close(ep);
        _exit(before - descriptors());
    }
    MUST(waitpid(pid, &status, 0));
    return WEXITSTATUS(status);
}

static int descriptors_of_child(struct end *e)
{
    int status = 0;
    pid_t pid = MUST(fork());
    if (pid == 0)
        _exit(descriptors());
    MUST(waitpid(pid, &status, 0));
    return WEXITSTATUS(status);
}

// The same when the set has been closed under the waiter, which alone keeps it.
static void fork_under_closed_set(struct end *e)
{
    if (e->role == C) {
        await_go(e);
        T(send(FD, "a", 1, 0));
        client_converses(e, 20);
        return;
    }
    struct epoll_event ev = {.events = EPOLLIN};
    int ep = MUST(epoll_create1(0));
    pthread_t t;
    void *r;
    T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    MUST(pthread_create(&t, NULL, waits, &ep));
    await_other_thread(e);
    close(ep);
    int under_waiter = descriptors_of_child(e);
    go(e);
    pthread_join(t, &r);
    say(e, "the waiter found %ld", (long)r);
    T(recv(FD, (char[1]){0}, 1, 0));
    say(e, "more than without a waiter: %d", under_waiter - descriptors_of_child(e));
    say(e, "%d good", converse(FD, 0, 20));
}

// Fork while another thread sleeps on an epoll set: it does not in the child.
static void fork_under_waiter(struct end *e)
{
    if (e->role == C) {
        await_go(e);
        T(send(FD, "a", 1, 0));
        await_go(e);
        T(send(FD, "b", 1, 0));
        client_converses(e, 20);
        return;
    }
    struct epoll_event ev = {.events = EPOLLIN};
    int ep = MUST(epoll_create1(0));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    int alone = freed_by_child(e, ep);
    void *(*sleepers[])(void *) = {waits, polls};
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        void *r;
        MUST(pthread_create(&t, NULL, sleepers[i], &ep));
        await_other_thread(e);
        int freed = freed_by_child(e, ep), before = alone;
        go(e);
        pthread_join(t, &r);
        alone = freed_by_child(e, ep); // the connection may have moved to shared memory meanwhile
        say(e, "freed as without a waiter: %d", freed == before || freed == alone);
        say(e, "the waiter found %ld", (long)r);
        T(recv(FD, (char[1]){0}, 1, 0));
    }
    close(ep);
    say(e, "%d good", converse(FD, 0, 20));
}

static volatile pid_t forked;
static void forks(int signal) { forked = fork(); }

static void *signals_sleeper(void *arg)
{
    struct end *e = arg;
    await_sleep(e, e->pid, e->tid);
    tgkill(e->pid, e->tid, SIGUSR1);
    return NULL;
}

// A signal handler forks while its thread, one of two, sleeps: the call goes on in both
// processes, and both go on using what it slept on.
static void fork_by_handler(struct end *e)
{
    struct epoll_event ev = {.events = EPOLLIN};
    struct pollfd p = {FD, POLLIN, 0};
    char c;
    if (e->role == C) {
        for (int i = 0; i < 2; i++) {
            T(recv(FD, &c, 1, 0));
            T(send(FD, "b", 1, 0));
        }
        client_converses(e, 20);
        return;
    }
    int ep = MUST(epoll_create1(0));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    struct sigaction act = {.sa_handler = forks}, old;
    sigaction(SIGUSR1, &act, &old);
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        MUST(pthread_create(&t, NULL, signals_sleeper, e));
        int r = i ? poll(&p, 1, -1) : epoll_wait(ep, &ev, 1, -1), error = errno;
        if (forked == 0) {
            int good = put(FD, "a", 1) == 1 && get(FD, &c, 1) == 1 && c == 'b' && close(ep) == 0 && close(FD) == 0;
            _exit(r == -1 && error == EINTR && good ? 3 : 4);
        }
        int status = 0;
        say(e, "waited: %d, %s", r, errname(error));
        MUST(waitpid(forked, &status, 0));
        say(e, "child exited with %d", WEXITSTATUS(status));
        pthread_join(t, NULL);
    }
    sigaction(SIGUSR1, &old, NULL);
    close(ep);
    say(e, "%d good", converse(FD, 0, 20));
}

static sigjmp_buf out_of_call;
static void forks_and_leaves(int signal)
{
    forks(signal);
    if (forked == 0)
        siglongjmp(out_of_call, 1);
}

// Has the sleeper's handler fork, and says when the child has ended and the sleeper sleeps on.
static void *lets_it_fork(void *arg)
{
    struct end *e = arg;
    int status = 0;
    forked = -1;
    signals_sleeper(e);
    while (forked <= 0)
        nap();
    MUST(waitpid(forked, &status, 0));
    await_sleep(e, e->pid, e->tid);
    go(e);
    return (void *)(long)WEXITSTATUS(status);
}

// A signal handler forks in the middle of a receive. The child leaves the call by a jump,
// and ends; its parent sleeps on, and receives.
static void fork_by_handler_sleeps_on(struct end *e)
{
    char buf[8];
    if (e->role == C) {
        for (int i = 0; i < 3; i++) {
            await_go(e);
            T(send(FD, "abc", 3, 0));
        }
        client_converses(e, 20);
        return;
    }
    struct sigaction act = {.sa_handler = forks_and_leaves, .sa_flags = SA_RESTART}, old;
    sigaction(SIGUSR1, &act, &old);
    for (volatile int i = 0; i < 3; i++) {
        pthread_t t;
        void *exited;
        if (sigsetjmp(out_of_call, 1))
            _exit(i == 0 || (recv(FD, buf, 8, MSG_DONTWAIT) == -1 && errno == EAGAIN) ? 3 : 4);
        MUST(pthread_create(&t, NULL, lets_it_fork, e));
        T(recv(FD, buf, 3, 0));
        pthread_join(t, &exited);
        say(e, "child exited with %ld", (long)exited);
    }
    sigaction(SIGUSR1, &old, NULL);
    say(e, "%d good", converse(FD, 0, 20));
}

static int sleep_by(int how, int fd, int set)
{
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event ev;
    char c;
    if (how == 1 && poll(&p, 1, -1) != 1)
        return -1;
    if (how == 2 && epoll_wait(set, &ev, 1, -1) != 1)
        return -1;
    return recv(fd, &c, 1, 0);
}

// A child is killed in its sleep. Its parent still sleeps while there is nothing to do.
static void killed_asleep(struct end *e)
{
    enum { WAYS = 3, TURNS = 3 };
    int ep = -1;
    if (e->role == S) {
        struct epoll_event ev = {.events = EPOLLIN};
        ep = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
    }
    for (int i = 0; i < WAYS * WAYS; i++) {
        if (e->role == S) {
            struct kid kid = spawn(e);
            if (kid.pid == 0)
                _exit(sleep_by(i / WAYS, FD, ep));
            await_sleep(e, kid.pid, kid.pid);
            kill(kid.pid, SIGKILL);
            reap(e, &kid);
        }
        for (int turn = 0; turn < TURNS; turn++) {
            if (e->role == S) {
                will_block(e);
                T(sleep_by(i % WAYS, FD, ep));
            } else {
                await_blocked(e);
                T(send(FD, "x", 1, 0));
            }
        }
        // Nor does a look at an empty connection disturb it.
        if (e->role == S) {
            T(recv(FD, (char[1]){0}, 1, MSG_DONTWAIT));
            will_block(e);
            T(sleep_by(i % WAYS, FD, ep));
        } else {
            await_blocked(e);
            T(send(FD, "y", 1, 0));
        }
    }
    if (e->role == S)
        close(ep);
}

// Who waits for room hears of what a forked relative does to the connection.
static void room_for_relatives(struct end *e)
{
    for (int how = 0; how < 3; how++) {
        size_t total = 0;
        struct kid kid;
        if (e->role == S)
            total = stuff(e, FD, how);
        share(e, S, &total, sizeof total);
        if (e->role == S) {
            struct pollfd p = {FD, POLLOUT, 0};
            pid_t parent = e->pid;
            kid = spawn(e);
            if (kid.pid == 0) {
                await_sleep(e, parent, parent);
                if (how == 2)
                    T(shutdown(FD, SHUT_WR));
                else
                    go(e);
                _exit(0);
            }
            T(poll(&p, 1, how ? -1 : 3 * PATIENCE_MS));
            say(e, "%s", events(p.revents));
            reap(e, &kid);
            if (how == 2)
                go(e);
        } else {
            await_go(e);
            drain(e, FD, total, how);
        }
        meet(e);
    }
}

// What a child takes out of a set is out for its parent, too, which may put it back.
static void child_takes_out(struct end *e)
{
    AT(S) {
        struct epoll_event ev = {.events = EPOLLIN};
        int status = 0, ep = MUST(epoll_create1(0));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        pid_t pid = fork();
        if (pid == 0) {
            int done = epoll_ctl(ep, EPOLL_CTL_DEL, FD, NULL);
            _exit(done == 0 ? 0 : 1);
        }
        MUST(waitpid(pid, &status, 0));
        say(e, "child exited with %d", WEXITSTATUS(status));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev));
        close(ep);
    }
}

// Who hears of an error first, parent or child, is the only one to hear of it.
static void error_told_once(struct end *e)
{
    struct kid kid = {0};
    char buf[8];
    AT(C) {
        kid = spawn(e);
        if (kid.pid == 0) {
            pause();
            _exit(0);
        }
        close(FD);
        FD = -1;
    }
    AT(S) T(send(FD, "abc", 3, 0));
    AT(C) {
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
    }
    AT(S) {
        int status = 0;
        say(e, "%s", events(await_events(e, FD, POLLIN)));
        pid_t pid = MUST(fork());
        if (pid == 0) {
            ssize_t n = recv(FD, buf, 8, 0);
            _exit(n == -1 ? errno : 0);
        }
        MUST(waitpid(pid, &status, 0));
        say(e, "child ended with %x", status);
        T(recv(FD, buf, 8, 0));
    }
}

// A peer that has shut down its half is killed, and leaves something unread: who waits for nothing but an
// error hears of that.
static void killed_half_closed(struct end *e)
{
    struct kid kid = {0};
    AT(S) T(send(FD, "abc", 3, 0));
    AT(C) {
        T(shutdown(FD, SHUT_WR));
        kid = spawn(e);
        if (kid.pid == 0) {
            pause();
            _exit(0);
        }
        close(FD);
        FD = -1;
    }
    if (e->role == S) {
        struct pollfd p = {FD, 0, 0};
        will_block(e);
        T(poll(&p, 1, PATIENCE_MS));
        say(e, "%s", events(p.revents));
    } else {
        await_blocked(e);
        kill(kid.pid, SIGKILL);
        reap(e, &kid);
    }
}

DIFF_MAIN(CASE(error_told_once, SPLIT | ONLY_COLD), CASE(child_serves, SPLIT | ALL | COLD), CASE(child_closes_set, SPLIT | COLD),
          KNOWN(child_takes_out, SPLIT | COLD, "each process has registrations of its own for shunted sockets"), CASE(alternating, SPLIT | ALL | COLD), CASE(both_fork, SPLIT | COLD),
          CASE(child_looks_away, SPLIT | COLD), CASE(child_shuts_down, SPLIT | COLD), CASE(last_holder, SPLIT | COLD),
          CASE(unread_bytes, SPLIT | COLD), CASE(grandchild, SPLIT | COLD),
          CASE(child_receives_parent_sends, SPLIT | COLD), CASE(handed_over, SPLIT | COLD),
          CASE(child_leaves_full, SPLIT), CASE(killed_child, SPLIT | COLD), CASE(killed_in_send, SPLIT | COLD),
          CASE(killed_in_receive, SPLIT | COLD), CASE(vfork_closes, COLD | ALL),
          CASE(raw_child_closes, COLD | ALL), CASE(raw_child_looks, COLD), CASE(raw_deaf_child_looks, COLD), CASE(raw_vfork_closes, COLD | ALL), CASE(numbered_vfork_closes, COLD | ALL),
          CASE(vfork_replaces, COLD), CASE(vfork_rearranges, COLD), CASE(spawned, COLD), CASE(quiet_forks, SPLIT | COLD),
          CASE(fork_under_receiver, SPLIT), CASE(fork_under_waiter, SPLIT),
          CASE(fork_under_closed_set, SPLIT), CASE(fork_by_handler, SPLIT), CASE(killed_asleep, SPLIT | COLD), CASE(fork_by_handler_sleeps_on, SPLIT | COLD),
          CASE(room_for_relatives, SPLIT), CASE(killed_half_closed, SPLIT | COLD), CASE(often, SPLIT | COLD), CASE(child_connects, SPLIT | ALL))
