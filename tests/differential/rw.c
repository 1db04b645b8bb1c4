// Every call that moves bytes, with plain, empty, huge and broken arguments.
// path: shunted 50%
// timeout: 60
// variant: fortify -O2 -D_FORTIFY_SOURCE=2
// variant: syscall -DVIA_SYSCALL
// variant: lfs -D_FILE_OFFSET_BITS=64
#include "diff.h"

static char big[8 << 20];

// A size the compiler cannot see, so that fortified builds check at run time.
static volatile size_t n1 = 1, n4 = 4, n10 = 10;

static void show(struct end *e, const char *what, const char *buf, long n)
{
    say(e, "%s \"%.*s\"", what, n > 0 ? (int)n : 0, buf);
}

static void plain_read_write(struct end *e)
{
    char buf[16];
    AT(C) T(write(FD, "hello", 5));
    AT(S) {
        await_bytes(e, FD, 5);
        show(e, "got", buf, T(read(FD, buf, sizeof buf)));
        T(write(FD, "world!", 6));
    }
    AT(C) {
        await_bytes(e, FD, 6);
        show(e, "first", buf, T(read(FD, buf, n4)));
        show(e, "rest", buf, T(read(FD, buf, n10)));
    }
}

static void plain_send_recv(struct end *e)
{
    char buf[16];
    AT(C) T(send(FD, "hello", 5, 0));
    AT(S) {
        await_bytes(e, FD, 5);
        show(e, "first", buf, T(recv(FD, buf, n1, 0)));
        show(e, "rest", buf, T(recv(FD, buf, sizeof buf, 0)));
        T(send(FD, "world!", 6, MSG_NOSIGNAL));
    }
    AT(C) {
        await_bytes(e, FD, 6);
        show(e, "got", buf, T(recv(FD, buf, n10, MSG_NOSIGNAL)));
    }
}

static void vectors(struct end *e)
{
    char a[4], b[1], c[16];
    struct iovec out[] = {{"ab", 2}, {NULL, 0}, {"cdefg", 5}, {"", 0}, {"hij", 3}};
    struct iovec in[] = {{a, 4}, {NULL, 0}, {b, 1}, {c, 0}, {c, 16}};
    AT(C) T(writev(FD, out, 5));
    AT(S) {
        await_bytes(e, FD, 10);
        T(readv(FD, in, 5));
        show(e, "a", a, 4);
        show(e, "b", b, 1);
        show(e, "c", c, 5);
        T(writev(FD, out + 2, 1));
    }
    AT(C) {
        await_bytes(e, FD, 5);
        T(readv(FD, in, 1));
        T(readv(FD, in + 2, 1));
    }
}

static void vector_limits(struct end *e)
{
    static struct iovec v[IOV_MAX + 1];
    char buf[16];
    for (int i = 0; i <= IOV_MAX; i++)
        v[i] = (struct iovec){"x", 1};
    AT(C) {
        T(writev(FD, v, IOV_MAX + 1));
        T(writev(FD, v, -1));
        T(writev(FD, v, 0));
        T(writev(FD, NULL, 0));
        T(writev(FD, v, IOV_MAX));
    }
    AT(S) {
        await_bytes(e, FD, IOV_MAX);
        memset(big, 0, IOV_MAX);
        for (int i = 0; i <= IOV_MAX; i++)
            v[i] = (struct iovec){big + i, 1};
        T(readv(FD, v, IOV_MAX + 1));
        T(readv(FD, v, 0));
        T(readv(FD, v, IOV_MAX));
        say(e, "sum %d", (int)(big[0] + big[IOV_MAX - 1]));
    }
    AT(C) {
        struct iovec huge[] = {{buf, SSIZE_MAX}, {buf, SSIZE_MAX}};
        struct iovec negative[] = {{buf, (size_t)-1}};
        T(writev(FD, huge, 2));
        T(writev(FD, negative, 1));
        T(readv(FD, negative, 1));
        struct msghdr m = {.msg_iov = v, .msg_iovlen = IOV_MAX + 1};
        T(sendmsg(FD, &m, 0));
        T(recvmsg(FD, &m, MSG_DONTWAIT));
    }
}

static void from_and_to(struct end *e)
{
    char buf[16];
    union address a;
    socklen_t n;
    AT(C) {
        n = target(e->fam, 1, &a); // a TCP socket ignores the address
        T(sendto(FD, "hello", 5, 0, &a.sa, n));
        T(sendto(FD, "there", 5, 0, NULL, 0));
        T(sendto(FD, "again", 5, 0, &a.sa, 3));
        T(sendto(FD, "again", 5, 0, &a.sa, -1));
    }
    AT(S) {
        await_bytes(e, FD, 15);
        n = sizeof a;
        memset(&a, 0x55, sizeof a);
        T(recvfrom(FD, buf, 5, 0, &a.sa, &n));
        say(e, "addrlen %u family byte %x", n, *(unsigned char *)&a);
        n = 0;
        T(recvfrom(FD, buf, n1, 0, &a.sa, &n));
        say(e, "addrlen %u", n);
        n = -1;
        T(recvfrom(FD, buf, n1, 0, &a.sa, &n));
        say(e, "addrlen %d", (int)n);
        T(recvfrom(FD, buf, n1, 0, NULL, &n));
        T(recvfrom(FD, buf, n1, 0, NULL, NULL));
        T(recvfrom(FD, buf, n1, 0, &a.sa, NULL));
        T(recvfrom(FD, buf, sizeof buf, MSG_DONTWAIT, NULL, NULL));
        T(recvfrom(FD, buf, sizeof buf, MSG_DONTWAIT, NULL, NULL));
    }
}

static void messages(struct end *e)
{
    char a[3], b[16];
    char control[64];
    union address from;
    struct iovec out[] = {{"one", 3}, {"", 0}, {"two", 3}};
    struct iovec in[] = {{a, 3}, {b, 16}};
    AT(C) {
        struct msghdr m = {.msg_iov = out, .msg_iovlen = 3};
        T(sendmsg(FD, &m, 0));
        m.msg_iovlen = 0;
        T(sendmsg(FD, &m, 0));
        m.msg_iov = NULL;
        T(sendmsg(FD, &m, MSG_NOSIGNAL));
        m = (struct msghdr){.msg_iov = out, .msg_iovlen = 1, .msg_name = &from,
                            .msg_namelen = target(e->fam, 1, &from)};
        T(sendmsg(FD, &m, 0));
    }
    AT(S) {
        await_bytes(e, FD, 9);
        memset(&from, 0x55, sizeof from);
        struct msghdr m = {.msg_iov = in, .msg_iovlen = 2, .msg_name = &from, .msg_namelen = sizeof from,
                           .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
        show(e, "a", a, T(recvmsg(FD, &m, 0)) > 0 ? 3 : 0);
        show(e, "b", b, 6);
        say(e, "namelen %u controllen %zu flags %x", m.msg_namelen, (size_t)m.msg_controllen, m.msg_flags);
        m.msg_iovlen = 0;
        T(recvmsg(FD, &m, MSG_DONTWAIT));
        m.msg_iovlen = 2;
        T(recvmsg(FD, &m, MSG_DONTWAIT));
        T(write(FD, "0123456789", 10));
    }
    AT(C) {
        // A short buffer does not truncate a stream.
        await_bytes(e, FD, 10);
        struct msghdr m = {.msg_iov = in, .msg_iovlen = 1};
        T(recvmsg(FD, &m, 0));
        say(e, "flags %x", m.msg_flags);
        in[1].iov_len = 4;
        m.msg_iovlen = 2;
        T(recvmsg(FD, &m, 0));
        say(e, "flags %x", m.msg_flags);
    }
}

static void many_messages(struct end *e)
{
    char bufs[4][3];
    struct iovec v[4];
    struct mmsghdr m[4];
    AT(C) {
        memset(m, 0, sizeof m);
        for (int i = 0; i < 4; i++) {
            v[i] = (struct iovec){"abcd" + i, 1};
            m[i].msg_hdr.msg_iov = v + i;
            m[i].msg_hdr.msg_iovlen = 1;
        }
        T(sendmmsg(FD, m, 4, 0));
        say(e, "lengths %u %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len, m[3].msg_len);
        T(sendmmsg(FD, m, 4, MSG_DONTWAIT));
        T(sendmmsg(FD, m, 0, 0));
    }
    AT(S) {
        await_bytes(e, FD, 8);
        memset(m, 0, sizeof m);
        for (int i = 0; i < 4; i++) {
            v[i] = (struct iovec){bufs[i], 3};
            m[i].msg_hdr.msg_iov = v + i;
            m[i].msg_hdr.msg_iovlen = 1;
        }
        T(recvmmsg(FD, m, 2, 0, NULL));
        say(e, "lengths %u %u", m[0].msg_len, m[1].msg_len);
        show(e, "0", bufs[0], m[0].msg_len);
        show(e, "1", bufs[1], m[1].msg_len);
        T(recvmmsg(FD, m, 4, MSG_WAITFORONE, NULL));
        say(e, "length %u", m[0].msg_len);
        T(recvmmsg(FD, m, 4, MSG_DONTWAIT, NULL));
        T(recvmmsg(FD, m, 0, 0, NULL));
        struct timespec bad = {0, 2000000000};
        T(recvmmsg(FD, m, 1, MSG_DONTWAIT, &bad));
    }
}

// As many as are wanted; only for sending there is a limit.
static void very_many_messages(struct end *e)
{
    enum { COUNT = 1500 };
    static char bytes[COUNT];
    struct iovec *v = calloc(COUNT, sizeof *v);
    struct mmsghdr *m = calloc(COUNT, sizeof *m);
    for (int i = 0; i < COUNT; i++) {
        v[i] = (struct iovec){bytes + i, 1};
        m[i].msg_hdr.msg_iov = v + i;
        m[i].msg_hdr.msg_iovlen = 1;
    }
    AT(C) {
        T(sendmmsg(FD, m, COUNT, 0));
        put(FD, bytes, COUNT - 1024);
    }
    AT(S) {
        await_bytes(e, FD, COUNT);
        T(recvmmsg(FD, m, COUNT, MSG_DONTWAIT, NULL));
        T(recv(FD, bytes, COUNT, MSG_DONTWAIT));
    }
    free(v), free(m);
}

// Ancillary data is judged even where it means nothing.
static void ancillary_out(struct end *e)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(4)];
    } c;
    char buf[16];
    AT(C) {
        struct iovec v = {"hello", 5};
        static const struct { int level, type; size_t length; } all[] = {
            {SOL_SOCKET, 0x77, CMSG_LEN(4)}, {SOL_SOCKET, 0x77, 3}, {IPPROTO_TCP, 0x77, CMSG_LEN(4)},
            {SOL_SOCKET, SCM_CREDENTIALS, CMSG_LEN(4)}, {SOL_SOCKET, SCM_TIMESTAMPING, CMSG_LEN(0)},
            {IPPROTO_TCP, 1, 1000},
        };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            memset(&c, 0, sizeof c);
            c.head.cmsg_level = all[i].level;
            c.head.cmsg_type = all[i].type;
            c.head.cmsg_len = all[i].length;
            struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
            T(sendmsg(FD, &m, 0));
        }
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_controllen = 16};
        T(sendmsg(FD, &m, 0));
        m = (struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = 3};
        T(sendmsg(FD, &m, 0));
    }
    AT(S) {
        await_bytes(e, FD, 15);
        T(recv(FD, buf, 16, 0));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(C) {
        struct iovec v = {"hello", 5};
        memset(&c, 0, sizeof c);
        c.head = (struct cmsghdr){CMSG_LEN(4), IPPROTO_TCP, 0x77};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
        T(sendmsg(FD, &m, 0));
        T(sendmsg(FD, &m, MSG_NOSIGNAL));
    }
}

// Flags of files say nothing about a socket; the bytes go their way all the same.
static void flags_of_files(struct end *e)
{
    static const int flags[] = {RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_SYNC | RWF_NOWAIT};
    char buf[16];
    struct iovec out = {"hello", 5}, in = {buf, 5};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        AT(C) T(pwritev2(FD, &out, 1, -1, flags[i]));
        AT(S) {
            await_bytes(e, FD, 5);
            show(e, "got", buf, T(preadv2(FD, &in, 1, -1, flags[i])));
        }
    }
}

// A flag that kernels have since 6.18, and one that none has.
static void newer_flags_of_files(struct end *e)
{
    enum { NOSIGNAL = 0x100, UNKNOWN = 0x20000000 };
    char buf[16] = "";
    struct iovec out = {"hello", 5}, in = {buf, sizeof buf}, empty = {NULL, 0};
    AT(C) {
        T(send(FD, "a", 1, 0));
        T(pwritev2(FD, &out, 1, -1, NOSIGNAL));
        T(pwritev2(FD, &out, 1, -1, UNKNOWN));
        T(pwritev2(FD, &empty, 1, -1, UNKNOWN));
        T(send(FD, "b", 1, 0));
    }
    AT(S) {
        await_bytes(e, FD, 2);
        T(preadv2(FD, &in, 1, -1, UNKNOWN));
        T(preadv2(FD, &in, 1, -1, NOSIGNAL | RWF_NOWAIT));
        T(recv(FD, buf + 8, 8, MSG_DONTWAIT));
        say(e, "%.7s %.7s", buf, buf + 8);
    }
    AT(C) {
        T(shutdown(FD, SHUT_WR));
        T(pwritev2(FD, &out, 1, -1, NOSIGNAL));
        T(pwritev2(FD, &out, 1, -1, 0));
    }
}

static void positioned(struct end *e)
{
    char buf[16];
    struct iovec out = {"hello", 5}, in = {buf, sizeof buf};
    AT(C) {
        T(pwrite(FD, "x", 1, 0));
        T(pwrite(FD, "x", 1, 5));
        T(pwritev(FD, &out, 1, 0));
        T(pwritev2(FD, &out, 1, 0, 0));
        T(pwritev2(FD, &out, 1, -1, 0));
        T(pread(FD, buf, n1, 0));
        T(preadv(FD, &in, 1, 0));
        T(preadv2(FD, &in, 1, 0, 0));
        T(pread(FD, buf, n1, -1));
        T(preadv(FD, &in, 1, -1));
    }
    AT(S) {
        await_bytes(e, FD, 5);
        show(e, "got", buf, T(preadv2(FD, &in, 1, -1, 0)));
        T(preadv2(FD, &in, 1, -1, RWF_NOWAIT));
        T(pwritev2(FD, &out, 1, -1, 0x40000000));
    }
}

static void nothing(struct end *e)
{
    char buf[4] = "";
    struct iovec empty[] = {{buf, 0}, {NULL, 0}};
    AT(C) {
        T(write(FD, buf, 0));
        T(write(FD, NULL, 0));
        T(send(FD, buf, 0, 0));
        T(send(FD, NULL, 0, 0));
        T(writev(FD, empty, 2));
        T(read(FD, buf, 0));
        T(recv(FD, buf, 0, MSG_DONTWAIT));
        T(recv(FD, NULL, 0, MSG_DONTWAIT));
        T(readv(FD, empty, 0));
    }
    AT(S) {
        T(recv(FD, buf, sizeof buf, MSG_DONTWAIT));
        T(send(FD, "ab", 2, 0));
    }
    AT(C) {
        await_bytes(e, FD, 2);
        T(read(FD, buf, 0));
        T(recv(FD, buf, 0, 0));
        T(recv(FD, NULL, 0, 0));
        T(readv(FD, empty, 2));
        T(recv(FD, buf, 4, 0));
    }
}

static void bad_pointers(struct end *e)
{
    char *bad = (char *)8;
    char buf[16];
    long page = sysconf(_SC_PAGESIZE);
    char *edge = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + page, page);
    AT(C) {
        T(write(FD, bad, 5));
        T(send(FD, bad, 5, 0));
        struct iovec v[] = {{"ok", 2}, {bad, 2}};
        T(writev(FD, v, 2));
        T(writev(FD, v + 1, 1));
        T(writev(FD, (struct iovec *)bad, 1));
        T(sendmsg(FD, (struct msghdr *)bad, 0));
        struct msghdr m = {.msg_iov = (struct iovec *)bad, .msg_iovlen = 1};
        T(sendmsg(FD, &m, 0));
        T(send(FD, "0123456789", 10, 0));
    }
    AT(S) {
        await_bytes(e, FD, 10);
        T(read(FD, bad, n4));
        T(recv(FD, bad, n4, 0));
        T(recv(FD, bad, n4, MSG_PEEK));
        T(recvmsg(FD, (struct msghdr *)bad, 0));
        struct iovec v = {bad, 4};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        T(recvmsg(FD, &m, 0));
        T(readv(FD, &v, 1));
        T(readv(FD, (struct iovec *)bad, 1));
        // Nothing was lost by any of these.
        show(e, "got", buf, T(recv(FD, buf, sizeof buf, 0)));
    }
    munmap(edge, page);
}

static void read_only_buffer(struct end *e)
{
    char buf[16];
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AT(C) T(send(FD, "0123456789", 10, 0));
    AT(S) {
        await_bytes(e, FD, 10);
        T(read(FD, page, 5));
        T(recv(FD, page, 5, 0));
        show(e, "got", buf, T(recv(FD, buf, sizeof buf, 0)));
        T(write(FD, page, 5));
    }
    AT(C) {
        await_bytes(e, FD, 5);
        T(read(FD, buf, sizeof buf));
    }
    munmap(page, 4096);
}

static void bad_descriptors(struct end *e)
{
    char buf[4];
    struct iovec v = {buf, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    AT(C) {
        for (int i = 0; i < 3; i++) {
            int fd = i == 0 ? -1 : i == 1 ? 1 << 20 : INT_MAX;
            T(read(fd, buf, n1));
            T(write(fd, buf, 1));
            T(recv(fd, buf, n1, 0));
            T(send(fd, buf, 1, 0));
            T(readv(fd, &v, 1));
            T(writev(fd, &v, 1));
            T(recvmsg(fd, &m, 0));
            T(sendmsg(fd, &m, 0));
            T(recvfrom(fd, buf, n1, 0, NULL, NULL));
            T(shutdown(fd, SHUT_RDWR));
            T(close(fd));
        }
        int file = open("/dev/null", O_RDWR | O_CLOEXEC);
        T(recv(file, buf, n1, 0));
        T(send(file, buf, 1, 0));
        T(recvmsg(file, &m, 0));
        T(shutdown(file, SHUT_RD));
        T(read(file, buf, n4));
        T(write(file, buf, 4));
        close(file);
        T(read(file, buf, n4));
    }
}

static void fresh_socket(struct end *e)
{
    char buf[4];
    AT(C) {
        int fd = tcp_socket(e->fam, SOCK_CLOEXEC);
        T(send(fd, "x", 1, 0));
        T(write(fd, "x", 1));
        T(send(fd, "x", 1, MSG_NOSIGNAL));
        T(recv(fd, buf, n1, 0));
        T(read(fd, buf, n1));
        T(shutdown(fd, SHUT_RDWR));
        close(fd);
    }
    AT(S) {
        T(send(e->lfd, "x", 1, 0));
        T(recv(e->lfd, buf, n1, 0));
        T(write(e->lfd, "x", 1));
        T(read(e->lfd, buf, n1));
    }
}

static const size_t sizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 127, 1000, 1448, 4095, 4096, 4097,
                               16384, 65535, 65536, 65537, 262144, 1 << 20, (4 << 20) - 8,
                               4 << 20, (4 << 20) + 1, 8 << 20};

// Whole messages, answered whole, so that blocking calls end by themselves.
static void all_sizes(struct end *e)
{
    static __thread char *buf;
    buf = malloc(8 << 20);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        if (e->role == C) {
            fill(buf, n, 0, i);
            long sent = (i & 1) ? write(FD, buf, n) : send(FD, buf, n, 0);
            say(e, "sent %ld", sent);
            expect(e, FD, n, i + 1);
        } else {
            expect(e, FD, n, i);
            fill(buf, n, 0, i + 1);
            struct iovec v[3] = {{buf, n / 3}, {buf + n / 3, 0}, {buf + n / 3, n - n / 3}};
            struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
            long sent = (i & 1) ? writev(FD, v, 3) : sendmsg(FD, &m, 0);
            say(e, "sent %ld", sent);
        }
    }
    free(buf);
}

// Many messages of changing size, read with sizes that do not fit them.
static void ragged(struct end *e)
{
    static __thread char buf[5000];
    size_t total = 0, step = 1;
    if (e->role == C) {
        while (total < 1 << 20) {
            step = (step * 7 + 3) % 4999 + 1;
            size_t n = step < (1 << 20) - total ? step : (1 << 20) - total;
            fill(buf, n, total, 5);
            if (put(FD, buf, n) != n)
                say(e, "short");
            total += n;
        }
        expect(e, FD, 4, 6);
    } else {
        int bad = 0;
        while (total < 1 << 20) {
            step = (step * 5 + 11) % 3001 + 1;
            size_t n = step < (1 << 20) - total ? step : (1 << 20) - total;
            ssize_t r = recv(FD, buf, n, 0);
            if (r <= 0)
                break;
            bad += check(buf, r, total, 5) >= 0;
            total += r;
        }
        say(e, "total %zu bad %d", total, bad);
        produce(e, FD, 4, 6);
    }
}

static void ping_pong(struct end *e)
{
    char buf[128];
    int bad = 0;
    for (int i = 0; i < 1000; i++) {
        size_t n = i % 100 + 1;
        if (e->role == C) {
            fill(buf, n, 0, i);
            bad += write(FD, buf, n) != (ssize_t)n;
            bad += get(FD, buf, n) != n || check(buf, n, 0, i + 1) >= 0;
        } else {
            bad += get(FD, buf, n) != n || check(buf, n, 0, i) >= 0;
            fill(buf, n, 0, i + 1);
            bad += send(FD, buf, n, 0) != (ssize_t)n;
        }
    }
    say(e, "%d bad", bad);
}

// The same in one thread, one direction and then the other.
static void steps(struct end *e)
{
    char buf[2048];
    int bad = 0;
    for (int i = 0; i < 60; i++) {
        size_t n = (i * 37) % 2048 + 1;
        AT(C) { fill(buf, n, 0, i); bad += write(FD, buf, n) != (ssize_t)n; }
        AT(S) {
            bad += get(FD, buf, n) != n || check(buf, n, 0, i) >= 0;
            fill(buf, n, 0, i + 1);
            bad += write(FD, buf, n) != (ssize_t)n;
        }
        AT(C) bad += get(FD, buf, n) != n || check(buf, n, 0, i + 1) >= 0;
    }
    say(e, "%d bad", bad);
}

// One receiving call may take what several sending calls left.
static void gathered(struct end *e)
{
    char buf[64];
    AT(C)
        for (int i = 0; i < 20; i++)
            MUST(write(FD, "abc", 3));
    AT(S) {
        await_bytes(e, FD, 60);
        T(read(FD, buf, n10));
        T(read(FD, buf, sizeof buf));
        T(recv(FD, buf, sizeof buf, MSG_DONTWAIT));
    }
}

// The reader sleeps first; one byte must wake it, again and again.
static void sleeper(struct end *e)
{
    char c = 0;
    for (int i = 0; i < 10; i++) {
        if (e->role == S) {
            will_block(e);
            T(read(FD, &c, n1));
            T(write(FD, &c, 1));
        } else {
            await_blocked(e);
            c = 'a' + i;
            T(send(FD, &c, 1, 0));
            T(recv(FD, &c, n1, 0));
            say(e, "%c", c);
        }
    }
}

#ifndef VIA_SYSCALL
// Names that libraries reach by dlsym or by old headers.
extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
extern ssize_t __send(int, const void *, size_t, int);
extern int __close(int), __fcntl(int, int, ...), __dup2(int, int);
extern ssize_t __pread64(int, void *, size_t, off_t), __pwrite64(int, const void *, size_t, off_t);

static void aliases(struct end *e)
{
    char buf[8];
    AT(C) {
        T(__write(FD, "ab", 2));
        T(__send(FD, "cd", 2, 0));
        T(__pwrite64(FD, "x", 1, 0));
    }
    AT(S) {
        await_bytes(e, FD, 4);
        show(e, "got", buf, T(__read(FD, buf, 8)));
        T(__pread64(FD, buf, n1, 0));
        OK(__fcntl(FD, F_GETFL));
        int other = MUST(fcntl(FD, F_DUPFD, 900));
        OK(__dup2(FD, other));
        T(__close(other));
        T(__write(FD, "z", 1));
    }
    AT(C) T(__read(FD, buf, n1));
}
#else
static void aliases(struct end *e) { say(e, "not by syscall"); }
#endif

DIFF_MAIN(CASE(plain_read_write, ALL | COLD), CASE(plain_send_recv, ALL | COLD), CASE(vectors, ALL | COLD),
          CASE(vector_limits, 0), CASE(from_and_to, ALL | COLD), CASE(messages, ALL | COLD),
          CASE(many_messages, ALL), CASE(very_many_messages, COLD), CASE(ancillary_out, ALL | COLD),
          CASE(newer_flags_of_files, COLD), CASE(flags_of_files, COLD), CASE(positioned, ALL), CASE(nothing, ALL | COLD),
          CASE(bad_pointers, COLD), CASE(read_only_buffer, 0), CASE(bad_descriptors, 0),
          CASE(fresh_socket, ALL), CASE(all_sizes, TWO | ALL | COLD), CASE(ragged, TWO | ALL | COLD),
          CASE(ping_pong, TWO | ALL | COLD), CASE(steps, COLD), CASE(gathered, ALL),
          CASE(sleeper, TWO | ALL | COLD), CASE(aliases, 0))
