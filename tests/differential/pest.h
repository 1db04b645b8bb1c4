// Signals that arrive exactly when a thread sleeps.
#ifndef PEST_H
#define PEST_H

static volatile sig_atomic_t hits;
__attribute__((unused)) static void count_hit(int sig)
{
    (void)sig;
    hits++;
}

__attribute__((unused)) static void handle(int sig, void (*handler)(int), int flags)
{
    struct sigaction sa = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&sa.sa_mask);
    sigaction(sig, &sa, NULL);
}

struct pest {
    struct end *e;
    pthread_t thread;
    int sig, times;
    int then_go; // afterwards wait for it to sleep once more, and tell the other role
};

static void *pester(void *arg)
{
    struct pest *p = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < p->times; i++) {
        await_sleep(p->e, p->e->pid, p->e->tid);
        syscall(SYS_tgkill, p->e->pid, p->e->tid, p->sig);
    }
    if (p->then_go) {
        await_sleep(p->e, p->e->pid, p->e->tid);
        go(p->e);
    }
    return NULL;
}

// Signal this thread `times` times, each time when it sleeps.
__attribute__((unused)) static void pest_start(struct end *e, struct pest *p, int sig, int times, int then_go)
{
    *p = (struct pest){e, 0, sig, times, then_go};
    hits = 0;
    e->tid = syscall(SYS_gettid);
    if (pthread_create(&p->thread, NULL, pester, p))
        abort();
}

__attribute__((unused)) static void pest_end(struct pest *p)
{
    pthread_join(p->thread, NULL);
    say(p->e, "%d signals handled", (int)hits);
}

// Make the call while signals come.
#define PESTERED(call, sig, times) \
    do { \
        struct pest pest_; \
        pest_start(e, &pest_, sig, times, 0); \
        TELL(#call, call, 0); \
        pest_end(&pest_); \
    } while (0)

#endif
