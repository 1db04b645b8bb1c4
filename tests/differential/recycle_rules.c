// What of a connection may be used again, by whom, and where: short connections between sides that share listeners, ports and
// connections with others, change what their sockets are told, and end.
// path: free
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include <sys/fsuid.h>
#include <sys/resource.h>

enum { SOME = 24 };

// What one side finds wrong is counted, so that the output is short.
static int differs(struct end *e, const char *what, long got, long wanted)
{
    if (got == wanted)
        return 0;
    say(e, "%s: %ld and not %ld", what, got, wanted);
    return 1;
}

// The client asks by one byte, and the server answers by the next one.
static int ask(int fd, char c)
{
    char reply = 0;
    put(fd, &c, 1);
    return get(fd, &reply, 1) != 1 || reply != (char)(c + 1);
}

// The same of a server, which returns the byte; 0: there is none.
static char reply(int fd)
{
    char c = 0, next;
    if (get(fd, &c, 1) != 1)
        return 0;
    next = c + 1;
    put(fd, &next, 1);
    return c;
}

static int talk(struct end *e)
{
    return e->role == C ? ask(FD, 'a') : reply(FD) != 'a';
}

static int ends(struct end *e, int fd)
{
    char c;
    int wrong = differs(e, "recv at the end", recv(fd, &c, 1, 0), 0);
    MUST(close(fd));
    return wrong;
}

// One side closes; the other one sees the end, and closes too.
static int part(struct end *e, enum role first)
{
    int wrong = 0;
    if (e->role == first)
        MUST(close(FD));
    else
        wrong = ends(e, FD);
    FD = -1;
    return wrong;
}

static int call_at(struct end *e, int port)
{
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, port));
    return fd;
}

static int is_set(int fd, int level, int name)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, level, name, &value, &n) ? -errno : value != 0;
}

// Whether the listener has the n-th of three options when it accepts the i-th connection: the third one not before long.
static int is_on(int i, int n) { return n < 2 ? i >> n & 1 : i >= SOME / 2; }

// What is accepted has the options of its listener, as they are when it is connected.
static void as_the_listener_is_now(struct end *e)
{
    static const struct {
        int level, name;
    } told[] = {{IPPROTO_TCP, TCP_NODELAY}, {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_OOBINLINE}};
    int wrong = 0;
    for (int i = 0; i < SOME; i++) {
        if (e->role == S) {
            for (int n = 0; n < 3; n++) {
                int on = is_on(i, n);
                MUST(setsockopt(e->lfd, told[n].level, told[n].name, &on, sizeof on));
            }
            will_block(e);
            answer(e);
            for (int n = 0; n < 3; n++)
                wrong += differs(e, "option", is_set(FD, told[n].level, told[n].name), is_on(i, n));
        } else {
            await_blocked(e);
            dial(e);
        }
        wrong += talk(e);
        wrong += part(e, i / 2 % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// A child has the connection, too: it ends when the last of both has closed it.
static void shared_with_a_child(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < SOME; i++) {
        if (e->role == C)
            dial(e);
        else
            answer(e);
        wrong += talk(e);
        if (e->role == (i % 2 ? S : C)) {
            pid_t child = MUST(fork());
            if (child == 0) {
                put(FD, "by the child", 12);
                _exit(0);
            }
            MUST(close(FD));
            FD = -1;
            MUST(waitpid(child, NULL, 0));
        } else {
            char buf[12];
            wrong += differs(e, "from the child", get(FD, buf, 12), 12);
            wrong += ends(e, FD);
            FD = -1;
        }
        // One more, which both close in order.
        if (e->role == C)
            dial(e);
        else
            answer(e);
        wrong += talk(e);
        wrong += part(e, i / 2 % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

static void send_fd(struct end *e, int by, int fd)
{
    char c = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&c, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    MUST(sendmsg(by, &m, 0));
}

static int receive_fd(struct end *e, int by)
{
    int fd = -1;
    char c, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&c, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    MUST(recvmsg(by, &m, MSG_CMSG_CLOEXEC));
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    if (h)
        memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}

// A descriptor of the connection is under way in a message while the last other one is closed.
static void under_way_in_a_message(struct end *e)
{
    int wrong = 0, both[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both));
    for (int i = 0; i < 6; i++) {
        if (e->role == C)
            dial(e);
        else
            answer(e);
        wrong += talk(e);
        if (e->role == (i % 2 ? S : C)) {
            send_fd(e, both[0], FD);
            MUST(close(FD));
            FD = receive_fd(e, both[1]);
        }
        wrong += talk(e);
        wrong += part(e, i / 2 % 2 ? S : C);
    }
    close(both[0]);
    close(both[1]);
    say(e, "wrong: %d", wrong);
}

// Two listeners at one port, each at an address of its own: a connection is its listener's.
static void at_two_addresses(struct end *e)
{
    union address at[2];
    int own[2] = {-1, -1}, port = 0, wrong = 0;
    for (int n = 0; n < 2; n++) {
        at[n] = (union address){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + n)}};
        if (e->role == S) {
            int on = 1;
            socklen_t length = sizeof at[n].in;
            at[n].in.sin_port = htons(port);
            own[n] = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            MUST(setsockopt(own[n], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
            MUST(bind(own[n], &at[n].sa, length));
            MUST(listen(own[n], 8));
            MUST(getsockname(own[n], &at[n].sa, &length));
            port = ntohs(at[n].in.sin_port);
        }
    }
    share(e, S, &port, sizeof port);
    for (int i = 0; i < SOME; i++) {
        int n = i / 3 % 2;
        if (e->role == S) {
            will_block(e);
            FD = MUST(accept4(own[n], NULL, NULL, SOCK_CLOEXEC));
        } else {
            await_blocked(e);
            at[n].in.sin_port = htons(port);
            FD = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            MUST(connect(FD, &at[n].sa, sizeof at[n].in));
        }
        union address name;
        socklen_t length = sizeof name;
        MUST(e->role == S ? getsockname(FD, &name.sa, &length) : getpeername(FD, &name.sa, &length));
        wrong += differs(e, "address", ntohl(name.in.sin_addr.s_addr) - INADDR_LOOPBACK, n);
        wrong += talk(e);
        wrong += part(e, i % 2 ? S : C);
    }
    for (int n = 0; n < 2; n++) {
        if (own[n] >= 0)
            MUST(close(own[n]));
    }
    say(e, "wrong: %d", wrong);
}

// Accepts and answers until it is asked to end.
static void serve(int listener)
{
    char c;
    do {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        c = fd < 0 ? 'q' : reply(fd);
        close(fd);
    } while (c != 'q');
    _exit(0);
}

static pid_t server(struct end *e, int listener)
{
    pid_t child = MUST(fork());
    if (child == 0)
        serve(listener);
    return child;
}

static int asks(struct end *e, int port, char c)
{
    int fd = call_at(e, port);
    return ask(fd, c) + ends(e, fd);
}

// Several processes accept at one listener.
static void several_processes(struct end *e)
{
    enum { PROCESSES = 3 };
    int port = 0, own = -1, wrong = 0;
    pid_t children[PROCESSES];
    if (e->role == S) {
        own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 8, &port));
        for (int i = 0; i < PROCESSES; i++)
            children[i] = server(e, own);
    }
    share(e, S, &port, sizeof port);
    if (e->role == C) {
        for (int i = 0; i < 3 * SOME; i++)
            wrong += asks(e, port, 'a');
        for (int i = 0; i < PROCESSES; i++)
            wrong += asks(e, port, 'q');
    } else {
        for (int i = 0; i < PROCESSES; i++)
            MUST(waitpid(children[i], NULL, 0));
        MUST(close(own));
    }
    say(e, "wrong: %d", wrong);
}

// Two listeners share a port: a server looks at both.
static void shared_port(struct end *e)
{
    struct pollfd both[2];
    int port = 0, wrong = 0;
    if (e->role == S) {
        for (int n = 0; n < 2; n++) {
            int fd = MUST(tcp_listener(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK, SHARED, &port));
            both[n] = (struct pollfd){fd, POLLIN, 0};
        }
    }
    share(e, S, &port, sizeof port);
    for (int i = 0; i < 2 * SOME; i++) {
        if (e->role == C) {
            FD = call_at(e, port);
        } else {
            wrong += differs(e, "poll", MUST(poll(both, 2, PATIENCE_MS)), 1);
            int n = both[1].revents != 0;
            FD = MUST(accept4(both[n].fd, NULL, NULL, SOCK_CLOEXEC));
        }
        wrong += talk(e);
        wrong += part(e, i % 2 ? S : C);
    }
    for (int n = 0; n < 2 && e->role == S; n++)
        MUST(close(both[n].fd));
    say(e, "wrong: %d", wrong);
}

// A server is killed that waits for the next connection; another one takes its port.
static void server_is_killed(struct end *e)
{
    int port = 0, wrong = 0;
    for (int i = 0; i < 6; i++) {
        pid_t child = 0;
        if (e->role == S) {
            int own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, 8, &port));
            child = server(e, own);
            MUST(close(own));
        }
        share(e, S, &port, sizeof port);
        if (e->role == C) {
            for (int n = 0; n < 6; n++)
                wrong += asks(e, port, 'a');
            go(e);
            await_go(e);
            FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
            wrong += differs(e, "connect", tcp_connect(FD, e->fam, port), -1);
            wrong += differs(e, "errno", errno, ECONNREFUSED);
            MUST(close(FD));
            FD = -1;
            go(e);
        } else {
            await_go(e);
            await_sleep(e, child, child);
            kill(child, SIGKILL);
            MUST(waitpid(child, NULL, 0));
            go(e);
            await_go(e);
        }
    }
    say(e, "wrong: %d", wrong);
}

// The client has closed. The server has not looked, and has another program find that out.
static void end_for_a_program(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        if (e->role == C)
            dial(e);
        else
            answer(e);
        wrong += talk(e);
        if (e->role == C) {
            MUST(close(FD));
            FD = -1;
            go(e);
        } else {
            await_go(e);
            pid_t child;
            char *const words[] = {"cat", NULL};
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, FD, 0);
            int failed = posix_spawnp(&child, "cat", &actions, NULL, words, environ);
            posix_spawn_file_actions_destroy(&actions);
            wrong += differs(e, "posix_spawn", failed, 0);
            int status = -1;
            MUST(waitpid(child, &status, 0));
            wrong += differs(e, "status", status, 0);
            MUST(close(FD));
            FD = -1;
        }
    }
    say(e, "wrong: %d", wrong);
}

// The server is stopped as it waits. The client connects, sends, has a program send more, and closes: the server finds all of
// it when it goes on.
static void sent_before_it_is_accepted(struct end *e)
{
    int wrong = 0;
    for (int i = 0; i < 6; i++) {
        if (e->role == C)
            dial(e);
        else
            answer(e);
        wrong += talk(e);
        wrong += part(e, S);
        if (e->role == C) {
            await_blocked(e);
            kill(e->peer_pid, SIGSTOP);
            await_stop(e, e->peer_pid, e->peer_pid);
            dial(e);
            put(FD, "first, ", 7);
            pid_t child;
            char *const words[] = {"echo", "second", NULL};
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, FD, 1);
            int failed = i % 2 ? 0 : posix_spawnp(&child, "echo", &actions, NULL, words, environ);
            posix_spawn_file_actions_destroy(&actions);
            wrong += differs(e, "posix_spawn", failed, 0);
            if (i % 2 == 0)
                MUST(waitpid(child, NULL, 0));
            MUST(close(FD));
            FD = -1;
            kill(e->peer_pid, SIGCONT);
        } else {
            char buf[32];
            const char *all = i % 2 ? "first, " : "first, second\n";
            will_block(e);
            answer(e);
            wrong += differs(e, "bytes", get(FD, buf, sizeof buf), strlen(all)) || memcmp(buf, all, strlen(all)) != 0;
            MUST(close(FD));
            FD = -1;
        }
    }
    say(e, "wrong: %d", wrong);
}

// Opens `most` files, or as many as there can be; how many there are.
static int take_all(int *fds, int most)
{
    int n = 0;
    while (n < most && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    return n;
}

static void give_back(const int *fds, int n)
{
    while (n > 0)
        close(fds[--n]);
}

// A process has descriptors for all that it has not closed: what is kept for the next connection takes none away.
static void full_table(struct end *e)
{
    enum { LIMIT = 160 };
    struct rlimit before, few;
    int wrong = 0, fds[LIMIT], least = 0;
    MUST(getrlimit(RLIMIT_NOFILE, &before));
    few = before;
    few.rlim_cur = LIMIT;
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    for (int i = 0; i < 12; i++) {
        int filled = 0;
        if (e->role == C)
            await_blocked(e);
        // What the library needs itself it has by then.
        if (i > 3 && i % 3 == (e->role == C ? 1 : 2)) {
            // As many as there were while the last connection was open: one number is left.
            filled = take_all(fds, least);
            wrong += differs(e, "files", filled, least);
        }
        if (e->role == S) {
            will_block(e);
            FD = MUST(accept4(e->lfd, NULL, NULL, i % 2 ? SOCK_CLOEXEC : 0));
            wrong += differs(e, "flags", MUST(fcntl(FD, F_GETFD)), i % 2 ? FD_CLOEXEC : 0);
        } else {
            dial(e);
        }
        give_back(fds, filled);
        wrong += talk(e);
        least = take_all(fds, LIMIT);
        give_back(fds, least);
        wrong += part(e, i % 2 ? S : C);
    }
    MUST(setrlimit(RLIMIT_NOFILE, &before));
    say(e, "wrong: %d", wrong);
}

// No number at or above the limit is a new descriptor's, whatever was kept there before the limit was lowered.
static void lowered_limit(struct end *e)
{
    enum { LIMIT = 40, LATER_US = 50000 };
    struct rlimit before, few;
    int wrong = 0, fds[LIMIT], filled;
    MUST(getrlimit(RLIMIT_NOFILE, &before));
    few = before;
    few.rlim_cur = LIMIT;
    for (int i = 0; i < 12; i++) {
        int is_full = i % 4 == 3;
        if (e->role == C) {
            if (is_full) {
                await_go(e);
                usleep(LATER_US);
            } else {
                await_blocked(e);
            }
            dial(e);
        } else if (is_full) {
            MUST(setrlimit(RLIMIT_NOFILE, &few));
            filled = take_all(fds, LIMIT);
            go(e);
            wrong += accept(e->lfd, NULL, NULL) != -1 || errno != EMFILE;
            give_back(fds, filled);
            MUST(setrlimit(RLIMIT_NOFILE, &before));
            answer(e);
        } else {
            will_block(e);
            answer(e);
        }
        wrong += talk(e);
        wrong += part(e, i % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// Another user in this thread alone, also by the raw call.
static void be_apart(uid_t user)
{
#ifdef VIA_SYSCALL
    syscall(SYS_setfsuid, user);
#else
    setfsuid(user);
#endif
}

// A socket is the user's and the group's who has made it, and what is accepted is those' who accept. Last they change in one
// thread alone.
static void another_user(struct end *e)
{
    enum { ROOT, NOBODY = 65534, EACH = 4 };
    static const struct {
        unsigned user, group, apart;
    } who[] = {{ROOT, ROOT, 0},      {ROOT, NOBODY, 0}, {NOBODY, NOBODY, 0}, {ROOT, NOBODY, 0},
               {ROOT, ROOT, 0},      {ROOT, ROOT, 1},   {ROOT, ROOT, 0}};
    enum { PHASES = sizeof who / sizeof *who };
    int wrong = 0, may_change = geteuid() == ROOT;
    for (int i = 0; i < PHASES * EACH; i++) {
        int phase = i / EACH;
        if (may_change && i % EACH == 0) {
            if (who[phase].user == ROOT && geteuid() != ROOT)
                MUST(seteuid(ROOT));
            if (who[phase].group != getegid())
                MUST(setegid(who[phase].group));
            if (who[phase].user != geteuid())
                MUST(seteuid(who[phase].user));
            if (phase > 0 && who[phase].apart != who[phase - 1].apart)
                be_apart(who[phase].apart ? NOBODY : ROOT);
        }
        if (e->role == C) {
            await_blocked(e);
            dial(e);
        } else {
            will_block(e);
            answer(e);
        }
        struct stat made;
        MUST(fstat(FD, &made));
        unsigned user = may_change && who[phase].apart ? NOBODY : geteuid();
        wrong += differs(e, "user", made.st_uid, user) + differs(e, "group", made.st_gid, getegid());
        wrong += talk(e);
        wrong += part(e, i % 2 ? S : C);
    }
    say(e, "wrong: %d", wrong);
}

// The kernel's queue is full, and nobody accepts: what is connected next waits, whatever has been closed before.
static void full_backlog(struct end *e)
{
    enum { ROOM = 2, ALL_OF_THEM = ROOM + 1 };
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        int port = 0, own = -1, fds[ALL_OF_THEM];
        if (e->role == S)
            own = MUST(tcp_listener(e->fam, SOCK_CLOEXEC, ROOM - 1, &port));
        share(e, S, &port, sizeof port);
        // One that both close, for the next one.
        for (int n = 0; n < 2; n++) {
            if (e->role == S)
                FD = MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC));
            else
                FD = call_at(e, port);
            wrong += talk(e);
            wrong += part(e, n % 2 ? S : C);
        }
        meet(e);
        for (int n = 0; n < ALL_OF_THEM && e->role == C; n++) {
            struct pollfd room = {-1, POLLOUT, 0};
            room.fd = fds[n] = MUST(tcp_socket(e->fam, SOCK_CLOEXEC | SOCK_NONBLOCK));
            wrong += differs(e, "connect", tcp_connect(fds[n], e->fam, port), -1);
            wrong += differs(e, "errno", errno, EINPROGRESS);
            wrong += differs(e, "connected", poll(&room, 1, n < ROOM ? PATIENCE_MS : 100), n < ROOM);
        }
        meet(e);
        for (int n = 0; n < ALL_OF_THEM; n++) {
            if (e->role == S) {
                FD = MUST(accept4(own, NULL, NULL, SOCK_CLOEXEC));
                wrong += differs(e, "which", reply(FD), 'a' + n);
            } else {
                FD = fds[n];
                nonblocking(FD, 0);
                struct pollfd room = {FD, POLLOUT, 0};
                wrong += differs(e, "connected at last", poll(&room, 1, PATIENCE_MS), 1);
                wrong += ask(FD, 'a' + n);
            }
            wrong += part(e, C);
        }
        if (e->role == S)
            MUST(close(own));
    }
    say(e, "wrong: %d", wrong);
}

DIFF_MAIN(CASE(as_the_listener_is_now, BARE | TWO), CASE(shared_with_a_child, BARE | SPLIT),
          CASE(under_way_in_a_message, BARE | TWO), CASE(at_two_addresses, BARE | TWO),
          CASE(several_processes, BARE | SPLIT), CASE(shared_port, BARE | TWO), CASE(server_is_killed, BARE | SPLIT),
          CASE(end_for_a_program, BARE | SPLIT),
          CASE(sent_before_it_is_accepted, BARE | SPLIT), CASE(full_table, BARE | SPLIT), CASE(lowered_limit, BARE | SPLIT), CASE(full_backlog, BARE | TWO),
          // From there on nothing is used again.
          CASE(another_user, BARE | SPLIT))
