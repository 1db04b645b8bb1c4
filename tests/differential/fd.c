// Descriptors: copies, numbers, flags, options, and what a socket refuses.
// path: shunted 20%
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"
#include "pest.h"
#include <sys/file.h>
#include <sys/resource.h>

static void copies(struct end *e)
{
    char buf[64];
    for (int i = 0; i < 5; i++) {
        AT(C) {
            int other = -1;
            switch (i) {
            case 0: other = OK(dup(FD)); break;
            case 1: other = OK(dup2(FD, 700)); break;
            case 2: other = OK(dup3(FD, 701, O_CLOEXEC)); break;
            case 3: other = OK(fcntl(FD, F_DUPFD, 600)); break;
            case 4: other = OK(fcntl(FD, F_DUPFD_CLOEXEC, 600)); break;
            }
            T(fcntl(other, F_GETFD));
            T(fcntl(other, F_GETFL));
            T(send(FD, "a", 1, 0));
            T(write(other, "b", 1));
            // Go on with the copy alone.
            T(close(FD));
            FD = other;
            T(send(FD, "c", 1, 0));
        }
        AT(S) {
            int other = MUST(dup(FD));
            await_bytes(e, FD, 3);
            T(recv(FD, buf, 1, 0));
            T(read(other, buf, 1));
            close(FD);
            FD = other;
            T(recv(FD, buf, 8, 0));
            T(send(FD, "back", 4, 0));
        }
        AT(C) T(recv(FD, buf, 8, 0));
    }
}

static void copy_errors(struct end *e)
{
    AT(C) {
        T(dup2(FD, FD) == FD);
        T(dup3(FD, FD, 0));
        T(dup3(FD, 700, 12345));
        T(dup(-1));
        T(dup2(-1, 5));
        T(dup2(FD, -1));
        T(fcntl(FD, F_DUPFD, 1 << 30));
        T(fcntl(FD, F_DUPFD, -1));
        T(fcntl(FD, 12345, 0));
        T(fcntl(-1, F_GETFL));
        T(send(FD, "a", 1, 0));
    }
    AT(S) T(recv(FD, (char[4]){0}, 4, 0));
}

// A number taken over by another file, both ways round.
static void taken_over(struct end *e)
{
    char buf[8];
    AT(C) {
        T(send(FD, "abc", 3, 0));
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        T(dup2(p[1], FD) == FD);
        T(write(FD, "pipe", 4));
        T(read(p[0], buf, 8));
        T(recv(FD, buf, 1, MSG_DONTWAIT));
        T(send(FD, "x", 1, 0));
        close(p[0]), close(p[1]), close(FD), FD = -1;
    }
    AT(S) {
        T(recv(FD, buf, 8, 0));
        T(recv(FD, buf, 8, 0));
    }
}

static void takes_over(struct end *e)
{
    char buf[8];
    AT(C) {
        int p[2];
        MUST(pipe2(p, O_CLOEXEC));
        T(dup2(FD, p[1]) == p[1]);
        T(read(p[0], buf, 8));
        close(FD);
        FD = p[1];
        close(p[0]);
        T(send(FD, "abc", 3, 0));
    }
    AT(S) {
        T(recv(FD, buf, 8, 0));
        T(send(FD, "de", 2, 0));
    }
    AT(C) T(recv(FD, buf, 8, 0));
}

// Two connections change numbers.
static void swapped(struct end *e)
{
    char buf[8];
    int other = -1;
    AT(C) {
        other = tcp_socket(e->fam, SOCK_CLOEXEC);
        MUST(tcp_connect(other, e->fam, e->port));
    }
    int second = -1;
    AT(S) second = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < 6; i++) {
        AT(C) MUST(send(other, "x", 1, 0));
        AT(S) { MUST(recv(second, buf, 1, 0)); MUST(send(second, "y", 1, 0)); }
        AT(C) MUST(recv(other, buf, 1, 0));
    }
    AT(C) {
        int spare = MUST(dup(FD));
        MUST(dup2(other, FD));
        MUST(dup2(spare, other));
        close(spare);
        T(send(FD, "second", 6, 0));
        T(send(other, "first", 5, 0));
    }
    AT(S) {
        T(recv(FD, buf, 8, 0));
        T(recv(second, buf, 8, 0));
        T(send(second, "2", 1, 0));
        T(send(FD, "1", 1, 0));
    }
    AT(C) {
        T(recv(FD, buf, 8, 0));
        say(e, "%c", buf[0]);
        T(recv(other, buf, 8, 0));
        say(e, "%c", buf[0]);
        close(other);
    }
    AT(S) {
        T(recv(FD, buf, 8, 0));
        close(second);
    }
}

static void *replace(void *arg)
{
    struct end *e = arg;
    int pair[2];
    await_sleep(e, e->pid, e->tid);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    close(pair[1]);
    dup2(pair[0], e->fd);
    close(pair[0]);
    syscall(SYS_tgkill, e->pid, e->tid, SIGUSR1);
    return NULL;
}

// A number replaced under a sleeping receiver, as Java does to close it.
static void replaced_under_receiver(struct end *e)
{
    if (e->role == S) {
        pthread_t t;
        handle(SIGUSR1, count_hit, 0);
        MUST(pthread_create(&t, NULL, replace, e));
        T(recv(FD, (char[4]){0}, 4, 0));
        pthread_join(t, NULL);
        T(recv(FD, (char[4]){0}, 4, 0));
        T(send(FD, "x", 1, 0));
    } else {
        T(recv(FD, (char[4]){0}, 4, 0));
    }
}

static void numbers(struct end *e)
{
    char text[400];
    size_t used = 0;
    for (int fd = 0; fd < 600 && used < sizeof text - 8; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            used += snprintf(text + used, sizeof text - used, " %d", fd);
    say(e, "open:%s", text);
}

// The lowest free number, always: what the program sees below 600 is its own.
static void lowest_number(struct end *e)
{
    char buf[8];
    numbers(e);
    int a = dup(0), b = dup(0), c = dup(0), d;
    say(e, "%d %d %d", a, b, c);
    close(b);
    int s = tcp_socket(V4, SOCK_CLOEXEC);
    say(e, "%d", s);
    close(a);
    close(s);
    meet(e);
    if (e->role == C) {
        FD = tcp_socket(e->fam, SOCK_CLOEXEC);
        say(e, "socket %d", FD);
        MUST(tcp_connect(FD, e->fam, e->port));
    } else {
        FD = accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC);
        say(e, "accepted %d", FD);
    }
    warm_up(e);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {EPOLLIN, {.u64 = 1}};
    say(e, "set %d", ep);
    epoll_ctl(ep, EPOLL_CTL_ADD, FD, &ev);
    epoll_wait(ep, &ev, 1, 0);
    say(e, "next %d", d = dup(0));
    numbers(e);
    meet(e);
    put(FD, "ping", 4);
    get(FD, buf, 4);
    close(ep);
    close(FD);
    close(c);
    close(d);
    FD = -1;
    numbers(e);
}

// A child closes everything, as daemons do, and starts afresh.
static void closes_everything(struct end *e, int how)
{
    char buf[8];
    if (e->role == C) {
        int port = e->port, fam = e->fam;
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            dup2(e->out->fd, 1);
            e->out->fd = 1;
            int r = 0;
            switch (how) {
            case 0:
                for (int fd = 3; fd < 1024; fd++)
                    close(fd);
                break;
            case 1: r = close_range(3, ~0U, 0); break;
            case 2: closefrom(3); break;
            case 3: r = close_range(3, ~0U, CLOSE_RANGE_CLOEXEC); break;
            }
            say(e, "closed: %d", r);
            say(e, "next number %s", dup(1) == 3 ? "3" : "higher");
            T(send(FD, "x", 1, MSG_NOSIGNAL) >= 0);
            int fd = tcp_socket(fam, SOCK_CLOEXEC);
            T(tcp_connect(fd, fam, port));
            int good = 0;
            for (int i = 0; i < 20; i++)
                good += put(fd, "ping", 4) == 4 && get(fd, buf, 4) == 4;
            say(e, "%d good", good);
            _exit(0);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        int good = 0;
        while (get(fd, buf, 4) == 4)
            good += put(fd, "pong", 4) == 4;
        say(e, "%d good", good);
        close(fd);
        // The first connection ended with its last holder.
        long n, total = 0;
        while ((n = recv(FD, buf, 8, 0)) > 0)
            total += n;
        say(e, "%ld bytes, then %ld", total, n);
    }
}
static void closes_one_by_one(struct end *e) { closes_everything(e, 0); }
static void closes_a_range(struct end *e) { closes_everything(e, 1); }
static void closes_from(struct end *e) { closes_everything(e, 2); }
static void marks_a_range(struct end *e) { closes_everything(e, 3); }

// Everything but the connection is closed; it goes on.
static void only_connection_left(struct end *e)
{
    char buf[8];
    if (e->role == C) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            dup2(e->out->fd, 1);
            e->out->fd = 1;
            int fd = dup2(FD, 3);
            close_range(4, ~0U, 0);
            int good = 0;
            for (int i = 0; i < 20; i++)
                good += put(fd, "ping", 4) == 4 && get(fd, buf, 4) == 4;
            say(e, "%d good", good);
            _exit(0);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        int good = 0;
        while (get(FD, buf, 4) == 4)
            good += put(FD, "pong", 4) == 4;
        say(e, "%d good", good);
    }
}

enum { FIRST = 900, LAST = 1020 };

// The peer answers when this side sleeps.
static void hear(struct end *e, int fd, int times)
{
    int good = 0;
    for (int i = 0; i < times; i++) {
        char c = 'A' + i;
        good += send(fd, &c, 1, 0) == 1;
        go(e);
        good += recv(fd, &c, 1, 0) == 1 && c == 'A' + i;
    }
    if (good != 2 * times)
        say(e, "%d good", good);
}

// The process closes every number but a few, past libc, and copies of `own` take them.
static void take_numbers(struct end *e, const int *few, int own)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 1024)
        limit.rlim_cur = 1024, setrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; fd < 4096; fd++)
        if (fd != few[0] && fd != few[1] && fd != few[2] && fd != e->ctl)
            past_libc(SYS_close, fd, 0, 0, NULL, 0);
    int taken = 0;
    for (int fd = FIRST; fd < LAST; fd++)
        taken += fcntl(own, F_DUPFD_CLOEXEC, fd) == fd;
    say(e, "%d taken", taken);
}

static void closes_past_libc(struct end *e, int connection)
{
    enum { BYTES = 1000 };
    char bytes[BYTES];
    if (e->role == S) {
        int fd = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC)), good = 0;
        take(e, &e->peer_pid, sizeof e->peer_pid);
        e->peer_tid = e->peer_pid;
        while (await_go(e), recv(fd, bytes, 1, 0) == 1 && bytes[0] != 'e') {
            await_sleep(e, e->peer_pid, e->peer_pid);
            good += send(fd, bytes, 1, 0) == 1;
        }
        say(e, "%d good", good);
        close(fd);
        return;
    }
    int port = e->port, fam = e->fam;
    struct kid kid = spawn(e);
    if (kid.pid == 0) {
        dup2(e->out->fd, 1);
        e->out->fd = 1;
        int pair[2], left = 0, fd = MUST(tcp_socket(fam, SOCK_CLOEXEC));
        MUST(tcp_connect(fd, fam, port));
        give(e, &e->pid, sizeof e->pid);
        hear(e, fd, 20);
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        memset(bytes, 'x', BYTES);
        MUST(write(pair[1], bytes, BYTES));
        take_numbers(e, (int[]){fd, pair[0], pair[1]}, connection ? fd : pair[0]);
        hear(e, fd, 20);
        for (int n = FIRST; n < LAST && connection; n++)
            hear(e, n, 1);
        // Nor does a fork lose it.
        pid_t pid = MUST(fork());
        for (int n = FIRST; n < LAST && connection && pid == 0; n++)
            hear(e, n, 1);
        if (pid == 0)
            _exit(0);
        MUST(waitpid(pid, NULL, 0));
        MUST(ioctl(pair[0], FIONREAD, &left));
        say(e, "left %d", left);
        T(recv(pair[1], bytes, 1, MSG_DONTWAIT));
        go(e);
        T(send(fd, "e", 1, 0));
        _exit(0);
    }
    close(FD), FD = -1;
    reap(e, &kid);
}
// What is in a socket that has such a number stays there, and nothing else comes out of it.
static void socket_at_lost_number(struct end *e) { closes_past_libc(e, 0); }
// A connection that has such a number works there.
static void connection_at_lost_number(struct end *e) { closes_past_libc(e, 1); }

static void kind(struct end *e)
{
    AT(S) {
        struct stat a, b;
        char path[64], link[64], want[64];
        int other = MUST(dup(FD));
        T(fstat(FD, &a));
        T(fstat(other, &b));
        say(e, "socket %d, same inode %d, size %ld, links %ld", S_ISSOCK(a.st_mode), a.st_ino == b.st_ino,
            (long)a.st_size, (long)a.st_nlink);
        snprintf(path, sizeof path, "/proc/self/fd/%d", FD);
        snprintf(want, sizeof want, "socket:[%lu]", (unsigned long)a.st_ino);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        say(e, "link %d", !strcmp(link, want));
        OK(open(path, O_RDWR));
        T(isatty(FD));
        T(fcntl(FD, F_GETFL));
        close(other);
    }
}

// A number that names nothing does so for every call, be it the library's own.
static void numbers_of_nobody(struct end *e)
{
    struct stat status;
    int spare = MUST(dup(0)), free = 0, found = 0;
    for (int fd = 0; fd < 4096; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        free++;
        found += !(fstat(fd, &status) == -1 && errno == EBADF);
        found += !(dup(fd) == -1 && errno == EBADF);
        found += !(dup2(fd, spare) == -1 && errno == EBADF);
        found += !(dup2(fd, fd) == -1 && errno == EBADF);
        found += !(dup3(fd, spare, O_CLOEXEC) == -1 && errno == EBADF);
        found += !(dup3(fd, fd, 0) == -1 && errno == EINVAL);
        found += !(dup3(fd, spare, 0x1234) == -1 && errno == EINVAL);
    }
    say(e, "many free %d, found %d", free > 3000, found);
    T(fcntl(spare, F_GETFD));
    close(spare);
}

static void refusals(struct end *e)
{
    AT(S) {
        T(lseek(FD, 0, SEEK_CUR));
        T(lseek(FD, 0, SEEK_END));
        T(mmap(NULL, 4096, PROT_READ, MAP_SHARED, FD, 0) == MAP_FAILED ? -1 : 0);
        T(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, FD, 0) == MAP_FAILED ? -1 : 0);
        T(ftruncate(FD, 0));
        T(fsync(FD));
        T(fdatasync(FD));
        T(posix_fadvise(FD, 0, 0, POSIX_FADV_NORMAL) == ESPIPE);
        T(fallocate(FD, 0, 0, 4096));
        T(flock(FD, LOCK_EX | LOCK_NB));
        T(flock(FD, LOCK_UN));
        T(lockf(FD, F_TLOCK, 0));
        T(syncfs(FD) == 0 || errno != EBADF);
        T(fchdir(FD));
        T(fchmod(FD, 0600) == 0 || errno != EBADF);
        T(tcgetpgrp(FD));
        char name[8];
        T(getdents64(FD, name, sizeof name));
        T(read(FD, name, 0));
        T(ioctl(FD, 0x12345678, 0));
    }
}

static void cloexec(struct end *e)
{
    AT(C) {
        T(fcntl(FD, F_GETFD));
        T(fcntl(FD, F_SETFD, 0));
        T(fcntl(FD, F_GETFD));
        T(ioctl(FD, FIOCLEX));
        T(fcntl(FD, F_GETFD));
        T(ioctl(FD, FIONCLEX));
        T(fcntl(FD, F_GETFD));
        T(fcntl(FD, F_SETFD, FD_CLOEXEC));
    }
}

// The number of a closed connection serves a file.
static void file_after_socket(struct end *e)
{
    char buf[16];
    AT(C) {
        int number = FD;
        T(send(FD, "abc", 3, 0));
        close(FD);
        int file = memfd_create("file", MFD_CLOEXEC);
        if (file != number)
            dup3(file, number, O_CLOEXEC), close(file);
        T(write(number, "contents", 8));
        T(lseek(number, 2, SEEK_SET));
        T(read(number, buf, 16));
        say(e, "%.6s", buf);
        T(pread(number, buf, 3, 0));
        T(recv(number, buf, 1, 0));
        struct pollfd p = {number, POLLIN | POLLOUT, 0};
        T(poll(&p, 1, 0));
        say(e, "%s", events(p.revents));
        close(number), FD = -1;
    }
    AT(S) {
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
    }
}

static void counts(struct end *e)
{
    int n = -1;
    char buf[8];
    AT(S) {
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
    }
    AT(C) {
        T(send(FD, "0123456789", 10, 0));
        T(send(FD, "abc", 3, 0));
    }
    AT(S) {
        await_bytes(e, FD, 13);
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        for (int i = 0; i < 4; i++) {
            T(recv(FD, buf, 3, 0));
            T(ioctl(FD, SIOCINQ, &n));
            say(e, "%d", n);
        }
        T(recv(FD, buf, 8, MSG_PEEK));
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        T(ioctl(FD, FIONREAD, (int *)8));
        T(ioctl(FD, SIOCATMARK, &n));
        say(e, "%d", n);
    }
    AT(C) {
        // What the peer has taken is sooner or later no longer queued.
        long long end = now_ms() + PATIENCE_MS;
        do {
            MUST(ioctl(FD, SIOCOUTQ, &n));
        } while (n > 0 && now_ms() < end);
        say(e, "queued %d", n);
        MUST(ioctl(FD, SIOCOUTQNSD, &n));
        say(e, "unsent %d", n);
        T(shutdown(FD, SHUT_WR));
    }
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        T(recv(FD, buf, 8, 0));
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
        T(ioctl(e->lfd, FIONREAD, &n));
        T(ioctl(e->lfd, SIOCOUTQ, &n));
    }
}

static void counts_large(struct end *e)
{
    int n = -1;
    size_t total = 0;
    AT(C) {
        total = stuff(e, FD, 1);
        MUST(ioctl(FD, SIOCOUTQ, &n));
        say(e, "something queued: %d", n > 0);
    }
    share(e, C, &total, sizeof total);
    AT(S) {
        MUST(ioctl(FD, FIONREAD, &n));
        say(e, "something to read: %d", n > 0 && (size_t)n <= total);
        drain(e, FD, total, 1);
        T(ioctl(FD, FIONREAD, &n));
        say(e, "%d", n);
    }
}

static void int_option(struct end *e, const char *name, int level, int option)
{
    int value = -1;
    socklen_t n = sizeof value;
    long r = getsockopt(FD, level, option, &value, &n);
    say(e, "%s: %s %d length %u", name, r ? errname(errno) : "ok", r ? 0 : value, n);
}
#define SHOW(level, option) int_option(e, #option, level, option)
static void set_int(struct end *e, const char *name, int level, int option, int value)
{
    long r = setsockopt(FD, level, option, &value, sizeof value);
    say(e, "set %s %d: %s", name, value, r ? errname(errno) : "ok");
    int_option(e, name, level, option);
}
#define SET(level, option, value) set_int(e, #option, level, option, value)

static void options(struct end *e)
{
    AT(C) {
        SHOW(SOL_SOCKET, SO_TYPE);
        SHOW(SOL_SOCKET, SO_DOMAIN);
        SHOW(SOL_SOCKET, SO_PROTOCOL);
        SHOW(SOL_SOCKET, SO_ACCEPTCONN);
        SHOW(SOL_SOCKET, SO_ERROR);
        SHOW(SOL_SOCKET, SO_REUSEADDR);
        SHOW(SOL_SOCKET, SO_KEEPALIVE);
        SHOW(SOL_SOCKET, SO_BROADCAST);
        SHOW(SOL_SOCKET, SO_OOBINLINE);
        SHOW(SOL_SOCKET, SO_RCVLOWAT);
        SHOW(SOL_SOCKET, SO_SNDLOWAT);
        SHOW(SOL_SOCKET, SO_TIMESTAMP);
        SHOW(SOL_SOCKET, SO_PRIORITY);
        SHOW(SOL_SOCKET, 9999);
        SHOW(IPPROTO_TCP, TCP_NODELAY);
        SHOW(IPPROTO_TCP, TCP_CORK);
        SHOW(IPPROTO_TCP, TCP_KEEPIDLE);
        SHOW(IPPROTO_TCP, TCP_DEFER_ACCEPT);
        SHOW(IPPROTO_TCP, TCP_USER_TIMEOUT);
        SHOW(IPPROTO_TCP, 9999);
        SHOW(12345, 1);
        SET(IPPROTO_TCP, TCP_NODELAY, 1);
        SET(IPPROTO_TCP, TCP_NODELAY, 0);
        SET(IPPROTO_TCP, TCP_CORK, 1);
        SET(IPPROTO_TCP, TCP_CORK, 0);
        SET(IPPROTO_TCP, TCP_NODELAY, 7);
        SET(IPPROTO_TCP, TCP_KEEPIDLE, 33);
        SET(IPPROTO_TCP, TCP_KEEPINTVL, 34);
        SET(IPPROTO_TCP, TCP_KEEPCNT, 5);
        SET(IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
        SET(SOL_SOCKET, SO_KEEPALIVE, 1);
        SET(SOL_SOCKET, SO_RCVLOWAT, 9);
        SET(SOL_SOCKET, SO_RCVLOWAT, 0);
        SET(SOL_SOCKET, SO_RCVLOWAT, -5);
        SET(SOL_SOCKET, SO_RCVLOWAT, 1);
        SET(SOL_SOCKET, SO_SNDLOWAT, 9);
        SET(SOL_SOCKET, SO_SNDBUF, 50000);
        SET(SOL_SOCKET, SO_RCVBUF, 60000);
        SET(SOL_SOCKET, SO_RCVBUF, 1);
        SET(SOL_SOCKET, SO_RCVBUF, 200000);
        SET(SOL_SOCKET, SO_TYPE, 1);
        SET(SOL_SOCKET, SO_ERROR, 1);
        SET(SOL_SOCKET, SO_PRIORITY, 3);
        SET(SOL_SOCKET, 9999, 1);
        int value = 1;
        unsigned char small[16] = {0};
        socklen_t n = 1;
        T(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, &value, 3));
        T(setsockopt(FD, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
        T(setsockopt(FD, SOL_SOCKET, SO_KEEPALIVE, &value, 0));
        T(setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &value, 4));
        T(setsockopt(0, SOL_SOCKET, SO_KEEPALIVE, &value, 4));
        T(getsockopt(FD, IPPROTO_TCP, TCP_NODELAY, small, &n));
        say(e, "%u %u", small[0], n);
        n = 16;
        T(getsockopt(FD, SOL_SOCKET, SO_TYPE, small, &n));
        say(e, "%u", n);
        n = -1;
        T(getsockopt(FD, SOL_SOCKET, SO_TYPE, small, &n));
        T(getsockopt(FD, SOL_SOCKET, SO_TYPE, NULL, &(socklen_t){4}));
        T(getsockopt(FD, SOL_SOCKET, SO_TYPE, small, NULL));
        struct linger l = {1, 12}, got = {0, 0};
        n = sizeof got;
        T(setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l));
        T(getsockopt(FD, SOL_SOCKET, SO_LINGER, &got, &n));
        say(e, "%d %d %u", got.l_onoff, got.l_linger, n);
        l.l_onoff = 0;
        T(setsockopt(FD, SOL_SOCKET, SO_LINGER, &l, sizeof l));
        struct ucred cred = {1, 1, 1};
        n = sizeof cred;
        T(getsockopt(FD, SOL_SOCKET, SO_PEERCRED, &cred, &n));
        say(e, "%d %d %d", (int)cred.pid, (int)cred.uid, (int)cred.gid);
        char name[16] = "";
        n = sizeof name;
        T(getsockopt(FD, IPPROTO_TCP, TCP_CONGESTION, name, &n));
        say(e, "%s", name);
        uint64_t a = 0, b = 1;
        n = sizeof a;
        int other = MUST(dup(FD));
        T(getsockopt(FD, SOL_SOCKET, SO_COOKIE, &a, &n));
        T(getsockopt(other, SOL_SOCKET, SO_COOKIE, &b, &n));
        say(e, "same cookie %d", a == b);
        close(other);
        struct tcp_info info;
        n = sizeof info;
        T(getsockopt(FD, IPPROTO_TCP, TCP_INFO, &info, &n) == 0);
        say(e, "state %d", info.tcpi_state);
        T(send(FD, "abc", 3, 0));
    }
    AT(S) {
        T(recv(FD, (char[8]){0}, 8, 0));
        SHOW(SOL_SOCKET, SO_TYPE);
        SHOW(SOL_SOCKET, SO_DOMAIN);
        SHOW(IPPROTO_TCP, TCP_NODELAY);
        int before = e->fd;
        e->fd = e->lfd;
        SHOW(SOL_SOCKET, SO_ACCEPTCONN);
        SHOW(SOL_SOCKET, SO_ERROR);
        e->fd = before;
    }
}

// Corked bytes leave at the latest with the cork.
static void corked(struct end *e)
{
    int on = 1, off = 0;
    char buf[16];
    AT(C) {
        T(setsockopt(FD, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
        T(send(FD, "abc", 3, 0));
        T(send(FD, "def", 3, 0));
        T(setsockopt(FD, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 16, 0));
        T(setsockopt(FD, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
        T(send(FD, "ghi", 3, 0));
        T(shutdown(FD, SHUT_WR));
    }
    AT(C) {
        await_bytes(e, FD, 3);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, 0));
    }
}

// Corked on both sides and asked for an answer: nobody sleeps for ever.
static void corked_conversation(struct end *e)
{
    int on = 1, off = 0, bad = 0;
    char buf[16];
    for (int i = 0; i < 50; i++) {
        if (e->role == C) {
            setsockopt(FD, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
            bad += send(FD, "head", 4, 0) != 4;
            bad += send(FD, "body", 4, 0) != 4;
            setsockopt(FD, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
            bad += get(FD, buf, 8) != 8;
        } else {
            bad += get(FD, buf, 8) != 8;
            setsockopt(FD, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
            bad += send(FD, buf, 8, 0) != 8;
            setsockopt(FD, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        }
    }
    say(e, "%d bad", bad);
}

static void cork(struct end *e, int on)
{
    T(setsockopt(FD, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
}

static int is_corked(int fd)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, &n) ? -errno : value;
}

// Whoever asks learns whether the socket is corked, and is told the truth by whoever has changed it.
static void corked_for_others(struct end *e)
{
    char buf[16];
    AT(C) {
        for (int i = 0; i < 3; i++) {
            cork(e, 1);
            T(send(FD, "ab", 2, 0));
            cork(e, 0);
        }
        cork(e, 1);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            int corked = is_corked(FD), off = 0;
            setsockopt(FD, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
            _exit(corked);
        }
        int status;
        MUST(waitpid(pid, &status, 0));
        say(e, "child %d parent %d", WEXITSTATUS(status), is_corked(FD));
        for (int i = 0; i < 3; i++) {
            cork(e, 1);
            if (i == 1)
                say(e, "%d", is_corked(FD));
            cork(e, 0);
            say(e, "%d", is_corked(FD));
        }
        cork(e, 1);
        pid = vfork();
        if (pid == 0)
            _exit(is_corked(FD));
        MUST(waitpid(pid, &status, 0));
        say(e, "child of vfork %d", WEXITSTATUS(status));
        T(send(FD, "cd", 2, 0));
        // A stream is the kernel's, and so is the socket from then on.
        FILE *out = fdopen(MUST(dup(FD)), "w");
        say(e, "%d", is_corked(FD));
        T(fputs("ef", out) >= 0);
        T(fflush(out));
        cork(e, 0);
        fclose(out);
    }
    AT(S) {
        T(get(FD, buf, 10));
        say(e, "%.10s", buf);
    }
}

static void small_buffers(struct end *e)
{
    const size_t n = 1 << 20;
    int size = 32768;
    T(setsockopt(FD, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    T(setsockopt(FD, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    meet(e);
    if (e->role == C) {
        produce(e, FD, n, 1);
        expect(e, FD, n, 2);
    } else {
        expect(e, FD, n, 1);
        produce(e, FD, n, 2);
    }
}

// recvmsg can tell how much more there is.
static void ancillary(struct end *e)
{
#ifdef TCP_INQ
    int on = 1;
    AT(S) T(setsockopt(FD, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        char buf[4], control[64];
        struct iovec v = {buf, 4};
        await_bytes(e, FD, 10);
        for (int i = 0; i < 3; i++) {
            struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            T(recvmsg(FD, &m, 0));
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            say(e, "%d more", c && c->cmsg_level == IPPROTO_TCP ? *(int *)CMSG_DATA(c) : -1);
        }
    }
#else
    say(e, "not here");
#endif
}

static void asynchronous(struct end *e)
{
    AT(S) {
        handle(SIGIO, count_hit, 0);
        hits = 0;
        T(fcntl(FD, F_SETOWN, getpid()));
        T(fcntl(FD, F_GETOWN) == getpid());
        T(fcntl(FD, F_SETFL, O_RDWR | O_ASYNC));
        T(fcntl(FD, F_GETFL));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        long long end = now_ms() + PATIENCE_MS;
        while (!hits && now_ms() < end)
            nap();
        say(e, "signalled %d", hits > 0);
        T(recv(FD, (char[8]){0}, 8, 0));
        T(fcntl(FD, F_SETFL, O_RDWR));
        handle(SIGIO, SIG_IGN, 0);
    }
}

// A signal for each arrival, also while the program does nothing else about it.
static void asynchronous_drained(struct end *e)
{
    char buf[8];
    AT(S) {
        int on = 1;
        handle(SIGIO, count_hit, 0);
        T(fcntl(FD, F_SETOWN, getpid()));
        T(ioctl(FD, FIOASYNC, &on));
        nonblocking(FD, 1);
        T(fcntl(FD, F_GETFL) & O_ASYNC ? 1 : 0);
    }
    for (int i = 0; i < 4; i++) {
        AT(S) hits = 0;
        AT(C) T(send(FD, "abcdef", 6, 0));
        AT(S) {
            long long end = now_ms() + PATIENCE_MS;
            while (!hits && now_ms() < end)
                nap();
            say(e, "signalled %d", hits > 0);
            await_bytes(e, FD, 6);
            T(recv(FD, buf, i < 2 ? 8 : 6, 0));
            T(send(FD, "answer", 6, 0));
        }
        AT(C) T(recv(FD, buf, 6, MSG_WAITALL));
    }
    AT(S) {
        int off = 0;
        T(ioctl(FD, FIOASYNC, &off));
        handle(SIGIO, SIG_IGN, 0);
        nonblocking(FD, 0);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, buf, 8, 0));
}

// What only the kernel can do leaves the stream whole, in both directions.
static void options_of_the_kernel(struct end *e)
{
    char buf[8];
    AT(S) {
        int on = 1;
        T(setsockopt(FD, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        T(setsockopt(FD, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on));
        T(setsockopt(FD, IPPROTO_TCP, TCP_ULP, "no such", 7));
        T(send(FD, "abc", 3, 0));
    }
    AT(C) {
        T(recv(FD, buf, 3, MSG_WAITALL));
        T(send(FD, "def", 3, 0));
    }
    AT(S) T(recv(FD, buf, 3, MSG_WAITALL));
}

// What the kernel refuses to put at the connection's number leaves the connection as it is.
static void copies_that_are_refused(struct end *e)
{
    char buf[8];
    AT(C) T(send(FD, "abcdef", 6, 0));
    AT(S) {
        struct rlimit limit, less;
        int file = MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
        await_bytes(e, FD, 6);
        MUST(getrlimit(RLIMIT_NOFILE, &limit));
        less = limit;
        less.rlim_cur = FD;
        T(dup3(file, FD, 0x1234));
        MUST(setrlimit(RLIMIT_NOFILE, &less));
        int refused = dup2(file, FD), why = errno;
        MUST(setrlimit(RLIMIT_NOFILE, &limit));
        say(e, "dup2 = %d, %s", refused, strerror(why));
        T(recv(FD, buf, 8, MSG_DONTWAIT));
        T(send(FD, "xyz", 3, 0));
        close(file);
    }
    AT(C) T(recv(FD, buf, 3, MSG_WAITALL));
}

// The kernel judges names and control data, and nothing of such a message is sent.
static void messages_that_are_refused(struct end *e)
{
    char buf[8];
    AT(C) {
        union {
            struct cmsghdr header;
            char bytes[64];
        } control = {.header = {.cmsg_len = SIZE_MAX - 3, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
        struct sockaddr_in name = {.sin_family = AF_INET};
        struct iovec part = {"abcdef", 6};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        T(sendmsg(FD, &message, MSG_NOSIGNAL));
        message.msg_control = NULL;
        message.msg_controllen = 0;
        message.msg_name = (void *)8;
        message.msg_namelen = sizeof name;
        T(sendmsg(FD, &message, 0));
        message.msg_name = &name;
        message.msg_namelen = -1;
        T(sendmsg(FD, &message, 0));
        message.msg_namelen = sizeof name;
        T(sendmsg(FD, &message, 0));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        T(recv(FD, buf, 8, MSG_DONTWAIT));
    }
}

DIFF_MAIN(CASE(copies, ALL | COLD), CASE(copies_that_are_refused, COLD), CASE(messages_that_are_refused, COLD), CASE(copy_errors, 0), CASE(taken_over, COLD), CASE(takes_over, COLD),
          CASE(swapped, COLD), CASE(replaced_under_receiver, TWO | COLD), CASE(lowest_number, SPLIT | BARE | ALL),
          CASE(closes_one_by_one, SPLIT | COLD), CASE(closes_a_range, SPLIT | COLD), CASE(closes_from, SPLIT | COLD),
          CASE(marks_a_range, SPLIT), CASE(only_connection_left, SPLIT | COLD),
          CASE(socket_at_lost_number, SPLIT), CASE(connection_at_lost_number, SPLIT), CASE(kind, ALL | COLD), CASE(numbers_of_nobody, SPLIT | COLD),
          CASE(refusals, COLD), CASE(cloexec, COLD), CASE(file_after_socket, COLD), CASE(counts, ALL | COLD),
          CASE(counts_large, 0), CASE(options, ALL | COLD), CASE(corked, COLD), CASE(corked_conversation, TWO | COLD), CASE(corked_for_others, COLD),
          CASE(small_buffers, TWO | COLD), CASE(ancillary, COLD),
          CASE(asynchronous, COLD), CASE(asynchronous_drained, COLD), CASE(options_of_the_kernel, COLD))
