// What a program prints: one line per observation, nothing that depends on
// time, addresses, process ids or descriptor numbers.
#ifndef SAY_H
#define SAY_H

// Role output. With fd >= 0 lines leave at once; otherwise they are kept until
// the end, so that two roles in one process do not mix.
struct out {
    int fd;
    char *text;
    size_t used, room;
};

enum role { S = 0, C = 1 };

struct end {
    enum role role;     // whose step this is; fixed unless solo
    int solo;           // both ends in this one thread
    int fd;             // this side of the connection under test
    int fds[2];         // both sides, in a solo case
    int ctl;            // to the other role
    int fam;            // index into families[]
    int warm;           // the connection was used before the case began
    int lfd;            // the listener (the server's side only)
    int port;           // its port (both sides)
    const char *name;   // the case
    struct out *out;
    pid_t pid, tid, peer_pid, peer_tid;
};

static __thread volatile int sigpipes;

static void raw_write(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t r = write(fd, p, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            _exit(9);
        p += r;
        n -= r;
    }
}

static void out_bytes(struct out *o, const char *p, size_t n)
{
    if (o->fd >= 0) {
        raw_write(o->fd, p, n);
        return;
    }
    if (o->used + n > o->room) {
        o->room = (o->used + n) * 2 + 4096;
        o->text = realloc(o->text, o->room);
        if (!o->text)
            abort();
    }
    memcpy(o->text + o->used, p, n);
    o->used += n;
    raw_write(2, p, n); // so that a hung run shows how far it came
}

extern const char *const family_names[];

__attribute__((format(printf, 2, 3), unused)) static void say(struct end *e, const char *format, ...)
{
    char line[1024];
    int saved = errno;
    int n = snprintf(line, sizeof line, "%s.%s.%s %c ", e->name, family_names[e->fam],
                     e->warm ? "warm" : "cold", e->role == S ? 'S' : 'C');
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    out_bytes(e->out, line, n);
    errno = saved;
}

static const char *errname(int error)
{
    const char *name = strerrorname_np(error);
    return name ? name : "?";
}

__attribute__((unused)) static long tell(struct end *e, const char *call, long r, int hide)
{
    int saved = errno;
    const char *pipe = sigpipes ? " +SIGPIPE" : "";
    if (r == -1)
        say(e, "%s = %s%s", call, errname(saved), pipe);
    else if (hide)
        say(e, "%s = ok%s%s", call, saved ? " errno-touched" : "", pipe);
    else
        say(e, "%s = %ld%s%s", call, r, saved ? " errno-touched" : "", pipe);
    errno = saved;
    return r;
}

// Make the call, print it with its result, its errno and whether SIGPIPE came.
#define TELL(text, call, hide) \
    ({ sigpipes = 0; errno = 0; long r_ = (long)(call); tell(e, text, r_, hide); r_; })
#define T(call) TELL(#call, call, 0)
// The same for results that are descriptors or otherwise not to be printed.
#define OK(call) TELL(#call, call, 1)
// A silent call that must succeed.
#define MUST(call) \
    ({ long r_; do r_ = (long)(call); while (r_ == -1 && errno == EINTR); \
       if (r_ == -1) { say(e, "%s failed: %s", #call, errname(errno)); _exit(8); } r_; })

// "IN|RDHUP" for poll's and epoll's bits, which are the same.
__attribute__((unused)) static const char *events(unsigned m)
{
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"},
        {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"}, {POLLRDHUP, "RDHUP"},
        {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDBAND, "RDBAND"},
        {POLLWRBAND, "WRBAND"}, {POLLMSG, "MSG"},
    };
    static __thread char text[4][96];
    static __thread int next;
    char *t = text[next++ & 3];
    t[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (m & names[i].bit) {
            if (t[0])
                strcat(t, "|");
            strcat(t, names[i].name);
            m &= ~names[i].bit;
        }
    if (m)
        strcat(t, "|?");
    return t[0] ? t : "0";
}

#endif
