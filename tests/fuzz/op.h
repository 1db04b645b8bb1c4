// One operation of a script: its fields, and how a line becomes one. README.md has the language.
#ifndef OP_H
#define OP_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 16, THREADS = 3, WORKERS = 2 };

// What an operation does. From `accept` on: what the conductor alone asks for.
#define KINDS(X) \
    X(connect) X(socket) X(refused) X(send) X(recv) X(drain) X(poll) X(epoll) X(watch) X(wait) \
    X(shutdown) X(close) X(dup) X(nonblock) X(setopt) X(getopt) X(query) X(names) X(pass) X(fork) \
    X(exec) X(join) X(signal) X(accept) X(take) X(settle) X(port) X(quit)
#define X(name) DO_##name,
enum kind { KINDS(X) KIND_COUNT };
#undef X
#define X(name) #name,
static const char *const kind_names[] = {KINDS(X)};
#undef X

// Where it is done: by the worker itself, or by what it starts for that.
enum place { HERE, CHILD, EXEC, PLAIN, THREAD };

// Numbers for words. The same word means the same in every place.
struct word {
    const char *name;
    long value;
};

enum how {
    BY_SEND, BY_WRITE, BY_WRITEV, BY_SENDTO, BY_SENDMSG, BY_SENDMMSG, BY_SENDFILE, BY_SPLICE, BY_STDIO,
    BY_SYSCALL, BY_PWRITEV2, BY_RECV, BY_READ, BY_READV, BY_RECVFROM, BY_RECVMSG, BY_RECVMMSG,
    BY_PREADV2, BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, BY_EPOLL_WAIT, BY_EPOLL_PWAIT,
    BY_EPOLL_PWAIT2, BY_DUP, BY_DUP2, BY_DUP3, BY_FCNTL, BY_IOCTL, BY_ACCEPT, BY_ACCEPT4,
};

static const struct word hows[] = {
    {"send", BY_SEND}, {"write", BY_WRITE}, {"writev", BY_WRITEV}, {"sendto", BY_SENDTO},
    {"sendmsg", BY_SENDMSG}, {"sendmmsg", BY_SENDMMSG}, {"sendfile", BY_SENDFILE},
    {"splice", BY_SPLICE}, {"stdio", BY_STDIO}, {"syscall", BY_SYSCALL}, {"pwritev2", BY_PWRITEV2},
    {"recv", BY_RECV}, {"read", BY_READ}, {"readv", BY_READV}, {"recvfrom", BY_RECVFROM},
    {"recvmsg", BY_RECVMSG}, {"recvmmsg", BY_RECVMMSG}, {"preadv2", BY_PREADV2}, {"poll", BY_POLL},
    {"ppoll", BY_PPOLL}, {"select", BY_SELECT}, {"pselect", BY_PSELECT},
    {"epoll_wait", BY_EPOLL_WAIT}, {"epoll_pwait", BY_EPOLL_PWAIT},
    {"epoll_pwait2", BY_EPOLL_PWAIT2}, {"dup", BY_DUP}, {"dup2", BY_DUP2}, {"dup3", BY_DUP3},
    {"fcntl", BY_FCNTL}, {"ioctl", BY_IOCTL}, {"accept", BY_ACCEPT}, {"accept4", BY_ACCEPT4}, {0},
};

static const struct word message_flags[] = {
    {"OOB", MSG_OOB}, {"PEEK", MSG_PEEK}, {"TRUNC", MSG_TRUNC}, {"DONTWAIT", MSG_DONTWAIT},
    {"WAITALL", MSG_WAITALL}, {"NOSIGNAL", MSG_NOSIGNAL}, {"MORE", MSG_MORE},
    {"ERRQUEUE", MSG_ERRQUEUE}, {0},
};

static const struct word event_flags[] = {
    {"IN", EPOLLIN}, {"PRI", EPOLLPRI}, {"OUT", EPOLLOUT}, {"ERR", EPOLLERR}, {"HUP", EPOLLHUP},
    {"RDNORM", EPOLLRDNORM}, {"WRNORM", EPOLLWRNORM}, {"RDHUP", EPOLLRDHUP},
    {"NVAL", POLLNVAL}, {"EXCLUSIVE", EPOLLEXCLUSIVE}, {"ONESHOT", EPOLLONESHOT},
    {"ET", (long)EPOLLET}, {0},
};

static const struct word places[] = {
    {"here", HERE}, {"child", CHILD}, {"exec", EXEC}, {"plain", PLAIN}, {"thread", THREAD}, {0},
};

static const struct word actions[] = {
    {"add", EPOLL_CTL_ADD}, {"del", EPOLL_CTL_DEL}, {"mod", EPOLL_CTL_MOD}, {"rd", SHUT_RD},
    {"wr", SHUT_WR}, {"rdwr", SHUT_RDWR}, {0},
};

// Options with a value of one int, and the two kinds with a structure.
struct option_name {
    const char *name;
    int level, option;
};
static const struct option_name options[] = {
    {"SO_ERROR", SOL_SOCKET, SO_ERROR}, {"SO_TYPE", SOL_SOCKET, SO_TYPE},
    {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN}, {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL},
    {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN}, {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE},
    {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR}, {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE},
    {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT}, {"SO_SNDLOWAT", SOL_SOCKET, SO_SNDLOWAT},
    {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY}, {"SO_SNDBUF", SOL_SOCKET, SO_SNDBUF},
    {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY}, {"TCP_CORK", IPPROTO_TCP, TCP_CORK},
    {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE}, {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT},
    {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT},
    {"TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT}, {"TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2},
    {"IP_TOS", IPPROTO_IP, IP_TOS}, {"IP_TTL", IPPROTO_IP, IP_TTL},
    {"SO_RCVTIMEO", SOL_SOCKET, SO_RCVTIMEO}, {"SO_SNDTIMEO", SOL_SOCKET, SO_SNDTIMEO},
    {"SO_LINGER", SOL_SOCKET, SO_LINGER},
    {"FIONREAD", -1, FIONREAD}, {"SIOCOUTQ", -1, SIOCOUTQ}, {"SIOCATMARK", -1, SIOCATMARK},
    {"F_GETFL", -2, F_GETFL}, {"F_GETFD", -2, F_GETFD}, {"sockatmark", -3, 0},
};
enum { OPTIONS = sizeof options / sizeof *options };

struct op {
    enum kind kind;
    int worker, slot;      // whose descriptor
    int to_worker, to;     // a second one
    enum place place;
    int thread;            // in which thread it is begun, or -1
    int how;
    int flags, events, action;
    int timeout, alarm, restart;
    int value, option, port, bad;
    long n, chunk;
    unsigned slots;
    int out, in;           // which pattern is sent and received; below 0: none
    uint64_t out_at, in_at;
};

// What came of it.
struct answer {
    long result;
    long moved;            // bytes by which the stream went on
    pid_t pid;             // who answers
    char text[400];
};

__attribute__((format(printf, 2, 3))) static void say(struct answer *a, const char *format, ...)
{
    size_t used = strlen(a->text);
    va_list args;
    va_start(args, format);
    vsnprintf(a->text + used, sizeof a->text - used, format, args);
    va_end(args);
}

static int find_word(const struct word *words, const char *name, size_t n, long *value)
{
    for (; words->name; words++)
        if (strlen(words->name) == n && !strncmp(words->name, name, n)) {
            *value = words->value;
            return 1;
        }
    return 0;
}

static int one_of(const struct word *words, const char *text)
{
    long value;
    return find_word(words, text, strlen(text), &value) ? (int)value : -1;
}

// "IN|ET": the bits together; 0 for "0".
static int bits_of(const struct word *words, const char *text)
{
    long bits = 0, value;
    while (*text) {
        size_t n = strcspn(text, "|");
        if (find_word(words, text, n, &value))
            bits |= value;
        text += n + (text[n] == '|');
    }
    return (int)bits;
}

static int end_of(const char *text, int *worker, int *slot)
{
    if ((text[0] != 'A' && text[0] != 'B') || (text[1] && text[1] != '.'))
        return 0;
    *worker = text[0] - 'A';
    *slot = text[1] ? atoi(text + 2) % SLOTS : 0;
    return 1;
}

static int option_of(const char *name)
{
    for (int i = 0; i < OPTIONS; i++)
        if (!strcmp(options[i].name, name))
            return i;
    return -1;
}

static unsigned slots_of(const char *text)
{
    unsigned slots = 0;
    for (char *end; *text; text = *end ? end + 1 : end)
        slots |= 1u << (strtoul(text, &end, 10) % SLOTS);
    return slots;
}

static int set_field(struct op *o, const char *key, const char *value)
{
    static const struct { const char *key; size_t offset; } numbers[] = {
        {"thread", offsetof(struct op, thread)}, {"timeout", offsetof(struct op, timeout)},
        {"alarm", offsetof(struct op, alarm)}, {"restart", offsetof(struct op, restart)},
        {"value", offsetof(struct op, value)}, {"bad", offsetof(struct op, bad)},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) {
            *(int *)((char *)o + numbers[i].offset) = atoi(value);
            return 1;
        }
    if (!strcmp(key, "n"))
        o->n = atol(value);
    else if (!strcmp(key, "chunk"))
        o->chunk = atol(value);
    else if (!strcmp(key, "slots"))
        o->slots = slots_of(value);
    else if (!strcmp(key, "to"))
        return end_of(value, &o->to_worker, &o->to);
    else if (!strcmp(key, "by"))
        return (o->how = one_of(hows, value)) >= 0;
    else if (!strcmp(key, "in"))
        return (int)(o->place = one_of(places, value)) >= 0;
    else if (!strcmp(key, "do"))
        return (o->action = one_of(actions, value)) >= 0;
    else if (!strcmp(key, "flags"))
        o->flags = bits_of(message_flags, value);
    else if (!strcmp(key, "events"))
        o->events = bits_of(event_flags, value);
    else if (!strcmp(key, "name"))
        return (o->option = option_of(value)) >= 0;
    else
        return 0;
    return 1;
}

// `recv B.1 n=500 by=read flags=PEEK`. False: not a line of the language.
static int parse(char *line, struct op *o)
{
    char *rest, *word = strtok_r(line, " \n", &rest);
    memset(o, 0, sizeof *o);
    o->thread = o->out = o->in = o->action = o->how = -1;
    for (o->kind = 0; o->kind < KIND_COUNT && strcmp(kind_names[o->kind], word); o->kind++)
        ;
    if (o->kind == KIND_COUNT || !(word = strtok_r(NULL, " \n", &rest)) ||
        !end_of(word, &o->worker, &o->slot))
        return 0;
    while ((word = strtok_r(NULL, " \n", &rest))) {
        char *value = strchr(word, '=');
        if (!value)
            return 0;
        *value++ = 0;
        if (!set_field(o, word, value))
            return 0;
    }
    return o->thread < THREADS;
}

#endif
