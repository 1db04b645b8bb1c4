// Connections that other programs inherit, and that other processes are given.
// path: shunted
#include "diff.h"
#include "pass.h"

static void asks(struct end *e, const char *text, const char *answer)
{
    char buf[128];
    size_t n = strlen(answer);
    put(FD, text, strlen(text));
    size_t got = get(FD, buf, n);
    say(e, "%s", got == n && !memcmp(buf, answer, n) ? "right" : "wrong");
}

// inetd's way: the connection is standard input and output of a program.
static void run_on(struct end *e, const char *program, char *const argv[], int by_spawn)
{
    if (by_spawn) {
        posix_spawn_file_actions_t acts;
        posix_spawn_file_actions_init(&acts);
        posix_spawn_file_actions_adddup2(&acts, FD, 0);
        posix_spawn_file_actions_adddup2(&acts, FD, 1);
        pid_t pid;
        int status;
        if (posix_spawn(&pid, program, &acts, NULL, argv, environ))
            say(e, "not spawned");
        close(FD), FD = -1;
        MUST(waitpid(pid, &status, 0));
        say(e, "exited with %d", WEXITSTATUS(status));
        posix_spawn_file_actions_destroy(&acts);
        return;
    }
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        dup2(FD, 0);
        dup2(FD, 1);
        execv(program, argv);
        _exit(99);
    }
    close(FD), FD = -1;
    reap(e, &kid);
}

static void cat(struct end *e, int by_spawn)
{
    char *argv[] = {"cat", NULL};
    if (e->role == S) {
        run_on(e, "/bin/cat", argv, by_spawn);
    } else {
        for (int i = 0; i < 5; i++)
            asks(e, "hello, cat", "hello, cat");
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}
static void inetd_cat(struct end *e) { cat(e, 0); }
static void inetd_cat_spawned(struct end *e) { cat(e, 1); }

static void shell(struct end *e)
{
    char *argv[] = {"sh", "-c", "read a; echo \"got $a\"; read b; echo \"and $b\"; exit 6", NULL};
    if (e->role == S) {
        run_on(e, "/bin/sh", argv, 0);
    } else {
        asks(e, "one\n", "got one\n");
        asks(e, "two\n", "and two\n");
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

// Bytes that came before exec are the new program's.
static void bytes_wait(struct end *e)
{
    char *argv[] = {"cat", NULL};
    if (e->role == S) {
        await_bytes(e, FD, 20);
        char buf[8];
        T(recv(FD, buf, 7, 0));
        run_on(e, "/bin/cat", argv, 0);
    } else {
        char buf[32];
        T(send(FD, "header.body of bytes", 20, 0));
        T(get(FD, buf, 13));
        say(e, "%.13s", buf);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}

// Our own program goes on with an inherited descriptor.
static void resume(struct end *e)
{
    unsigned char buf[32];
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            char number[16], out[16];
            fcntl(FD, F_SETFD, 0);
            fcntl(e->out->fd, F_SETFD, 0);
            snprintf(number, sizeof number, "%d", FD);
            snprintf(out, sizeof out, "%d", e->out->fd);
            execl("/proc/self/exe", "resume", "resume", number, out, NULL);
            _exit(99);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        int good = 0;
        for (int i = 0; i < 50; i++) {
            fill(buf, 32, i, 1);
            put(FD, buf, 32);
            good += get(FD, buf, 32) == 32 && check(buf, 32, i, 2) < 0;
        }
        say(e, "%d good", good);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}

static void say_there(int fd, const char *what, int n)
{
    char line[64];
    int k = snprintf(line, sizeof line, "resumed: %d %s\n", n, what);
    raw_write(fd, line, k);
}

static int resumed(int fd, int out)
{
    unsigned char buf[32];
    int good = 0, i = 0;
    struct pollfd p = {fd, POLLIN, 0};
    while (poll(&p, 1, 5000) == 1 && get(fd, buf, 32) == 32) {
        good += check(buf, 32, i, 1) < 0;
        fill(buf, 32, i, 2);
        put(fd, buf, 32);
        i++;
    }
    say_there(out, "good", good);
    return 0;
}

// An exec'd program that never touches the connection disturbs nobody.
static void bystander(struct end *e)
{
    if (e->role == S) {
        fcntl(FD, F_SETFD, 0);
        say(e, "%d", system("exit 4") >> 8);
        fcntl(FD, F_SETFD, FD_CLOEXEC);
        say(e, "%d", system("exit 5") >> 8);
        T(send(FD, "abc", 3, 0));
        T(recv(FD, (char[4]){0}, 4, 0));
    } else {
        T(recv(FD, (char[4]){0}, 3, MSG_WAITALL));
        T(send(FD, "def", 3, 0));
    }
}

// A failed exec changes nothing.
static void failed_exec(struct end *e)
{
    char *argv[] = {"x", NULL};
    AT(S) {
        // The program that is not run would get the connection.
        MUST(fcntl(FD, F_SETFD, 0));
        T(execv("/nonexistent/program", argv));
        T(execve("/dev/null", argv, environ));
        T(send(FD, "abc", 3, 0));
    }
    AT(C) {
        T(recv(FD, (char[4]){0}, 4, 0));
        T(send(FD, "def", 3, 0));
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

// The same with bytes under way in both directions, for each way to fail.
static void failed_exec_midway(struct end *e)
{
    char *argv[] = {"x", NULL};
    for (int i = 0; i < 4; i++) {
        AT(C) {
            produce(e, FD, 1000, 1 + i);
            produce(e, FD, 2000, 21 + i);
        }
        AT(S) {
            MUST(fcntl(FD, F_SETFD, 0));
            produce(e, FD, 2000, 11 + i);
            expect(e, FD, 1000, 1 + i);
            pid_t pid = -1;
            switch (i) {
            case 0: T(execv("/nonexistent/program", argv)); break;
            case 1: T(execve("/dev/null", argv, environ)); break;
            case 2: T(posix_spawn(&pid, "/nonexistent/program", NULL, NULL, argv, environ) == ENOENT); break;
            case 3:
                pid = MUST(fork());
                if (pid == 0) {
                    execv("/nonexistent/program", argv);
                    _exit(9);
                }
                int status;
                MUST(waitpid(pid, &status, 0));
                say(e, "exited with %d", WEXITSTATUS(status));
            }
            expect(e, FD, 2000, 21 + i);
        }
        AT(C) expect(e, FD, 2000, 11 + i);
    }
}

// Another number for a connection, by pidfd_getfd(2) from the process itself: like dup.
static int getfd_by_number(int process, int fd, unsigned flags)
{
    return syscall(SYS_pidfd_getfd, process, fd, flags);
}
static void copied(struct end *e, int (*copier)(int, int, unsigned))
{
    AT(C) {
        produce(e, FD, 400, 1);
        produce(e, FD, 600, 2);
    }
    AT(S) {
        int self = MUST(syscall(SYS_pidfd_open, getpid(), 0));
        int copy = copier(self, FD, 0);
        OK(copy);
        T(copier(self, 999, 0));
        close(self);
        expect(e, FD, 400, 1);
        produce(e, copy, 500, 3);
        close(FD), FD = copy;
        expect(e, copy, 600, 2);
        produce(e, copy, 500, 4);
    }
    AT(C) {
        expect(e, FD, 500, 3);
        expect(e, FD, 500, 4);
    }
}
static void copied_by_pidfd(struct end *e) { copied(e, pidfd_getfd); }
static void copied_by_pidfd_number(struct end *e) { copied(e, getfd_by_number); }

// Forked before the connection exists, given it afterwards.
static void given_away(struct end *e)
{
    unsigned char buf[32];
    if (e->role == S) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            close(pair[0]);
            int fd = passed(pair[1]), good = 0;
            for (int i = 0; i < 30; i++) {
                good += get(fd, buf, 32) == 32 && check(buf, 32, i, 1) < 0;
                fill(buf, 32, i, 2);
                put(fd, buf, 32);
            }
            say(e, "%d good", good);
            T(recv(fd, buf, 1, 0));
            _exit(0);
        }
        close(pair[1]);
        go(e);
        FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        if (e->fam & 1) { // half of the time after some use
            for (int i = 0; i < 6; i++)
                get(FD, buf, 4), put(FD, buf, 4);
        }
        pass(pair[0], FD);
        close(FD), FD = -1;
        reap(e, &kid);
        close(pair[0]);
    } else {
        int good = 0;
        await_go(e);
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        MUST(tcp_connect(FD, e->fam, e->port));
        if (e->fam & 1) {
            for (int i = 0; i < 6; i++)
                put(FD, "ping", 4), get(FD, buf, 4);
        }
        for (int i = 0; i < 30; i++) {
            fill(buf, 32, i, 1);
            put(FD, buf, 32);
            good += get(FD, buf, 32) == 32 && check(buf, 32, i, 2) < 0;
        }
        say(e, "%d good", good);
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}

// Passed through a socket pair to ourselves: two numbers, one connection.
static void passed_to_oneself(struct end *e)
{
    char buf[8];
    AT(S) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        pass(pair[0], FD);
        int again = passed(pair[1]);
        T(send(FD, "a", 1, 0));
        T(send(again, "b", 1, 0));
        close(FD);
        FD = again;
        T(send(FD, "c", 1, 0));
        close(pair[0]), close(pair[1]);
    }
    AT(C) {
        await_bytes(e, FD, 3);
        T(recv(FD, buf, 8, 0));
        say(e, "%.3s", buf);
        T(send(FD, "def", 3, 0));
    }
    AT(S) T(recv(FD, buf, 8, 0));
}

// A set goes along, with a connection in it that nobody registers anew.
static void set_goes_along(struct end *e)
{
    char buf[32];
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            char number[16], set_number[16], out[16];
            struct epoll_event event = {EPOLLIN, {.u64 = 77}};
            int set = MUST(epoll_create1(0));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
            for (int i = 0; i < 30; i++) {
                MUST(epoll_wait(set, &event, 1, -1));
                MUST(recv(FD, buf, 1, 0));
                MUST(send(FD, buf, 1, 0));
            }
            fcntl(FD, F_SETFD, 0);
            fcntl(e->out->fd, F_SETFD, 0);
            snprintf(number, sizeof number, "%d", FD);
            snprintf(set_number, sizeof set_number, "%d", set);
            snprintf(out, sizeof out, "%d", e->out->fd);
            execl("/proc/self/exe", "watch", "watch", set_number, number, out, NULL);
            _exit(99);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        for (int i = 0; i < 30; i++) {
            MUST(send(FD, "x", 1, 0));
            MUST(recv(FD, buf, 1, 0));
        }
        for (int i = 0; i < 3; i++)
            asks(e, "hello, set", "hello, set");
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}

static int watched(int set, int fd, int out)
{
    char buf[32];
    struct epoll_event event;
    ssize_t n = 1;
    while (n > 0 && epoll_wait(set, &event, 1, 5000) == 1) {
        say_there(out, "events of ours", event.data.u64 == 77);
        n = recv(fd, buf, 10, MSG_WAITALL);
        put(fd, buf, n > 0 ? n : 0);
    }
    return n != 0;
}

static const struct test all_tests[] = {
    CASE(inetd_cat, SPLIT | ALL | COLD), CASE(inetd_cat_spawned, SPLIT | COLD),
    CASE(shell, SPLIT | COLD),           CASE(bytes_wait, SPLIT | COLD),
    CASE(resume, SPLIT | ALL | COLD),    CASE(given_away, SPLIT | BARE | ALL),
    CASE(bystander, TWO | COLD),                CASE(failed_exec, COLD),
    CASE(passed_to_oneself, COLD),
    CASE(failed_exec_midway, COLD),             CASE(copied_by_pidfd, COLD | PIDFD),
    CASE(copied_by_pidfd_number, COLD | PIDFD), CASE(set_goes_along, SPLIT | COLD),
};

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "resume"))
        return resumed(atoi(argv[2]), atoi(argv[3]));
    if (argc == 5 && !strcmp(argv[1], "watch"))
        return watched(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    return diff_main(argc, argv, all_tests, sizeof all_tests / sizeof *all_tests);
}
