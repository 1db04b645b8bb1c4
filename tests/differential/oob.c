// Urgent data, which only the kernel's TCP can carry.
// path: shunted
// variant: syscall -DVIA_SYSCALL
#include "diff.h"

static void urgent_aside(struct end *e)
{
    char buf[16];
    AT(C) {
        T(send(FD, "ab", 2, 0));
        T(send(FD, "!", 1, MSG_OOB));
        T(send(FD, "cd", 2, 0));
    }
    AT(S) {
        say(e, "%s", events(await_events(e, FD, POLLPRI)));
        await_bytes(e, FD, 2);
        struct pollfd p = {FD, POLLIN | POLLPRI | POLLOUT, 0};
        T(poll(&p, 1, 0));
        say(e, "%s", events(p.revents));
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, MSG_OOB));
        say(e, "%c", buf[0]);
        T(recv(FD, buf, 16, MSG_OOB));
        await_events(e, FD, POLLIN);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 16, MSG_OOB));
    }
}

static void urgent_inline(struct end *e)
{
    char buf[16];
    int on = 1;
    AT(S) T(setsockopt(FD, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    AT(C) {
        T(send(FD, "ab", 2, 0));
        T(send(FD, "!", 1, MSG_OOB));
        T(send(FD, "cd", 2, 0));
    }
    AT(S) {
        await_events(e, FD, POLLPRI);
        int mark = -1;
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        T(recv(FD, buf, 16, 0));
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        await_bytes(e, FD, 3);
        T(recv(FD, buf, 16, 0));
        say(e, "%.3s", buf);
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        T(recv(FD, buf, 16, MSG_OOB | MSG_DONTWAIT));
    }
}

// sockatmark() says what the request says, whatever lies where.
static void urgent_mark(struct end *e)
{
    char buf[16];
    int mark = -1;
    AT(C) {
        T(send(FD, "0123456789", 10, 0));
        T(send(FD, "!", 1, MSG_OOB));
        T(send(FD, "after", 5, 0));
    }
    AT(S) {
        await_events(e, FD, POLLPRI);
        await_bytes(e, FD, 10);
        T(sockatmark(FD));
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        T(recv(FD, buf, 4, 0));
        T(sockatmark(FD));
        T(recv(FD, buf, 16, 0));
        T(sockatmark(FD));
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        T(recv(FD, buf, 16, MSG_OOB));
        T(recv(FD, buf, 5, MSG_WAITALL));
        say(e, "%.5s", buf);
        T(sockatmark(FD));
    }
    AT(C) {
        T(sockatmark(FD));
        T(sockatmark(-1));
        T(sockatmark(0) < 0);
    }
}

static void urgent_select(struct end *e)
{
    char buf[16];
    AT(C) T(send(FD, "xyz", 3, MSG_OOB));
    AT(S) {
        fd_set r, x;
        FD_ZERO(&r);
        FD_ZERO(&x);
        FD_SET(FD, &r);
        FD_SET(FD, &x);
        await_events(e, FD, POLLPRI);
        T(select(FD + 1, &r, NULL, &x, NULL));
        say(e, "read %d except %d", FD_ISSET(FD, &r) != 0, FD_ISSET(FD, &x) != 0);
        T(recv(FD, buf, 16, 0));
        T(recv(FD, buf, 1, MSG_OOB));
        say(e, "%c", buf[0]);
    }
}

static void nothing_urgent(struct end *e)
{
    char buf[16];
    int mark = -1;
    AT(C) T(send(FD, "abc", 3, 0));
    AT(S) {
        await_bytes(e, FD, 3);
        T(ioctl(FD, SIOCATMARK, &mark));
        say(e, "mark %d", mark);
        T(sockatmark(FD));
        T(recv(FD, buf, 1, MSG_OOB));
        T(recv(FD, buf, 1, MSG_OOB | MSG_DONTWAIT));
        T(recv(FD, buf, 16, 0));
    }
}

// Ordinary bytes before and after in both directions stay in order.
static void urgent_between(struct end *e)
{
    char buf[64];
    for (int i = 0; i < 4; i++) {
        AT(C) {
            T(send(FD, "0123456789", 10, 0));
            T(send(FD, "!", 1, MSG_OOB));
        }
        AT(S) {
            await_events(e, FD, POLLPRI);
            await_bytes(e, FD, 10);
            T(recv(FD, buf, 64, 0));
            T(recv(FD, buf, 1, MSG_OOB));
            T(send(FD, "back", 4, 0));
        }
        AT(C) {
            await_bytes(e, FD, 4);
            T(recv(FD, buf, 64, 0));
        }
    }
}

// No splice passes the urgent byte, which a receive leaves out.
static void urgent_spliced(struct end *e)
{
    char buf[16];
    int p[2];
    AT(C) {
        T(send(FD, "ab", 2, 0));
        T(send(FD, "!", 1, MSG_OOB));
        T(send(FD, "cd", 2, 0));
    }
    AT(S) {
        MUST(pipe2(p, O_CLOEXEC));
        await_events(e, FD, POLLPRI);
        await_bytes(e, FD, 2);
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        T(splice(FD, NULL, p[1], NULL, 16, SPLICE_F_NONBLOCK));
        int flags = MUST(fcntl(FD, F_GETFL));
        MUST(fcntl(FD, F_SETFL, flags | O_NONBLOCK));
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        T(recv(FD, buf, 16, MSG_OOB));
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        await_events(e, FD, POLLIN);
        T(recv(FD, buf, 1, 0));
        MUST(fcntl(FD, F_SETFL, flags));
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        T(read(p[0], buf, 16));
        say(e, "%.3s", buf);
        close(p[0]), close(p[1]);
    }
}

// A receive that waits for all, and a splice, end at the urgent byte, also if nothing is behind it; a splice that does not wait is told of the
// end of the stream.
static void urgent_last(struct end *e)
{
    char buf[16];
    int p[2];
    AT(C) T(send(FD, "ab!", 3, MSG_OOB));
    AT(S) {
        await_events(e, FD, POLLPRI);
        await_bytes(e, FD, 2);
        T(recv(FD, buf, 16, MSG_WAITALL));
        MUST(pipe2(p, O_CLOEXEC));
        MUST(fcntl(FD, F_SETFL, MUST(fcntl(FD, F_GETFL)) | O_NONBLOCK));
        T(splice(FD, NULL, p[1], NULL, 16, 0));
    }
    AT(C) T(shutdown(FD, SHUT_WR));
    AT(S) {
        await_events(e, FD, POLLRDHUP);
        T(splice(FD, NULL, p[1], NULL, 16, 0));
        close(p[0]), close(p[1]);
    }
}

// A connection that has carried urgent data, sent by whatever call, goes on by TCP: its ends count its bytes differently.
static void urgent_by(struct end *e, int is_many)
{
    static char bytes[4096];
    AT(C) {
        // A control message that asks for nothing.
        static _Alignas(struct cmsghdr) char control[CMSG_SPACE(0)];
        *(struct cmsghdr *)control = (struct cmsghdr){CMSG_LEN(0), IPPROTO_UDP, 0};
        struct iovec v = {"ab!", 3};
        struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
        if (is_many) {
            T(sendmmsg(FD, &m, 1, MSG_OOB));
        } else {
            m.msg_hdr.msg_control = control;
            m.msg_hdr.msg_controllen = sizeof control;
            T(sendmsg(FD, &m.msg_hdr, MSG_OOB));
        }
    }
    AT(S) await_events(e, FD, POLLPRI);
    // Enough for both ends to begin with shared memory, and no byte has been read at that end.
    for (int i = 0; i < 64; i++) {
        AT(S) T(send(FD, "x", 1, 0));
        AT(C) T(recv(FD, bytes, 1, 0));
    }
    for (int i = 0; i < 4; i++) {
        AT(C) T(send(FD, bytes, sizeof bytes, 0));
        AT(S) T(recv(FD, bytes, sizeof bytes, MSG_WAITALL));
    }
    AT(S) {
        await_bytes(e, FD, sizeof bytes);
        T(recv(FD, bytes, sizeof bytes, MSG_DONTWAIT));
    }
}
static void urgent_by_many(struct end *e) { urgent_by(e, 1); }
static void urgent_with_control(struct end *e) { urgent_by(e, 0); }

static void urgent_full(struct end *e)
{
    size_t total = 0;
    int goes = 0; // That depends on how fast the bytes before it leave.
    AT(C) {
        total = stuff(e, FD, 4);
        goes = send(FD, "!", 1, MSG_OOB | MSG_DONTWAIT) == 1;
    }
    share(e, C, &total, sizeof total);
    share(e, C, &goes, sizeof goes);
    AT(S) {
        char byte = 0;
        drain(e, FD, total, 4);
        if (goes) {
            await_events(e, FD, POLLPRI);
            if (recv(FD, &byte, 1, MSG_OOB) != 1 || byte != '!')
                say(e, "urgent byte lost");
        }
        T(recv(FD, &byte, 1, MSG_DONTWAIT));
    }
}

DIFF_MAIN(CASE(nothing_urgent, ALL | COLD), CASE(urgent_aside, ALL | COLD), CASE(urgent_inline, ALL | COLD),
          CASE(urgent_select, COLD), CASE(urgent_mark, ALL | COLD), CASE(urgent_between, COLD), CASE(urgent_spliced, ALL | COLD), CASE(urgent_last, ALL | COLD),
          CASE(urgent_by_many, COLD), CASE(urgent_with_control, COLD),
          CASE(urgent_full, 0))
