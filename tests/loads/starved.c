/* How long does a program outside of a control group wait for core 1, on which two programs of the group answer each other?
 *
 *     starved [-s SECONDS] [-w yield|futex|pipe|none] [-g root|nested] [-e] [-n NANOSECONDS] [-p NICE]
 *
 * -w how the two wait (none: there are none; others that somebody else starts are meant)
 * -g in which groups they are: none of their own, or one each within one, as Docker has them
 * -e a third member of the outer group rests and works in turn on core 0
 * -n one of the two naps for so long every 4 ms
 * -p the priority of the program outside, which sleeps for a millisecond again and again; beside it is a busy loop
 *
 * As root, with control groups of version 1. It prints how late the program outside was. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GROUPS "/sys/fs/cgroup/cpu/"
#define OUTER "shunt-starved"

typedef unsigned long u64;

static struct shared {
    _Atomic int go, stop;
    _Atomic unsigned turn, asleep[2];
    u64 turns, wakes, late, latest, waited;
    u64 used[2], loop;
} *shared;

static const char *wait_by = "futex";
static u64 nap;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static u64 clock_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000UL + t.tv_nsec;
}

static u64 now(void) { return clock_of(CLOCK_MONOTONIC); }

static void rest(u64 nanoseconds) {
    struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&t, NULL);
}

static void work(u64 nanoseconds) {
    for (u64 end = now() + nanoseconds; now() < end;)
        ;
}

static void make(const char *group) {
    char path[128];
    snprintf(path, sizeof path, GROUPS "%s", group);
    if (mkdir(path, 0755) && errno != EEXIST)
        fail(path);
}

/* A child on a core, which ends with its parent. */
static int begin(int core, const char *group) {
    if (fork())
        return 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
    if (group) {
        char path[128];
        snprintf(path, sizeof path, GROUPS "%s/cgroup.procs", group);
        int file = open(path, O_WRONLY);
        if (file < 0 || write(file, "0", 1) != 1)
            fail(path);
    }
    while (!shared->go)
        rest(1000000);
    return 1;
}

static long on_turn(int operation, unsigned value) {
    struct timespec limit = {0, 50000000};
    return syscall(SYS_futex, &shared->turn, operation, value, &limit, NULL, 0);
}

static void answer(int me, int hear, int tell) {
    u64 turns = 0, napped = 0;
    char byte = 0;
    for (; !shared->stop; turns++) {
        if (!strcmp(wait_by, "pipe")) {
            if ((me || turns) && read(hear, &byte, 1) != 1)
                break;
        } else {
            while (shared->turn != (unsigned)me && !shared->stop) {
                if (!strcmp(wait_by, "yield")) {
                    sched_yield();
                    continue;
                }
                shared->asleep[me] = 1;
                if (shared->turn != (unsigned)me)
                    on_turn(FUTEX_WAIT, !me);
                shared->asleep[me] = 0;
            }
        }
        work(1000);
        if (nap && !me && now() - napped > 4000000) {
            rest(nap);
            napped = now();
        }
        if (!strcmp(wait_by, "pipe") && write(tell, &byte, 1) != 1)
            break;
        shared->turn = !me;
        if (shared->asleep[!me])
            on_turn(FUTEX_WAKE, 1);
        if (!me)
            shared->turns = turns;
        shared->used[me] = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    }
    exit(0);
}

static void be_outside(int nice) {
    char text[64] = "";
    u64 ran;
    if (setpriority(PRIO_PROCESS, 0, nice))
        fail("setpriority");
    while (!shared->stop) {
        u64 began = now();
        rest(1000000);
        u64 late = now() - began - 1000000;
        shared->wakes++;
        shared->late += late;
        if (late > shared->latest)
            shared->latest = late;
    }
    int file = open("/proc/self/schedstat", O_RDONLY);
    if (read(file, text, sizeof text - 1) > 0)
        sscanf(text, "%lu %lu", &ran, &shared->waited);
    exit(0);
}

int main(int argc, char **argv) {
    const char *groups[2] = {NULL, NULL};
    int option, seconds = 4, nice = -5, elsewhere = 0;
    while ((option = getopt(argc, argv, "s:w:g:en:p:")) > 0) {
        if (option == 's')
            seconds = atoi(optarg);
        else if (option == 'w')
            wait_by = optarg;
        else if (option == 'g' && !strcmp(optarg, "nested"))
            groups[0] = OUTER "/a", groups[1] = OUTER "/b";
        else if (option == 'e')
            elsewhere = 1;
        else if (option == 'n')
            nap = atol(optarg);
        else if (option == 'p')
            nice = atoi(optarg);
        else if (option != 'g')
            return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    for (int i = 0; i < 4; i++)
        make((const char *[]){OUTER, OUTER "/a", OUTER "/b", OUTER "/c"}[i]);
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        fail("pipe");
    if (strcmp(wait_by, "none")) {
        if (begin(1, groups[0]))
            answer(0, back[0], there[1]);
        if (begin(1, groups[1]))
            answer(1, there[0], back[1]);
    }
    if (elsewhere && begin(0, groups[0] || !strcmp(wait_by, "none") ? OUTER "/c" : NULL)) {
        while (!shared->stop) {
            work(300000);
            rest(1000000);
        }
        exit(0);
    }
    if (begin(1, NULL)) {
        while (!shared->stop)
            shared->loop = clock_of(CLOCK_PROCESS_CPUTIME_ID);
        exit(0);
    }
    if (begin(1, NULL))
        be_outside(nice);
    /* This one must not wait with the others. */
    struct sched_param first = {1};
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        fail("sched_setscheduler");
    rest(300000000);
    shared->go = 1;
    rest(seconds * 1000000000UL);
    shared->stop = 1;
    rest(1000000000);
    printf("%-5s %8.0f turns a second, %.2f s of processor time; loop %.2f s; outside: %5lu times, late by %.2f ms, at most %.0f ms, waited %.2f s\n",
           wait_by, (double)shared->turns / seconds, (shared->used[0] + shared->used[1]) / 1e9, shared->loop / 1e9,
           shared->wakes, shared->late / 1e6 / (shared->wakes ? shared->wakes : 1), shared->latest / 1e6,
           shared->waited / 1e9);
    return 0;
}
