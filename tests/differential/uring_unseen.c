// A ring of io_uring that passes libc by: set up by instructions of the program's own, or by liburing. The
// program mixes it with libc's calls on its connections.
// path: free
// timeout: 60
// variant: liburing -DLIBURING -Wl,--no-as-needed -l:liburing.so.2
#include "diff.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

struct ring {
    int fd;
    struct io_uring_params p;
    char *sq, *cq;
    struct io_uring_sqe *sqes;
};

#define WORD(base, offset) ((unsigned *)((base) + (offset)))

static long instruction(long number, long a, long b, long c, long d)
{
#ifdef __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

#ifdef LIBURING
// Its headers may not be there.
int io_uring_queue_init_params(unsigned entries, void *ring, struct io_uring_params *p);

static long set_up(struct io_uring_params *p)
{
    static char ring[1024];
    // The one that it opens.
    int lowest = dup(1);
    close(lowest);
    long made = io_uring_queue_init_params(8, ring, p);
    return made < 0 ? made : lowest;
}
#else
static long set_up(struct io_uring_params *p) { return instruction(SYS_io_uring_setup, 8, (long)p, 0, 0); }
#endif

// 0: there is one.
static int make_ring(struct end *e, struct ring *r)
{
    memset(r, 0, sizeof *r);
    r->fd = set_up(&r->p);
    if (r->fd < 0) {
        say(e, "no io_uring: %s", strerrorname_np(-r->fd));
        return -1;
    }
    int prot = PROT_READ | PROT_WRITE;
    size_t sq = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
    size_t cq = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
    r->sq = mmap(NULL, sq, prot, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
    r->cq = mmap(NULL, cq, prot, MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
    r->sqes = mmap(NULL, r->p.sq_entries * sizeof *r->sqes, prot, MAP_SHARED, r->fd, IORING_OFF_SQES);
    MUST(r->sq == MAP_FAILED || r->cq == MAP_FAILED || r->sqes == MAP_FAILED ? -1 : 0);
    return 0;
}

static void submit(struct ring *r, int op, int fd, void *data, unsigned n)
{
    unsigned *tail = WORD(r->sq, r->p.sq_off.tail);
    unsigned at = *tail & *WORD(r->sq, r->p.sq_off.ring_mask);
    struct io_uring_sqe *sqe = &r->sqes[at];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = op, sqe->fd = fd, sqe->addr = (uintptr_t)data, sqe->len = n;
    WORD(r->sq, r->p.sq_off.array)[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    instruction(SYS_io_uring_enter, r->fd, 1, 0, 0);
}

static int completion(struct ring *r)
{
    unsigned *head = WORD(r->cq, r->p.cq_off.head), *tail = WORD(r->cq, r->p.cq_off.tail);
    for (long long end = now_ms() + PATIENCE_MS; __atomic_load_n(tail, __ATOMIC_ACQUIRE) == *head;) {
        if (now_ms() > end)
            return -ETIME;
        nap();
    }
    struct io_uring_cqe *cqe = (void *)(r->cq + r->p.cq_off.cqes);
    int result = cqe[*head & *WORD(r->cq, r->p.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

static void connect_them(struct end *e)
{
    AT(C) {
        FD = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
        MUST(tcp_connect(FD, e->fam, e->port));
    }
    AT(S) FD = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
}

// The ring is there first. Libc's calls show that the connection lives; then the ring takes part.
static void ring_first(struct end *e)
{
    struct ring r;
    char buf[64] = "";
    int made = -1;
    AT(S) made = make_ring(e, &r);
    share(e, S, &made, sizeof made);
    connect_them(e);
    warm_up(e);
    if (made)
        return;
    for (int i = 0; i < 5; i++) {
        AT(S) submit(&r, IORING_OP_RECV, FD, buf, sizeof buf);
        AT(C) T(send(FD, "by libc", 7, 0));
        AT(S) {
            say(e, "recv by the ring = %d", completion(&r));
            submit(&r, IORING_OP_SEND, FD, "by the ring", 11);
            say(e, "send by the ring = %d", completion(&r));
        }
        AT(C) T(recv(FD, buf, 11, MSG_WAITALL));
        AT(C) T(send(FD, "more", 4, 0));
        AT(S) T(recv(FD, buf, 4, MSG_WAITALL));
    }
    AT(S) close(r.fd);
}

#ifdef LIBURING
// The connection is there first, and its upgrade: liburing is seen all the same.
static void connection_first(struct end *e)
{
    struct ring r;
    char buf[64] = "";
    int made = -1;
    AT(C) T(send(FD, "before", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        made = make_ring(e, &r);
        if (!made) {
            submit(&r, IORING_OP_RECV, FD, buf, sizeof buf);
            say(e, "recv by the ring = %d", completion(&r));
            close(r.fd);
        } else {
            T(recv(FD, buf, 6, MSG_WAITALL));
        }
    }
    AT(C) T(send(FD, "behind", 6, 0));
    AT(S) T(recv(FD, buf, 6, MSG_WAITALL));
}
#define MORE , CASE(connection_first, SPLIT)
#else
#define MORE
#endif

DIFF_MAIN(CASE(ring_first, BARE | SPLIT) MORE)
