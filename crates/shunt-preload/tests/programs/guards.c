// Whether faults are guarded, which costs system calls, in a program that waits on a set of pipes.
#include "show.h"
#include <time.h>

// Whether SIGSEGV has a handler, as the kernel knows.
static int is_guarded(void) {
    char line[256];
    unsigned long long caught = 0;
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, "SigCgt:", 7) == 0) caught = strtoull(line + 7, NULL, 16);
    fclose(status);
    return caught >> (SIGSEGV - 1) & 1;
}

int main(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    struct timespec moment = {0, 1000000}, none = {0, 0}, wrong = {0, -1};
    int set = epoll_create1(EPOLL_CLOEXEC), pair[2];
    MUST(set >= 0 && pipe(pair) == 0);
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event));
    SHOW(epoll_pwait2(set, &event, 1, &moment, NULL));
    SHOW(epoll_pwait2(set, &event, 1, &wrong, NULL));
    SHOW(epoll_pwait2(set, &event, 1, (void *)8, NULL));
    SHOW(epoll_pwait2(-1, &event, 1, &moment, NULL));
    MUST(write(pair[1], "x", 1) == 1);
    SHOW(epoll_pwait2(set, &event, 1, &none, NULL));
    SHOW(epoll_pwait2(set, &event, 1, NULL, NULL));
    SHOW(is_guarded());
}
