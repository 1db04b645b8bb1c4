// A peer that is in the middle of a copy, at memory that the kernel leaves to the program to fill, which it never does; and what
// its end's programs share that meet such a peer.
#ifndef STUCK_H
#define STUCK_H

#include "diff.h"

// One second a connection is what a call once took; all of them together must take less than LATE.
enum { WAYS = 3, TURNS = 30, REGION = 1 << 20, UNREAD = 50000, LATE = 2000 };

struct stuck {
    struct end *e;
    int receives;
    char *memory;
};

// Tells who it is, until both ends are in shared memory, and gets stuck.
static void *gets_stuck(void *of)
{
    struct stuck *s = of;
    struct end *e = s->e;
    pid_t tid = gettid();
    int fd = MUST(tcp_socket(e->fam, SOCK_CLOEXEC));
    MUST(tcp_connect(fd, e->fam, e->port));
    for (int i = 0; i < TURNS; i++) {
        put(fd, &tid, sizeof tid);
        get(fd, &tid, sizeof tid);
    }
    if (s->receives)
        recv(fd, s->memory, REGION, 0);
    else
        send(fd, s->memory, REGION, MSG_NOSIGNAL);
    for (;;)
        pause();
}

static void stuck_peer(struct end *e, int receives)
{
    char *memory = mmap(NULL, WAYS * REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int faults = MUST(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {{(uintptr_t)memory, WAYS * REGION}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(faults, UFFDIO_API, &api));
    MUST(ioctl(faults, UFFDIO_REGISTER, &all));
    struct stuck s[WAYS];
    for (int i = 0; i < WAYS; i++) {
        pthread_t thread;
        s[i] = (struct stuck){e, receives, memory + i * REGION};
        MUST(pthread_create(&thread, NULL, gets_stuck, &s[i]));
    }
    for (;;)
        pause();
}

static void runs(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(99);
    }
    waitpid(pid, NULL, 0);
}

// The server's ends of a peer that is stuck on each of its connections, and the peer's threads.
static void accept_stuck(struct end *e, pid_t stuck, int receives, int fds[WAYS], pid_t tids[WAYS])
{
    for (int i = 0; i < WAYS; i++)
        fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i < WAYS; i++) {
        for (int k = 0; k < TURNS; k++) {
            get(fds[i], &tids[i], sizeof tids[i]);
            put(fds[i], &tids[i], sizeof tids[i]);
        }
        if (receives)
            produce(e, fds[i], UNREAD, 1);
        await_sleep(e, stuck, tids[i]);
        nonblocking(fds[i], 1);
    }
}

#endif
