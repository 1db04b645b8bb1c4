// Where calls store what they tell, and cannot: it is not there, or may only be read. And lists of buffers of which
// one is not there, and the time that is left of a call by number.
// timeout: 60
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

static long page;

// Memory that ends behind a page of `last` protection; the address of that page.
static char *place(int last)
{
    page = sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at + 2 * page, page, last);
    return at + 2 * page;
}

static void release(char *place) { munmap(place - 2 * page, 3 * page); }

// The page holds these `n` bytes from now on, and may only be read.
static void *fixed(char *place, const void *bytes, size_t n)
{
    mprotect(place, page, PROT_READ | PROT_WRITE);
    memcpy(place, bytes, n);
    mprotect(place, page, PROT_READ);
    return place;
}

static int set_of(struct end *e, uint32_t events)
{
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = events, .data.u64 = 7};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
    return set;
}

static void show_one(struct end *e, int set)
{
    struct epoll_event event = {0};
    if (T(epoll_wait(set, &event, 1, 0)) == 1)
        say(e, "%s, %d", events(event.events), (int)event.data.u64);
}

// ---- Events ----------------------------------------------------------------

// In a set with the connection, and with a pipe that is ready, too.
static void events_nowhere(struct end *e)
{
    char *hole = place(PROT_NONE), *rom = place(PROT_READ), buf[8];
    struct epoll_event *there = malloc(4 * sizeof *there), pipe_in = {.events = EPOLLIN, .data.u64 = 9};
    int set = -1, ends[2];
    AT(S) {
        set = set_of(e, EPOLLIN);
        T(epoll_wait(set, (struct epoll_event *)hole, 4, 0));
        T(epoll_wait(set, (struct epoll_event *)hole, 4, 20));
        T(epoll_wait(set, (struct epoll_event *)16, 4, 0));
        T(epoll_wait(set, (struct epoll_event *)-4096L, 4, 0));
        T(epoll_wait(set, NULL, 4, 0));
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        T(epoll_wait(set, (struct epoll_event *)hole, 4, 0));
        T(epoll_wait(set, (struct epoll_event *)hole, 4, -1));
        T(epoll_wait(set, (struct epoll_event *)rom, 1, -1));
        T(epoll_pwait(set, (struct epoll_event *)(hole - 4), 1, -1, NULL));
        T(epoll_wait(set, (struct epoll_event *)(hole - sizeof *there), 1, -1));
        T(epoll_wait(set, (struct epoll_event *)16, 4, 0));
        T(epoll_wait(set, NULL, 4, -1));
        show_one(e, set);
        MUST(pipe2(ends, O_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &pipe_in));
        MUST(write(ends[1], "p", 1));
        // One event has room there, and the other one is still to be told.
        for (int i = 0; i < 4; i++)
            T(epoll_wait(set, (struct epoll_event *)(hole - sizeof *there), 2, -1));
        // Not always both at once.
        for (unsigned seen = 0; seen != (1 << 7 | 1 << 9);)
            for (int n = epoll_wait(set, there, 4, -1); n > 0; n--)
                seen |= 1 << there[n - 1].data.u64;
        T(epoll_wait(set, (struct epoll_event *)hole, 2, -1));
        T(recv(FD, buf, 8, 0));
        T(epoll_wait(set, (struct epoll_event *)rom, 2, -1));
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL));
        T(epoll_wait(set, (struct epoll_event *)rom, 2, 0));
        close(ends[0]), close(ends[1]), close(set);
    }
    free(there);
    release(hole);
    release(rom);
}

// What could not be told is told once more, to who has room for it.
static void edges_nowhere(struct end *e)
{
    static const uint32_t flags[] = {EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    char *hole = place(PROT_NONE), buf[8];
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int set = -1;
        AT(S) {
            set = set_of(e, EPOLLIN | flags[i]);
            T(epoll_wait(set, (struct epoll_event *)hole, 4, 0));
        }
        AT(C) T(send(FD, "abc", 3, 0));
        AT(S) {
            await_bytes(e, FD, 3);
            T(epoll_wait(set, (struct epoll_event *)hole, 4, -1));
            T(epoll_wait(set, (struct epoll_event *)hole, 4, 0));
            show_one(e, set);
            show_one(e, set);
            T(epoll_wait(set, (struct epoll_event *)hole, 4, 0));
            T(recv(FD, buf, 8, 0));
            close(set);
        }
    }
    release(hole);
}

// The same to a thread that sleeps.
static void events_nowhere_asleep(struct end *e)
{
    char *hole = place(PROT_NONE), buf[8];
    for (int i = 0; i < 2; i++) {
        if (e->role == S) {
            int set = set_of(e, EPOLLIN | (i ? EPOLLET : 0));
            will_block(e);
            T(epoll_wait(set, (struct epoll_event *)hole, 4, -1));
            show_one(e, set);
            T(recv(FD, buf, 8, 0));
            close(set);
        } else {
            await_blocked(e);
            T(send(FD, "abc", 3, 0));
        }
        meet(e);
    }
    release(hole);
}

// ---- Arrays, sets and times ------------------------------------------------

static void fixed_arrays(struct end *e)
{
    char *rom = place(PROT_READ), *other = place(PROT_READ), buf[8];
    struct timeval time = {5, 0}, soon = {0, 20000};
    struct timespec fine = {5, 0};
    struct pollfd one = {-1, POLLIN, 0}, *many = NULL;
    enum { MANY = 2000 };
    fd_set set, none;
    for (int full = 0; full < 2; full++) {
        AT(C) if (full) T(send(FD, "abc", 3, 0));
        AT(S) {
            if (full)
                await_bytes(e, FD, 3);
            one.fd = FD;
            fixed(rom, &one, sizeof one);
            T(poll((struct pollfd *)rom, 1, 0));
            T(poll((struct pollfd *)rom, 1, 20));
            T(ppoll((struct pollfd *)rom, 1, &(struct timespec){0, 20000000}, NULL));
            FD_ZERO(&none);
            FD_ZERO(&set);
            FD_SET(FD, &set);
            fixed(rom, &set, sizeof set);
            T(select(FD + 1, (fd_set *)rom, NULL, NULL, &soon));
            T(pselect(FD + 1, (fd_set *)rom, NULL, NULL, &(struct timespec){0, 20000000}, NULL));
            T(select(FD + 1, &set, (fd_set *)fixed(rom, &none, sizeof none), NULL, &(struct timeval){0, 20000}));
            soon = (struct timeval){0, 20000};
        }
    }
    AT(S) {
        // A time that cannot be changed does no harm.
        FD_ZERO(&set);
        FD_SET(FD, &set);
        T(syscall(SYS_select, FD + 1, &set, NULL, NULL, fixed(rom, &time, sizeof time)));
        say(e, "%d", FD_ISSET(FD, &set));
        one.fd = FD;
        T(syscall(SYS_ppoll, &one, 1, fixed(rom, &fine, sizeof fine), NULL, 8));
        say(e, "%s", events(one.revents));
        // Of a long array a page in the middle.
        many = mmap(NULL, MANY * sizeof *many + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < MANY; i++)
            many[i] = (struct pollfd){i ? -1 : FD, POLLIN, 0};
        T(poll(many, MANY, 0));
        mprotect((char *)many + page, page, PROT_READ);
        T(poll(many, MANY, 0));
        mprotect((char *)many + page, page, PROT_NONE);
        T(poll(many, MANY, 0));
        munmap(many, MANY * sizeof *many + page);
        T(recv(FD, buf, 8, 0));
    }
    release(rom);
    release(other);
}

static void bad_masks(struct end *e)
{
    char *hole = place(PROT_NONE), buf[8];
    struct timespec now = {0};
    struct epoll_event event;
    struct pollfd one = {-1, POLLIN, 0};
    fd_set set;
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        int epoll = set_of(e, EPOLLIN);
        one.fd = FD;
        FD_ZERO(&set);
        FD_SET(FD, &set);
        T(ppoll(&one, 1, &now, (sigset_t *)hole));
        T(pselect(FD + 1, &set, NULL, NULL, &now, (sigset_t *)hole));
        T(epoll_pwait(epoll, &event, 1, 0, (sigset_t *)hole));
        T(epoll_pwait(epoll, &event, 1, 0, (sigset_t *)16));
        T(recv(FD, buf, 8, 0));
        close(epoll);
        // And of a set that has no connection.
        epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
        for (int time = -1; time < 2; time++)
            T(epoll_pwait(epoll, &event, 1, time, (sigset_t *)hole));
        T(epoll_pwait(epoll, &event, 1, -1, (sigset_t *)16));
        close(epoll);
    }
    release(hole);
}

// The system call writes back what is left, unlike libc's function.
static void time_left(struct end *e)
{
    char buf[8];
    fd_set set;
    struct timespec time;
    struct pollfd one = {-1, POLLIN, 0};
#define LEFT(given) (!time.tv_sec && !time.tv_nsec ? "none" : time.tv_sec < (given) ? "some" : "all")
    for (int full = 0; full < 2; full++) {
        AT(C) if (full) T(send(FD, "abc", 3, 0));
        AT(S) {
            if (full)
                await_bytes(e, FD, 3);
            one.fd = FD;
            FD_ZERO(&set);
            FD_SET(FD, &set);
            time = (struct timespec){full ? 5 : 0, full ? 0 : 20000000};
            T(syscall(SYS_ppoll, &one, 1, &time, NULL, 8));
            say(e, "left: %s", LEFT(5));
            time = (struct timespec){full ? 5 : 0, full ? 0 : 20000000};
            T(syscall(SYS_pselect6, FD + 1, &set, NULL, NULL, &time, NULL));
            say(e, "left: %s", LEFT(5));
            time = (struct timespec){0, 0};
            T(syscall(SYS_ppoll, &one, 1, &time, NULL, 8));
            say(e, "left: %s", LEFT(5));
        }
    }
    AT(S) {
        int epoll = set_of(e, EPOLLIN);
        struct epoll_event event;
        time = (struct timespec){5, 0};
        T(syscall(SYS_epoll_pwait2, epoll, &event, 1, &time, NULL, 8L));
        say(e, "left: %s", LEFT(5));
        close(epoll);
        T(recv(FD, buf, 8, 0));
    }
}

// ---- Messages --------------------------------------------------------------

static void fixed_headers(struct end *e)
{
    char *rom = place(PROT_READ), buf[8] = "xxxxxxx", control[64];
    struct iovec v = {buf, 2};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr many[2] = {{m, 77}, {m, 77}};
    struct timespec soon = {5, 0};
    union address name;
    int on = 1;
    AT(C) T(send(FD, "abcdefghijklmnopqrstuvwxyz", 26, 0));
    AT(S) {
        await_bytes(e, FD, 26);
        // The bytes are gone.
        T(recvmsg(FD, (struct msghdr *)fixed(rom, &m, sizeof m), 0));
        T(recv(FD, buf, 1, 0));
        say(e, "%c", buf[0]);
        m.msg_name = &name;
        m.msg_namelen = sizeof name;
        T(recvmsg(FD, (struct msghdr *)fixed(rom, &m, sizeof m), 0));
        T(recv(FD, buf, 1, 0));
        say(e, "%c", buf[0]);
        T(recvmmsg(FD, (struct mmsghdr *)fixed(rom, many, sizeof many), 2, MSG_DONTWAIT, NULL));
        T(recv(FD, buf, 1, 0));
        say(e, "%c", buf[0]);
        T(recvmmsg(FD, many, 1, MSG_DONTWAIT, (struct timespec *)fixed(rom, &soon, sizeof soon)));
        T(recv(FD, buf, 1, 0));
        say(e, "%c", buf[0]);
        // Control data that cannot be stored is not there, and nobody is told.
        T(setsockopt(FD, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
        m = (struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = rom, .msg_controllen = 64};
        T(recvmsg(FD, &m, 0));
        say(e, "%zu bytes of control data, flags %x", (size_t)m.msg_controllen, m.msg_flags);
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        T(recvmsg(FD, &m, 0));
        say(e, "%zu bytes of control data, flags %x", (size_t)m.msg_controllen, m.msg_flags);
        while (recv(FD, buf, 8, MSG_DONTWAIT) > 0)
            ;
        // What is sent is sent.
        T(sendmmsg(FD, (struct mmsghdr *)fixed(rom, many, sizeof many), 2, 0));
    }
    AT(C) {
        await_bytes(e, FD, 2);
        T(recv(FD, buf, 8, MSG_DONTWAIT));
    }
    release(rom);
}

static void fixed_numbers(struct end *e)
{
    char *rom = place(PROT_READ), buf[16];
    off_t two = 2;
    union address name;
    socklen_t length = sizeof name, four = 4;
    int number;
    int file = MUST(memfd_create("file", MFD_CLOEXEC));
    MUST(write(file, "0123456789", 10));
    AT(C) {
        T(sendfile(FD, file, (off_t *)fixed(rom, &two, sizeof two), 5));
        T(sendfile(FD, file, &two, 3));
        say(e, "%d", (int)two);
    }
    AT(S) {
        await_bytes(e, FD, 8);
        T(ioctl(FD, FIONREAD, rom));
        T(getsockopt(FD, SOL_SOCKET, SO_ERROR, rom, &four));
        T(getsockopt(FD, SOL_SOCKET, SO_ERROR, &number, fixed(rom, &four, sizeof four)));
        T(recvfrom(FD, buf, 1, 0, &name.sa, fixed(rom, &length, sizeof length)));
        T(recv(FD, buf, 16, 0));
        say(e, "%.7s", buf);
    }
    close(file);
    release(rom);
}

// ---- Lists -----------------------------------------------------------------

static long sent;

static void half_lists(struct end *e)
{
    enum { LARGE = 200000 };
    char *hole = place(PROT_NONE), buf[16], *large = malloc(LARGE);
    struct iovec lists[][3] = {{{buf, 3}, {hole - 4, 8}, {buf, 1}}, {{buf, 3}, {hole, 8}, {buf, 1}},
                               {{buf, 3}, {NULL, 8}, {buf, 1}}, {{buf, 0}, {buf, 3}, {(void *)16, 8}}};
    fill(large, LARGE, 0, 5);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct msghdr m = {.msg_iov = lists[i], .msg_iovlen = 3};
        struct mmsghdr many = {m, 0};
        AT(C) {
            T(writev(FD, lists[i], 3));
            T(sendmsg(FD, &m, 0));
            T(sendmmsg(FD, &many, 1, 0));
        }
        AT(S) T(recv(FD, buf, 16, MSG_DONTWAIT));
    }
    // Of a large one what comes long before the bad buffer is sent.
    for (int i = 0; i < 2; i++) {
        AT(C) {
            struct iovec list[] = {{large, LARGE}, {i ? hole : NULL, 8}};
            sent = writev(FD, list, 2);
            say(e, "some: %d", sent > 0 && sent <= LARGE);
        }
        share(e, C, &sent, sizeof sent);
        AT(S) drain(e, FD, sent, 5);
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) T(recv(FD, buf, 16, 0));
    free(large);
    release(hole);
}

DIFF_MAIN(CASE(events_nowhere, COLD), CASE(edges_nowhere, COLD | STEADY), CASE(events_nowhere_asleep, TWO | COLD), CASE(fixed_arrays, COLD),
          CASE(bad_masks, COLD), CASE(time_left, COLD), CASE(fixed_headers, COLD), CASE(fixed_numbers, COLD), CASE(half_lists, COLD))
