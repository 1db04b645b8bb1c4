// The calls themselves, in whichever process and thread.
#ifndef CALL_H
#define CALL_H
#include "op.h"

static int fds[SLOTS];
static int listener = -1;
static volatile sig_atomic_t sigpipes, alarms;

static unsigned char pattern(uint64_t i, int stream)
{
    return (unsigned char)(i * 31 + (i >> 8) * 17 + (i >> 16) * 7 + stream * 101);
}

static unsigned char *pattern_from(long n, uint64_t at, int stream)
{
    unsigned char *buffer = malloc(n + 1);
    for (long i = 0; i < n; i++)
        buffer[i] = pattern(at + i, stream);
    return buffer;
}

static void say_result(struct answer *a, long r)
{
    a->result = r;
    if (r < 0)
        say(a, " = %s", strerrorname_np(errno));
    else
        say(a, " = %ld", r);
}

static void say_bits(struct answer *a, const struct word *words, unsigned bits)
{
    const char *separator = " ";
    for (; words->name; words++)
        if (bits & (unsigned)words->value) {
            say(a, "%s%s", separator, words->name);
            bits &= ~(unsigned)words->value;
            separator = "|";
        }
    if (bits)
        say(a, "%s%#x", separator, bits);
}

// Three parts of one buffer, as programs send a head, a body and a tail.
static void in_parts(struct iovec parts[3], unsigned char *buffer, long n)
{
    long a = n / 3, b = n / 4;
    parts[0] = (struct iovec){buffer, a};
    parts[1] = (struct iovec){buffer + a, b};
    parts[2] = (struct iovec){buffer + a + b, n - a - b};
}

// ---- Sending ---------------------------------------------------------------

static long send_file(int fd, const unsigned char *buffer, long n)
{
    int file = memfd_create("fuzz", MFD_CLOEXEC);
    off_t from = 0;
    long r = write(file, buffer, n) == n ? sendfile(fd, file, &from, n) : -2;
    int saved = errno;
    close(file);
    errno = saved;
    return r;
}

// As much as a pipe holds.
enum { TUBE = 60000 };

static long send_spliced(int fd, const unsigned char *buffer, long n, int flags)
{
    int tube[2];
    if (n > TUBE)
        n = TUBE;
    if (pipe2(tube, O_CLOEXEC))
        return -1;
    long r = write(tube[1], buffer, n) == n
                 ? splice(tube[0], NULL, fd, NULL, n, flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0) : -2;
    int saved = errno;
    close(tube[0]);
    close(tube[1]);
    errno = saved;
    return r;
}

static long send_stream(int fd, const unsigned char *buffer, long n)
{
    int copy = dup(fd);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "w");
    if (!stream)
        return -1;
    long r = fwrite(buffer, 1, n, stream);
    int failed = fflush(stream), saved = errno;
    fclose(stream);
    errno = saved;
    return failed ? -1 : r;
}

static long send_messages(int fd, struct iovec parts[3], int flags)
{
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 2}}};
    int sent = sendmmsg(fd, messages, 2, flags);
    long total = 0;
    for (int i = 0; i < sent; i++)
        total += messages[i].msg_len;
    return sent < 0 ? -1 : total;
}

static long send_by(const struct op *o, int fd, unsigned char *buffer)
{
    struct iovec parts[3];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    in_parts(parts, buffer, o->n);
    switch (o->how) {
    case BY_WRITE: return write(fd, buffer, o->n);
    case BY_WRITEV: return writev(fd, parts, 3);
    case BY_SENDTO: return sendto(fd, buffer, o->n, o->flags, NULL, 0);
    case BY_SENDMSG: return sendmsg(fd, &message, o->flags);
    case BY_SENDMMSG: return send_messages(fd, parts, o->flags);
    case BY_SENDFILE: return send_file(fd, buffer, o->n);
    case BY_SPLICE: return send_spliced(fd, buffer, o->n, o->flags);
    case BY_STDIO: return send_stream(fd, buffer, o->n);
    case BY_SYSCALL: return syscall(SYS_sendto, fd, buffer, o->n, o->flags, NULL, 0);
    case BY_PWRITEV2: return pwritev2(fd, parts, 3, -1, 0);
    default: return send(fd, buffer, o->n, o->flags);
    }
}

// An address at which nothing is.
#define NOWHERE ((unsigned char *)8)

static void do_send(const struct op *o, struct answer *a)
{
    unsigned char *buffer = pattern_from(o->n, o->out_at, o->out);
    long r = send_by(o, fds[o->slot], o->bad ? NOWHERE : buffer);
    say_result(a, r);
    a->moved = r > 0 ? r : 0;
    free(buffer);
}

// ---- Receiving -------------------------------------------------------------

struct received {
    int flags, name, control;
};

// All that is there, at most n: how much one splice takes depends on how it lies in the kernel.
static long receive_spliced(int fd, unsigned char *buffer, long n, int flags)
{
    int tube[2], how = flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0;
    if (pipe2(tube, O_CLOEXEC))
        return -1;
    long done = 0, r = 0;
    int saved = 0;
    while (done < n) {
        r = splice(fd, NULL, tube[1], NULL, n - done < TUBE ? n - done : TUBE, how);
        saved = errno;
        if (r <= 0)
            break;
        for (long end = done + r; done < end;)
            done += read(tube[0], buffer + done, end - done);
        how = SPLICE_F_NONBLOCK;
    }
    close(tube[0]);
    close(tube[1]);
    errno = saved;
    return done > 0 ? done : r;
}

static long receive_stream(int fd, unsigned char *buffer, long n, struct received *got)
{
    int copy = dup(fd);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "r");
    if (!stream)
        return -1;
    setvbuf(stream, NULL, _IONBF, 0);
    long r = fread(buffer, 1, n, stream);
    int saved = errno, failed = ferror(stream);
    got->flags = failed ? 1 : feof(stream) ? 2 : 0;
    fclose(stream);
    errno = saved;
    return r == 0 && failed ? -1 : r;
}

static long receive_messages(int fd, struct iovec parts[3], int flags, struct received *got)
{
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 2}}};
    // Two looks would find the same bytes.
    int r = recvmmsg(fd, messages, flags & MSG_PEEK ? 1 : 2, flags | MSG_WAITFORONE, NULL);
    if (r < 0)
        return -1;
    long total = 0;
    for (int i = 0; i < r; i++)
        total += messages[i].msg_len;
    if (r == 2 && messages[0].msg_len < parts[0].iov_len)
        memmove((char *)parts[0].iov_base + messages[0].msg_len, parts[1].iov_base, messages[1].msg_len);
    got->flags = messages[0].msg_hdr.msg_flags;
    return total;
}

static long receive_message(int fd, struct iovec parts[3], int flags, struct received *got)
{
    struct sockaddr_storage from;
    char control[64];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_name = &from,
                             .msg_namelen = sizeof from, .msg_control = control,
                             .msg_controllen = sizeof control};
    long r = recvmsg(fd, &message, flags);
    if (r >= 0)
        *got = (struct received){message.msg_flags, (int)message.msg_namelen, (int)message.msg_controllen};
    return r;
}

static long receive_from(int fd, unsigned char *buffer, long n, int flags, struct received *got)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    long r = recvfrom(fd, buffer, n, flags, (struct sockaddr *)&from, &size);
    if (r >= 0)
        got->name = (int)size;
    return r;
}

static long receive_by(const struct op *o, int fd, unsigned char *buffer, long n, struct received *got)
{
    struct iovec parts[3];
    in_parts(parts, buffer, n);
    switch (o->how) {
    case BY_READ: return read(fd, buffer, n);
    case BY_READV: return readv(fd, parts, 3);
    case BY_RECVFROM: return receive_from(fd, buffer, n, o->flags, got);
    case BY_RECVMSG: return receive_message(fd, parts, o->flags, got);
    case BY_RECVMMSG: return receive_messages(fd, parts, o->flags, got);
    case BY_SPLICE: return receive_spliced(fd, buffer, n, o->flags);
    case BY_STDIO: return receive_stream(fd, buffer, n, got);
    case BY_SYSCALL: return syscall(SYS_recvfrom, fd, buffer, n, o->flags, NULL, NULL);
    case BY_PREADV2: return preadv2(fd, parts, 3, -1, 0);
    default: return recv(fd, buffer, n, o->flags);
    }
}

static int takes_flags(int how)
{
    return how != BY_READ && how != BY_READV && how != BY_SPLICE && how != BY_STDIO && how != BY_PREADV2;
}

enum { UNTOUCHED = 0xEE };

// Wrong bytes, and bytes written where nothing was received. False if there are any.
static int check(const struct op *o, struct answer *a, const unsigned char *buffer, long r, long n)
{
    int discarded = takes_flags(o->how) && o->flags & MSG_TRUNC;
    long valid = discarded || r < 0 ? 0 : r;
    for (long i = 0; i < valid; i++)
        if (buffer[i] != pattern(o->in_at + i, o->in)) {
            say(a, " WRONG BYTE %ld", i);
            return 0;
        }
    for (long i = valid; i < n; i++)
        if (buffer[i] != UNTOUCHED) {
            say(a, " WRITTEN AT %ld", i);
            return 0;
        }
    return 1;
}

// Instead of a place in a stream that has had urgent data.
static void say_sum(struct answer *a, const unsigned char *buffer, long r)
{
    unsigned sum = 0;
    for (long i = 0; i < r; i++)
        sum = sum * 31 + buffer[i];
    if (r > 0)
        say(a, " sum %u", sum);
}

static void do_recv(const struct op *o, struct answer *a)
{
    struct received got = {0};
    unsigned char *buffer = malloc(o->n + 1);
    memset(buffer, UNTOUCHED, o->n + 1);
    long r = receive_by(o, fds[o->slot], o->bad ? NOWHERE : buffer, o->n, &got);
    say_result(a, r);
    if (got.flags || got.name || got.control)
        say(a, " flags %#x name %d control %d", got.flags, got.name, got.control);
    int looked = takes_flags(o->how) && o->flags & (MSG_PEEK | MSG_OOB);
    a->moved = r > 0 && !looked ? r : 0;
    if (o->in < 0 || o->flags & MSG_OOB)
        say_sum(a, buffer, r);
    else if (!o->bad)
        check(o, a, buffer, r, o->n + 1);
    free(buffer);
}

// Receives until n bytes are there, or there is no more.
static void do_drain(const struct op *o, struct answer *a)
{
    long chunk = o->chunk > 0 ? o->chunk : 4096, r = 0;
    int right = 1;
    unsigned char *buffer = malloc(chunk + 1);
    struct op part = *o;
    struct received got;
    while (a->moved < o->n && right) {
        part.n = o->n - a->moved < chunk ? o->n - a->moved : chunk;
        part.in_at = o->in_at + a->moved;
        memset(buffer, UNTOUCHED, part.n + 1);
        r = receive_by(&part, fds[o->slot], buffer, part.n, &got);
        if (r <= 0)
            break;
        right = o->in < 0 || check(&part, a, buffer, r, part.n + 1);
        a->moved += r;
    }
    say(a, " of %ld", a->moved);
    if (a->moved < o->n)
        say_result(a, r);
    free(buffer);
}

// ---- Waiting ---------------------------------------------------------------

static int in_set(const struct op *o, int slot)
{
    return o->slots >> slot & 1;
}

static void do_poll(const struct op *o, struct answer *a)
{
    struct pollfd list[SLOTS];
    struct timespec limit = {o->timeout / 1000, o->timeout % 1000 * 1000000L};
    sigset_t none;
    int count = 0;
    sigemptyset(&none);
    for (int i = 0; i < SLOTS; i++)
        if (in_set(o, i))
            list[count++] = (struct pollfd){fds[i], (short)o->events, 0};
    long r = o->how == BY_PPOLL ? ppoll(list, count, o->timeout < 0 ? NULL : &limit, &none)
                                : poll(list, count, o->timeout);
    say_result(a, r);
    count = 0;
    for (int i = 0; i < SLOTS; i++)
        if (in_set(o, i)) {
            say(a, " %d:", i);
            say_bits(a, event_flags, r < 0 ? 0 : (unsigned short)list[count].revents);
            count++;
        }
}

static void do_select(const struct op *o, struct answer *a)
{
    struct timespec limit = {o->timeout / 1000, o->timeout % 1000 * 1000000L};
    struct timeval tv = {limit.tv_sec, limit.tv_nsec / 1000};
    fd_set sets[3];
    int most = -1;
    for (int k = 0; k < 3; k++)
        FD_ZERO(&sets[k]);
    for (int i = 0; i < SLOTS; i++) {
        if (!in_set(o, i) || fds[i] < 0 || fds[i] >= FD_SETSIZE)
            continue;
        static const int wants[3] = {POLLIN, POLLOUT, POLLPRI};
        for (int k = 0; k < 3; k++)
            if (o->events & wants[k])
                FD_SET(fds[i], &sets[k]);
        most = fds[i] > most ? fds[i] : most;
    }
    long r = o->how == BY_PSELECT
                 ? pselect(most + 1, &sets[0], &sets[1], &sets[2], o->timeout < 0 ? NULL : &limit, NULL)
                 : select(most + 1, &sets[0], &sets[1], &sets[2], o->timeout < 0 ? NULL : &tv);
    say_result(a, r);
    for (int i = 0; r >= 0 && i < SLOTS; i++)
        if (in_set(o, i) && fds[i] >= 0 && fds[i] < FD_SETSIZE)
            say(a, " %d:%d%d%d", i, !!FD_ISSET(fds[i], &sets[0]), !!FD_ISSET(fds[i], &sets[1]),
                !!FD_ISSET(fds[i], &sets[2]));
}

static int by_data(const void *a, const void *b)
{
    const struct epoll_event *x = a, *y = b;
    return (x->data.u64 > y->data.u64) - (x->data.u64 < y->data.u64);
}

static void do_wait(const struct op *o, struct answer *a)
{
    struct epoll_event events[SLOTS];
    struct timespec limit = {o->timeout / 1000, o->timeout % 1000 * 1000000L};
    int most = o->n > 0 && o->n < SLOTS ? (int)o->n : SLOTS, set = fds[o->slot];
    long r = o->how == BY_EPOLL_PWAIT    ? epoll_pwait(set, events, most, o->timeout, NULL)
             : o->how == BY_EPOLL_PWAIT2 ? epoll_pwait2(set, events, most, o->timeout < 0 ? NULL : &limit, NULL)
                                         : epoll_wait(set, events, most, o->timeout);
    say_result(a, r);
    if (r > 0)
        qsort(events, r, sizeof *events, by_data);
    for (int i = 0; i < r; i++) {
        say(a, " %llu:", (unsigned long long)events[i].data.u64);
        say_bits(a, event_flags, events[i].events);
    }
}

static void do_watch(const struct op *o, struct answer *a)
{
    struct epoll_event event = {(uint32_t)o->events, {.u64 = (uint64_t)o->to + 100 * (uint64_t)o->value}};
    say_result(a, epoll_ctl(fds[o->slot], o->action, fds[o->to], o->bad ? NULL : &event));
}

// ---- Descriptors -----------------------------------------------------------

static int connect_to(int fd, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return connect(fd, (struct sockaddr *)&address, sizeof address);
}

static void finish_connect(int fd, struct answer *a)
{
    struct pollfd p = {fd, POLLOUT, 0};
    int error = -1;
    socklen_t size = sizeof error;
    poll(&p, 1, 2000);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    say(a, " later %d", error);
}

static void do_connect(const struct op *o, struct answer *a)
{
    int fd = fds[o->slot] = socket(AF_INET, SOCK_STREAM | (o->value ? SOCK_NONBLOCK : 0), 0);
    long r = connect_to(fd, o->port);
    int in_progress = r < 0 && errno == EINPROGRESS;
    say_result(a, r);
    if (in_progress)
        finish_connect(fd, a);
    if (o->value)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

static void do_accept(const struct op *o, struct answer *a)
{
    int fd = o->how == BY_ACCEPT ? accept(listener, NULL, NULL) : accept4(listener, NULL, NULL, 0);
    fds[o->slot] = fd;
    say_result(a, fd < 0 ? -1 : 0);
}

// A socket that is not connected, and one that could not be.
static void do_socket(const struct op *o, struct answer *a)
{
    fds[o->slot] = socket(AF_INET, SOCK_STREAM, 0);
    say_result(a, 0);
}
static void do_refused(const struct op *o, struct answer *a)
{
    say_result(a, connect_to(fds[o->slot], 1));
}

static void do_dup(const struct op *o, struct answer *a)
{
    int fd = fds[o->slot], old = fds[o->to], copy;
    switch (old >= 0 ? o->how : BY_DUP) {
    case BY_DUP2: copy = dup2(fd, old); break;
    case BY_DUP3: copy = dup3(fd, old, 0); break;
    case BY_FCNTL: copy = fcntl(fd, F_DUPFD, 0); break;
    default: copy = dup(fd);
    }
    if (copy >= 0 && old >= 0 && copy != old)
        close(old);
    if (copy >= 0)
        fds[o->to] = copy;
    say_result(a, copy < 0 ? -1 : 0);
}

static void do_close(const struct op *o, struct answer *a)
{
    int fd = fds[o->slot];
    struct linger linger = {1, 0};
    if (o->value)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    say_result(a, close(fd));
    fds[o->slot] = -1;
}

static void do_nonblock(const struct op *o, struct answer *a)
{
    int fd = fds[o->slot], on = o->value;
    if (o->how == BY_IOCTL) {
        say_result(a, ioctl(fd, FIONBIO, &on));
        return;
    }
    int flags = fcntl(fd, F_GETFL);
    say_result(a, fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

static int is_time(const struct option_name *name)
{
    return name->level == SOL_SOCKET && (name->option == SO_RCVTIMEO || name->option == SO_SNDTIMEO);
}

static void do_setopt(const struct op *o, struct answer *a)
{
    const struct option_name *name = &options[o->option];
    struct timeval time = {o->value / 1000, o->value % 1000 * 1000L};
    struct linger linger = {o->value > 0, o->value};
    const void *value = &o->value;
    socklen_t size = sizeof o->value;
    if (is_time(name))
        value = &time, size = sizeof time;
    else if (name->option == SO_LINGER && name->level == SOL_SOCKET)
        value = &linger, size = sizeof linger;
    say_result(a, setsockopt(fds[o->slot], name->level, name->option, o->bad ? NOWHERE : value, size));
}

static void do_getopt(const struct op *o, struct answer *a)
{
    const struct option_name *name = &options[o->option];
    int value[8] = {0};
    socklen_t size = sizeof value;
    say_result(a, getsockopt(fds[o->slot], name->level, name->option, o->bad ? (void *)NOWHERE : value, &size));
    if (a->result == 0)
        say(a, " size %u value %d %d %d", size, value[0], value[1], value[2]);
}

static void do_query(const struct op *o, struct answer *a)
{
    const struct option_name *name = &options[o->option];
    int fd = fds[o->slot], value = -1;
    if (name->level == -1) {
        say_result(a, ioctl(fd, name->option, o->bad ? (int *)NOWHERE : &value));
        say(a, " value %d", value);
    } else if (name->level == -2) {
        say_result(a, fcntl(fd, name->option));
    } else {
        say_result(a, sockatmark(fd));
    }
}

static void do_names(const struct op *o, struct answer *a)
{
    struct sockaddr_in mine = {0}, peer = {0};
    socklen_t size = sizeof mine;
    say_result(a, getsockname(fds[o->slot], (struct sockaddr *)&mine, &size));
    say(a, " size %u family %d", size, mine.sin_family);
    size = sizeof peer;
    say_result(a, getpeername(fds[o->slot], (struct sockaddr *)&peer, &size));
    say(a, " size %u family %d ports differ %d", size, peer.sin_family, mine.sin_port != peer.sin_port);
}

// ---- One operation ---------------------------------------------------------

static void begin_alarm(const struct op *o)
{
    void on_signal(int);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = o->restart ? SA_RESTART : 0};
    struct itimerval once = {.it_value = {0, o->alarm * 1000L}};
    sigaction(SIGALRM, &action, NULL);
    alarms = 0;
    setitimer(ITIMER_REAL, &once, NULL);
}

static void end_alarm(struct answer *a)
{
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    say(a, " alarms %d", (int)alarms);
}

// What needs nothing but the descriptors.
static void perform(const struct op *o, struct answer *a)
{
    static void (*const calls[KIND_COUNT])(const struct op *, struct answer *) = {
        [DO_connect] = do_connect, [DO_socket] = do_socket, [DO_refused] = do_refused,
        [DO_send] = do_send, [DO_recv] = do_recv, [DO_drain] = do_drain, [DO_poll] = do_poll,
        [DO_wait] = do_wait, [DO_watch] = do_watch, [DO_close] = do_close, [DO_dup] = do_dup,
        [DO_nonblock] = do_nonblock, [DO_setopt] = do_setopt, [DO_getopt] = do_getopt,
        [DO_query] = do_query, [DO_names] = do_names, [DO_accept] = do_accept,
    };
    sigpipes = 0;
    errno = 0;
    if (o->alarm)
        begin_alarm(o);
    if (o->kind == DO_poll && (o->how == BY_SELECT || o->how == BY_PSELECT))
        do_select(o, a);
    else if (o->kind == DO_shutdown)
        say_result(a, shutdown(fds[o->slot], o->action));
    else if (o->kind == DO_epoll)
        say_result(a, (fds[o->slot] = epoll_create1(0)) < 0 ? -1 : 0);
    else
        calls[o->kind](o, a);
    if (o->alarm)
        end_alarm(a);
    if (sigpipes)
        say(a, " SIGPIPE");
}

#endif
