// Cancels a thread in each blocking call; its clean-up must run.
#include "show.h"

static int pair[2], full[2], listener, set;
// More than fits behind what a full socket's last segment still takes.
static char big[1 << 20];
static const char *name;

static void clean(void *argument) { printf("%s: cleaned up\n", (const char *)argument); }

static void block(int which) {
    char buffer[99];
    struct iovec vector = {buffer, 9};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct iovec much = {big, sizeof big};
    struct msghdr flood = {.msg_iov = &much, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct pollfd fd = {pair[1], POLLIN, 0};
    struct epoll_event event;
    fd_set reads;
    CLEAR(&reads), FD_SET(pair[1], &reads);
#define CASE(number, call) case number: name = #call; call; break
    switch (which) {
        CASE(0, read(pair[1], buffer, 9));
        CASE(1, recv(pair[1], buffer, 9, 0));
        CASE(2, recvfrom(pair[1], buffer, 9, 0, NULL, NULL));
        CASE(3, recvmsg(pair[1], &message, 0));
        CASE(4, readv(pair[1], &vector, 1));
        CASE(5, recvmmsg(pair[1], &many, 1, 0, NULL));
        CASE(6, accept(listener, NULL, NULL));
        CASE(7, accept4(listener, NULL, NULL, 0));
        CASE(8, poll(&fd, 1, -1));
        CASE(9, ppoll(&fd, 1, NULL, NULL));
        CASE(10, select(30, &reads, NULL, NULL, NULL));
        CASE(11, pselect(30, &reads, NULL, NULL, NULL, NULL));
        CASE(12, epoll_wait(set, &event, 1, -1));
        CASE(13, epoll_pwait(set, &event, 1, -1, NULL));
        CASE(14, write(full[0], big, sizeof big));
        CASE(15, send(full[0], big, sizeof big, 0));
        CASE(16, writev(full[0], &much, 1));
        CASE(17, sendmsg(full[0], &flood, 0));
        CASE(18, preadv2(pair[1], &vector, 1, -1, 0));
        CASE(19, sendto(full[0], big, sizeof big, 0, NULL, 0));
        CASE(20, epoll_pwait2(set, &event, 1, NULL, NULL));
    }
}

static void *body(void *argument) {
    int which = (int)(intptr_t)argument;
    char frame[40];
    snprintf(frame, sizeof frame, "case %d", which);
    pthread_cleanup_push(clean, frame);
    block(which);
    printf("case %d (%s) returned, errno %d\n", which, name, errno);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    tcp_pair(pair), tcp_pair(full);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(0);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &event) == 0);
    int small = 4096;
    MUST(setsockopt(full[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    // The kernel goes on moving bytes to the other end for a while.
    for (int refused = 0; refused < 3;) {
        if (send(full[0], big, sizeof big, MSG_DONTWAIT) > 0) refused = 0;
        else refused++, usleep(100000);
    }
    for (int which = 0; which <= 20; which++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, body, (void *)(intptr_t)which) == 0);
        // Odd rounds: most likely already asleep. Even: wherever it is by then.
        if (which % 2) usleep(20000);
        pthread_cancel(thread);
        MUST(pthread_join(thread, &result) == 0);
        printf("case %d: %s\n", which, result == PTHREAD_CANCELED ? "cancelled" : "ended");
    }
    return 0;
    (void)count, (void)arguments;
}
