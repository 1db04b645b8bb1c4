// A pool of workers on one epoll set: whoever is told of a connection has it for itself, EPOLLONESHOT sees to that, until it has
// answered and arms the registration anew. The connections are upgraded in the middle of that.
// path: shunted 10%
// timeout: 60
#include "diff.h"

enum { WORKERS = 4, BATCHES = 6, CONNECTIONS = 24, TURNS = 16, BYTES = 32 };

// What the workers find, in memory that processes share, too.
struct pool {
    _Atomic int taken, wrong, at_once, in_vain, ended;
    struct {
        _Atomic int busy, turn;
    } of[CONNECTIONS];
};

struct place {
    struct end *e;
    struct pool *pool;
    int set, done, fds[CONNECTIONS];
};

// Takes the one request that there is, and answers; 0: the connection has ended.
static int take_one(struct place *p, int i)
{
    unsigned char buf[BYTES + 1];
    int fd = p->fds[i], turn = p->pool->of[i].turn++;
    ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n == 0)
        return 0;
    if (n < 0 && errno == EAGAIN) {
        p->pool->in_vain++;
        p->pool->of[i].turn--;
        return 1;
    }
    p->pool->taken++;
    p->pool->wrong += n != BYTES || check(buf, BYTES, turn, i) >= 0;
    fill(buf, BYTES, turn, i + 1);
    put(fd, buf, BYTES);
    // Half of the time the next one is there before the registration is armed again.
    if (turn % 2)
        await_events(p->e, fd, POLLIN);
    return 1;
}

static void *works(void *arg)
{
    struct place *p = arg;
    struct end *e = p->e;
    struct epoll_event event;
    while (epoll_wait(p->set, &event, 1, -1) == 1 && event.data.u32 < CONNECTIONS) {
        int i = event.data.u32;
        p->pool->at_once += p->pool->of[i].busy++ != 0;
        int goes_on = take_one(p, i);
        p->pool->of[i].busy--;
        event = (struct epoll_event){EPOLLIN | EPOLLONESHOT, {.u32 = i}};
        if (goes_on)
            MUST(epoll_ctl(p->set, EPOLL_CTL_MOD, p->fds[i], &event));
        else if (++p->pool->ended == CONNECTIONS)
            MUST(write(p->done, &(uint64_t){1}, sizeof(uint64_t)));
    }
    return NULL;
}

// Each connection has one request on its way at a time.
static void asks(struct end *e)
{
    unsigned char buf[BYTES];
    struct pollfd all[CONNECTIONS];
    int turn[CONNECTIONS] = {0}, left = CONNECTIONS, good = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        all[i] = (struct pollfd){MUST(tcp_socket(e->fam, SOCK_CLOEXEC)), POLLIN, 0};
        MUST(tcp_connect(all[i].fd, e->fam, e->port));
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        fill(buf, BYTES, 0, i);
        put(all[i].fd, buf, BYTES);
    }
    while (left > 0 && poll(all, CONNECTIONS, PATIENCE_MS) > 0)
        for (int i = 0; i < CONNECTIONS; i++) {
            if (all[i].fd < 0 || !all[i].revents)
                continue;
            good += get(all[i].fd, buf, BYTES) == BYTES && check(buf, BYTES, turn[i], i + 1) < 0;
            if (++turn[i] < TURNS) {
                fill(buf, BYTES, turn[i], i);
                put(all[i].fd, buf, BYTES);
            } else {
                close(all[i].fd), all[i].fd = -1;
                left--;
            }
        }
    say(e, "%d good", good);
}

static void by_threads(struct end *e, struct place *p)
{
    pthread_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        MUST(pthread_create(&workers[i], NULL, works, p));
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u32 = i}};
        p->fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        MUST(epoll_ctl(p->set, EPOLL_CTL_ADD, p->fds[i], &event));
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
}

static void by_processes(struct end *e, struct place *p)
{
    struct kid workers[WORKERS];
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u32 = i}};
        p->fds[i] = MUST(accept4(e->lfd, NULL, NULL, SOCK_CLOEXEC));
        MUST(epoll_ctl(p->set, EPOLL_CTL_ADD, p->fds[i], &event));
    }
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = spawn(e);
        if (workers[i].pid == 0) {
            p->e = e;
            works(p);
            _exit(0);
        }
    }
    for (int i = 0; i < WORKERS; i++)
        reap(e, &workers[i]);
}

static void serves(struct end *e, void (*with)(struct end *, struct place *))
{
    void *shared = mmap(NULL, sizeof(struct pool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct place p = {.e = e, .pool = shared, .set = MUST(epoll_create1(EPOLL_CLOEXEC)), .done = MUST(eventfd(0, EFD_CLOEXEC))};
    struct epoll_event event = {EPOLLIN, {.u32 = CONNECTIONS}};
    MUST(epoll_ctl(p.set, EPOLL_CTL_ADD, p.done, &event));
    with(e, &p);
    say(e, "%d taken, %d wrong, %d by two at once, %d in vain", p.pool->taken, p.pool->wrong, p.pool->at_once, p.pool->in_vain);
    for (int i = 0; i < CONNECTIONS; i++)
        close(p.fds[i]);
    close(p.done);
    close(p.set);
    munmap(shared, sizeof(struct pool));
}

static void pool(struct end *e, void (*with)(struct end *, struct place *))
{
    for (int batch = 0; batch < BATCHES; batch++) {
        meet(e);
        if (e->role == S)
            serves(e, with);
        else
            asks(e);
    }
    meet(e);
}
static void of_threads(struct end *e) { pool(e, by_threads); }
static void of_processes(struct end *e) { pool(e, by_processes); }

DIFF_MAIN(CASE(of_threads, BARE | TWO | ALL),
          KNOWN(of_processes, BARE | SPLIT | ALL, "an epoll set that parent and child both use after a fork"))
