/* Calls on a shunted connection with both ends in one thread, so that nobody ever
 * waits: callgrind counts the instructions of each kind of call, under its name. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <valgrind/callgrind.h>

/* xtask divides by the first. */
enum { CALLS = 100, SIZE = 8 };

static int near, far, set;
static char bytes[SIZE];

static void must(int good) {
    if (!good)
        abort();
}

static void one_send(void) { must(send(near, bytes, SIZE, 0) == SIZE); }

/* As a server does with the head and the body of an answer. */
static void one_writev(void) {
    struct iovec parts[] = {{bytes, SIZE / 2}, {bytes + SIZE / 2, SIZE / 2}};
    must(writev(near, parts, 2) == SIZE);
}

static void one_recv(void) { must(recv(far, bytes, SIZE, 0) == SIZE); }

static void recv_nothing(void) { must(recv(far, bytes, SIZE, MSG_DONTWAIT) == -1); }

static void send_and_recv(void) {
    one_send();
    one_recv();
}

static void poll_ready(void) {
    struct pollfd one = {.fd = far, .events = POLLIN};
    must(poll(&one, 1, -1) == 1);
}

static void epoll_ready(void) {
    struct epoll_event event;
    must(epoll_wait(set, &event, 1, -1) == 1);
}

/* A call of each kind is surrounded by calls that make it possible, and these are
 * made in the first round without counting, so that all of it is warm. */
static void count(const char *name, void (*before)(void), void (*call)(void), void (*after)(void)) {
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CALLS; i++) {
            if (before)
                before();
            if (round)
                CALLGRIND_TOGGLE_COLLECT;
            call();
            if (round)
                CALLGRIND_TOGGLE_COLLECT;
            if (after)
                after();
        }
    }
    CALLGRIND_DUMP_STATS_AT(name);
}

static void connect_both(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0);
    must(listen(listener, 1) == 0);
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    near = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(near, (struct sockaddr *)&address, length) == 0);
    far = accept(listener, NULL, NULL);
    must(far >= 0);
}

int main(void) {
    connect_both();
    /* Until both directions are on their rings. */
    for (int i = 0; i < CALLS; i++) {
        one_send();
        one_recv();
        must(send(far, bytes, SIZE, 0) == SIZE && recv(near, bytes, SIZE, 0) == SIZE);
    }
    count("send", NULL, one_send, one_recv);
    count("writev", NULL, one_writev, one_recv);
    count("recv", one_send, one_recv, NULL);
    count("recv_nothing", NULL, recv_nothing, NULL);
    count("recv_no_more", send_and_recv, recv_nothing, NULL);
    count("poll_ready", one_send, poll_ready, one_recv);
    set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, far, &event) == 0);
    count("send_watched", NULL, one_send, one_recv);
    count("epoll_wait_ready", one_send, epoll_ready, one_recv);
    return 0;
}
