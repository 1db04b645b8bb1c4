// Modules opened with RTLD_DEEPBIND, which find libc's functions before those of any preloaded library.
// module: -shared -fPIC -DMODULE
// flags: -Wl,-z,lazy
// variant: now -Wl,-z,relro,-z,now
#ifdef MODULE
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

// The module's own, which its calls find first; and so does nobody else's.
int listen(int fd, int backlog) { return fd < 0 ? 1000 + backlog : 0; }
int module_own(int backlog) { return listen(-1, backlog); }

static ssize_t (*const receivers[])(int, void *, size_t, int) = {recv};
ssize_t module_receive(int fd, void *to, size_t most) { return receivers[0](fd, to, most, 0); }
ssize_t module_read(int fd, void *to, size_t most) { return read(fd, to, most); }
ssize_t module_send(int fd, const void *from, size_t n) { return send(fd, from, n, MSG_NOSIGNAL); }
int module_poll(int fd, int events, int ms)
{
    struct pollfd p = {fd, events, 0};
    return poll(&p, 1, ms) == 1 ? p.revents : 0;
}
int module_wait(int fd, int ms)
{
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        return -1;
    int n = epoll_wait(set, &event, 1, ms);
    close(set);
    return n;
}
int module_close(int fd) { return close(fd); }
#else
#include "diff.h"
#include <dlfcn.h>

static struct {
    int (*own)(int), (*poll)(int, int, int), (*wait)(int, int), (*close)(int);
    ssize_t (*receive)(int, void *, size_t), (*read)(int, void *, size_t), (*send)(int, const void *, size_t);
} module;

static void *opened(struct end *e, int flags)
{
    char path[4096] = {0};
    MUST(readlink("/proc/self/exe", path, sizeof path - 8));
    strcat(path, ".so");
    void *m = dlopen(path, flags);
    if (!m)
        say(e, "no module: %s", dlerror());
    else
        say(e, "opened, %s", dlerror() ? "and an error" : "no error");
    return m;
}

static void use(struct end *e, void *m)
{
    if (!m)
        exit(1);
    module.own = dlsym(m, "module_own");
    module.poll = dlsym(m, "module_poll");
    module.wait = dlsym(m, "module_wait");
    module.close = dlsym(m, "module_close");
    module.receive = dlsym(m, "module_receive");
    module.read = dlsym(m, "module_read");
    module.send = dlsym(m, "module_send");
    say(e, "its own: %d", module.own(7));
}

// What the module does on the server's end.
static void converse(struct end *e)
{
    char buf[32];
    AT(C) T(send(FD, "first", 5, 0));
    AT(S) {
        await_bytes(e, FD, 5);
        say(e, "poll %#x", module.poll(FD, POLLIN, PATIENCE_MS));
        T(module.receive(FD, buf, sizeof buf));
        T(module.send(FD, "answer", 6));
    }
    AT(C) {
        T(recv(FD, buf, sizeof buf, 0));
        T(send(FD, "second", 6, 0));
    }
    AT(S) {
        await_bytes(e, FD, 6);
        T(module.wait(FD, PATIENCE_MS));
        T(module.read(FD, buf, sizeof buf));
        say(e, "poll %#x", module.poll(FD, POLLIN | POLLOUT, 0));
        T(module.close(FD));
        FD = -1;
    }
    AT(C) T(recv(FD, buf, sizeof buf, 0));
}

// The connection is there before the module.
static void opened_now(struct end *e)
{
    AT(S) use(e, opened(e, RTLD_NOW | RTLD_DEEPBIND));
    converse(e);
}

static void opened_lazily(struct end *e)
{
    AT(S) use(e, opened(e, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND));
    converse(e);
}

static void not_there(struct end *e)
{
    AT(S) {
        say(e, "%d", dlopen("/nowhere/module.so", RTLD_NOW | RTLD_DEEPBIND) != NULL);
        say(e, "%s", dlerror());
        say(e, "%d", dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND) != NULL);
        say(e, "%d", dlerror() != NULL);
    }
}

DIFF_MAIN(CASE(opened_now, SPLIT | COLD), CASE(opened_lazily, SPLIT | COLD), CASE(not_there, SPLIT))
#endif
