// Requests that the kernel (io_submit) or threads of libc's (aio) carry out, on connections: what they do is as natively, also
// where bytes lie unread, and the connection serves its program afterwards. Where the kernel refuses a context, both sides say so.
// timeout: 60
#include "diff.h"
#include <aio.h>
#include <linux/aio_abi.h>

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

// 0: there is one.
static int make_context(struct end *e, aio_context_t *context)
{
    *context = 0;
    int made = syscall(SYS_io_setup, 4, context);
    if (made < 0)
        say(e, "no context: %s", strerrorname_np(errno));
    return made;
}

static void submit(struct end *e, aio_context_t context, int operation, int fd, uint64_t buffer, uint64_t n)
{
    static __thread struct iocb request;
    struct iocb *all[] = {&request};
    request = (struct iocb){.aio_fildes = fd, .aio_lio_opcode = operation, .aio_buf = buffer, .aio_nbytes = n};
    T(syscall(SYS_io_submit, context, 1, all));
}

// What the request has come to, if that has ended in time.
static long result(struct end *e, aio_context_t context)
{
    struct timespec limit = {PATIENCE_MS / 1000, PATIENCE_MS % 1000 * 1000000};
    struct io_event event;
    if (syscall(SYS_io_getevents, context, 1, 1, &event, &limit) == 1)
        return event.res;
    IN_VAIN("waited in vain for a request");
    return -1;
}

static void polls(struct end *e)
{
    aio_context_t context;
    char buf[8];
    int made = -1;
    talk(e);
    AT(S) {
        made = make_context(e, &context);
        if (!made)
            submit(e, context, IOCB_CMD_POLL, FD, POLLIN, 0);
    }
    AT(C) T(send(FD, "polled", 6, 0));
    AT(S) {
        if (!made)
            say(e, "%s", events(result(e, context)));
        T(recv(FD, buf, 8, 0));
        if (!made)
            syscall(SYS_io_destroy, context);
    }
    talk(e);
}

static void moves(struct end *e)
{
    aio_context_t context;
    char buf[8] = "";
    int made = -1;
    talk(e);
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        made = make_context(e, &context);
        if (!made) {
            submit(e, context, IOCB_CMD_PREAD, FD, (uintptr_t)buf, 4);
            say(e, "read %ld: %s", result(e, context), buf);
            T(send(FD, "be", 2, 0));
            submit(e, context, IOCB_CMD_PWRITE, FD, (uintptr_t) "hind", 4);
            say(e, "written %ld", result(e, context));
            syscall(SYS_io_destroy, context);
        }
        T(recv(FD, buf, 8, MSG_DONTWAIT));
    }
    share(e, S, &made, sizeof made);
    AT(C) if (!made) {
        say(e, "got %zu", get(FD, buf, 6));
        say(e, "%.6s", buf);
    }
    talk(e);
}

static void await_request(struct end *e, const struct aiocb *request)
{
    struct timespec limit = {PATIENCE_MS / 1000, PATIENCE_MS % 1000 * 1000000};
    if (aio_suspend(&request, 1, &limit))
        IN_VAIN("waited in vain for a request");
}

static void by_threads(struct end *e)
{
    char in[8] = "", out[] = "threads";
    struct aiocb request = {.aio_buf = in, .aio_nbytes = 7};
    talk(e);
    AT(S) {
        request.aio_fildes = FD;
        T(aio_read(&request));
    }
    AT(C) T(send(FD, "awaited", 7, 0));
    AT(S) {
        await_request(e, &request);
        say(e, "read %zd: %s", aio_return(&request), in);
        T(send(FD, "by ", 3, 0));
        request.aio_buf = out;
        T(aio_write(&request));
        await_request(e, &request);
        say(e, "written %zd", aio_return(&request));
    }
    AT(C) {
        char all[16] = "";
        say(e, "got %zu", get(FD, all, 10));
        say(e, "%s", all);
    }
    talk(e);
}

static void in_a_list(struct end *e)
{
    char in[8] = "", out[] = "listed";
    struct aiocb reads = {.aio_buf = in, .aio_nbytes = 6, .aio_lio_opcode = LIO_READ};
    struct aiocb writes = {.aio_buf = out, .aio_nbytes = 6, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *all[] = {NULL, &reads, &writes};
    talk(e);
    AT(C) T(send(FD, "unread", 6, 0));
    AT(S) {
        await_bytes(e, FD, 6);
        reads.aio_fildes = writes.aio_fildes = FD;
        T(lio_listio(LIO_WAIT, all, 3, NULL));
        say(e, "read %zd: %s, written %zd", aio_return(&reads), in, aio_return(&writes));
    }
    AT(C) {
        say(e, "got %zu", get(FD, in, 6));
        say(e, "%s", in);
    }
    talk(e);
}

DIFF_MAIN(CASE(polls, COLD), CASE(moves, COLD), CASE(by_threads, COLD), CASE(in_a_list, COLD))
