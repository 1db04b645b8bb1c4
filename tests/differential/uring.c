// io_uring beside and on connections, by raw system calls: a ring that serves files only leaves
// connections where they are; what names a connection behaves as natively. Where the kernel
// refuses a ring, both sides say so.
// path: shunted 75%
// timeout: 60
#include "diff.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>

enum { ENTRIES = 8, BULK = 4 << 20 };

struct ring {
    int fd;
    struct io_uring_params p;
    char *sq, *cq;
    struct io_uring_sqe *sqes;
    size_t sq_size, cq_size;
};

#define WORD(base, offset) ((unsigned *)((base) + (offset)))

// 0: there is one.
static int make_ring(struct end *e, struct ring *r, unsigned flags)
{
    memset(r, 0, sizeof *r);
    r->p.flags = flags;
    r->fd = syscall(SYS_io_uring_setup, ENTRIES, &r->p);
    if (r->fd < 0) {
        say(e, "no io_uring: %s", strerrorname_np(errno));
        return -1;
    }
    r->sq_size = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
    r->cq_size = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
    int prot = PROT_READ | PROT_WRITE;
    r->sq = mmap(NULL, r->sq_size, prot, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
    r->cq = mmap(NULL, r->cq_size, prot, MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
    r->sqes = mmap(NULL, r->p.sq_entries * sizeof *r->sqes, prot, MAP_SHARED, r->fd, IORING_OFF_SQES);
    MUST(r->sq == MAP_FAILED || r->cq == MAP_FAILED || r->sqes == MAP_FAILED ? -1 : 0);
    return 0;
}

static void end_ring(struct ring *r)
{
    munmap(r->sq, r->sq_size);
    munmap(r->cq, r->cq_size);
    munmap(r->sqes, r->p.sq_entries * sizeof *r->sqes);
    close(r->fd);
}

// An entry that is submitted by the next `run`.
static struct io_uring_sqe *entry(struct ring *r, int op, int fd, const void *data, unsigned n)
{
    unsigned *tail = WORD(r->sq, r->p.sq_off.tail);
    unsigned at = *tail & *WORD(r->sq, r->p.sq_off.ring_mask);
    struct io_uring_sqe *sqe = &r->sqes[at];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = op;
    sqe->fd = fd;
    sqe->addr = (uintptr_t)data;
    sqe->len = n;
    WORD(r->sq, r->p.sq_off.array)[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    return sqe;
}

static int enter(struct ring *r, unsigned submit, unsigned wait)
{
    return syscall(SYS_io_uring_enter, r->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
}

// Result of the next completion, which is there or will be.
static int completion(struct ring *r)
{
    unsigned *head = WORD(r->cq, r->p.cq_off.head);
    while (*head == __atomic_load_n(WORD(r->cq, r->p.cq_off.tail), __ATOMIC_ACQUIRE))
        if (enter(r, 0, 1) < 0 && errno != EINTR)
            return -errno;
    struct io_uring_cqe *cqes = (void *)(r->cq + r->p.cq_off.cqes);
    int result = cqes[*head & *WORD(r->cq, r->p.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

static const char *told(int result)
{
    static char text[16];
    if (result < 0)
        return strerrorname_np(-result);
    snprintf(text, sizeof text, "%d", result);
    return text;
}

static void run(struct end *e, struct ring *r, const char *what)
{
    if (enter(r, 1, 1) != 1)
        say(e, "enter: %s", strerrorname_np(errno));
    say(e, "%s = %s", what, told(completion(r)));
}

// Both directions of a connection carry something.
static void talk(struct end *e)
{
    AT(C) produce(e, FD, 100000, 3);
    AT(S) {
        expect(e, FD, 100000, 3);
        produce(e, FD, 100000, 4);
    }
    AT(C) expect(e, FD, 100000, 4);
}

// As libuv's file operations: 40 times as many bytes go by the connection, all in memory.
static void files_only(struct end *e)
{
    struct ring r;
    char out[] = "contents", in[sizeof out] = "";
    int file = -1, made = -1;
    AT(S) {
        made = make_ring(e, &r, 0);
        file = MUST(memfd_create("file", MFD_CLOEXEC));
    }
    for (int i = 0; i < 40; i++) {
        AT(S) if (!made) {
            entry(&r, IORING_OP_WRITE, file, out, sizeof out);
            run(e, &r, "write");
            entry(&r, IORING_OP_READ, file, in, sizeof in);
            run(e, &r, "read");
        }
        talk(e);
    }
    AT(S) {
        if (!made)
            end_ring(&r);
        say(e, "read %s", in);
        close(file);
    }
}

// Receives and sends by the ring, with unread bytes before and after.
static void moves(struct end *e)
{
    struct ring r;
    char buf[64];
    int made = -1;
    talk(e);
    AT(C) T(send(FD, "before", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        made = make_ring(e, &r, 0);
        if (!made) {
            memset(buf, 0, sizeof buf);
            entry(&r, IORING_OP_RECV, FD, buf, 4);
            run(e, &r, "recv");
            say(e, "%s", buf);
            entry(&r, IORING_OP_SEND, FD, "by the ring", 11);
            run(e, &r, "send");
        }
    }
    share(e, S, &made, sizeof made);
    AT(C) {
        if (!made)
            say(e, "got %zu", get(FD, buf, 11));
        T(send(FD, "more", 4, 0));
    }
    AT(S) if (!made) {
        memset(buf, 0, sizeof buf);
        await_bytes(e, FD, 6);
        entry(&r, IORING_OP_READ, FD, buf, sizeof buf - 1);
        run(e, &r, "read");
        say(e, "%s", buf);
        end_ring(&r);
    } else {
        get(FD, buf, 10);
    }
    talk(e);
}

// A poll that is submitted before there is anything, and completes when there is.
static void polls(struct end *e)
{
    struct ring r;
    char buf[8];
    int made = -1;
    talk(e);
    AT(S) {
        made = make_ring(e, &r, 0);
        if (!made) {
            entry(&r, IORING_OP_POLL_ADD, FD, NULL, 0)->poll32_events = POLLIN;
            say(e, "enter = %d", enter(&r, 1, 0));
        }
    }
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        if (!made) {
            say(e, "poll = %s", told(completion(&r)));
            end_ring(&r);
        }
        T(recv(FD, buf, 8, 0));
    }
    talk(e);
}

static void control(struct end *e, struct ring *r, int set, int op, int fd, struct epoll_event *event)
{
    static const char *const names[] = {"", "add", "del", "mod"};
    entry(r, IORING_OP_EPOLL_CTL, set, event, op)->off = fd;
    run(e, r, names[op]);
}

// As libuv's registrations in its epoll set.
static void registers(struct end *e)
{
    struct ring r;
    char buf[8];
    int made = -1, set = -1;
    struct epoll_event event = {EPOLLIN, {.u64 = 7}}, got;
    talk(e);
    AT(S) {
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        made = make_ring(e, &r, 0);
        if (!made) {
            control(e, &r, set, EPOLL_CTL_MOD, FD, &event);
            control(e, &r, set, EPOLL_CTL_ADD, FD, &event);
            control(e, &r, set, EPOLL_CTL_ADD, FD, &event);
            T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
            T(epoll_wait(set, &got, 1, 0));
        } else {
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
        }
    }
    for (int i = 0; i < 20; i++) {
        AT(C) T(send(FD, "abc", 3, 0));
        AT(S) {
            T(epoll_wait(set, &got, 1, PATIENCE_MS));
            say(e, "events %x data %d", got.events, (int)got.data.u64);
            T(recv(FD, buf, 8, 0));
            if (!made && i % 5 == 4) {
                event = (struct epoll_event){EPOLLOUT, {.u64 = i}};
                control(e, &r, set, EPOLL_CTL_MOD, FD, &event);
                T(epoll_wait(set, &got, 1, 0));
                say(e, "events %x data %d", got.events, (int)got.data.u64);
                control(e, &r, set, EPOLL_CTL_DEL, FD, &event);
                T(epoll_wait(set, &got, 1, 0));
                control(e, &r, set, EPOLL_CTL_DEL, FD, &event);
                event = (struct epoll_event){EPOLLIN, {.u64 = i}};
                T(epoll_ctl(set, EPOLL_CTL_ADD, FD, &event));
                control(e, &r, set, EPOLL_CTL_MOD, FD, &event);
            }
        }
        talk(e);
    }
    AT(S) {
        close(set);
        if (!made)
            end_ring(&r);
    }
}

// Linked entries, of which the second is not to be made if the first fails.
static void linked(struct end *e)
{
    struct ring r;
    struct epoll_event event = {EPOLLIN, {.u64 = 7}}, got;
    talk(e);
    AT(S) {
        int set = MUST(epoll_create1(EPOLL_CLOEXEC));
        if (!make_ring(e, &r, 0)) {
            entry(&r, IORING_OP_READ, -1, &got, 1)->flags = IOSQE_IO_LINK;
            entry(&r, IORING_OP_EPOLL_CTL, set, &event, EPOLL_CTL_ADD)->off = FD;
            say(e, "enter = %d", enter(&r, 2, 2));
            for (int i = 0; i < 2; i++)
                say(e, "%s", told(completion(&r)));
            T(epoll_ctl(set, EPOLL_CTL_DEL, FD, &event));
            end_ring(&r);
        }
        close(set);
    }
    talk(e);
}

// A connection is closed by the ring, and its number used for a file.
static void closes(struct end *e)
{
    struct ring r;
    char buf[8];
    int made = -1;
    talk(e);
    AT(S) made = make_ring(e, &r, 0);
    AT(S) if (!made) {
        int fd = FD;
        T(send(fd, "last", 4, 0));
        entry(&r, IORING_OP_CLOSE, fd, NULL, 0);
        run(e, &r, "close");
        int pipes[2];
        MUST(pipe(pipes));
        say(e, "same number: %d", pipes[0] == fd);
        T(write(pipes[1], "abc", 3));
        T(read(pipes[0], buf, 8));
        close(pipes[1]);
        close(pipes[0]);
        FD = -1;
        end_ring(&r);
    } else {
        close(FD);
        FD = -1;
    }
    share(e, S, &made, sizeof made);
    AT(C) {
        if (!made)
            say(e, "got %zu", get(FD, buf, 4));
        T(recv(FD, buf, 8, 0));
    }
}

// Registered files are named by numbers of the ring's; also where the kernel takes the entries
// itself.
static void hidden(struct end *e)
{
    struct ring r;
    char buf[8];
    int made = -1;
    talk(e);
    AT(S) {
        made = make_ring(e, &r, 0);
        if (!made) {
            int files[] = {FD};
            T(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, files, 1));
            entry(&r, IORING_OP_SEND, 0, "fixed", 5)->flags = IOSQE_FIXED_FILE;
            run(e, &r, "send");
            end_ring(&r);
        }
    }
    share(e, S, &made, sizeof made);
    AT(C) if (!made) say(e, "got %zu", get(FD, buf, 5));
    talk(e);
}

static void polled(struct end *e)
{
    struct ring r;
    char buf[8];
    int made = -1;
    talk(e);
    AT(S) made = make_ring(e, &r, IORING_SETUP_SQPOLL);
    AT(S) if (!made) {
        entry(&r, IORING_OP_SEND, FD, "polled", 6);
        unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP;
        say(e, "entered: %d", syscall(SYS_io_uring_enter, r.fd, 1, 1, flags, NULL, 0) >= 0);
        say(e, "send = %s", told(completion(&r)));
        end_ring(&r);
    }
    share(e, S, &made, sizeof made);
    AT(C) if (!made) say(e, "got %zu", get(FD, buf, 6));
    talk(e);
}

// The last two: from there on all of the process stays on TCP.
DIFF_MAIN(CASE(files_only, COLD), CASE(moves, COLD), CASE(polls, COLD), CASE(registers, COLD), CASE(linked, COLD),
          CASE(closes, COLD), CASE(hidden, SPLIT | COLD), CASE(polled, SPLIT | COLD))
