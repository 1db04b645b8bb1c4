/* Calls on a connection that stays TCP, as its other end is no program of Shunt's: that end is in the same thread, by
 * system calls that the library does not see. Callgrind counts the instructions of each kind of call, under its name. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

/* xtask divides by the first. */
enum { CALLS = 100, SIZE = 8, MANY = 2000, COPIES = 100 };

static int near, far, set, last;
static fd_set copies;
static char bytes[SIZE];

static void must(int good) {
    if (!good)
        abort();
}

/* With four arguments, and zeros for the others. */
static long unseen(long number, long a, long b, long c, long d) {
#ifdef __x86_64__
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = 0;
    register long sixth __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = 0;
    register long sixth __asm__("x5") = 0;
    __asm__ volatile("svc #0"
                     : "+r"(first)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return first;
#endif
}

static void far_sends(void) { must(unseen(SYS_sendto, far, (long)bytes, SIZE, 0) == SIZE); }

static void far_receives(void) { must(unseen(SYS_recvfrom, far, (long)bytes, SIZE, 0) == SIZE); }

static void one_send(void) { must(send(near, bytes, SIZE, 0) == SIZE); }

static void one_recv(void) { must(recv(near, bytes, SIZE, 0) == SIZE); }

static void one_writev(void) {
    struct iovec parts[] = {{bytes, SIZE / 2}, {bytes + SIZE / 2, SIZE / 2}};
    must(writev(near, parts, 2) == SIZE);
}

static void one_recvfrom(void) { must(recvfrom(near, bytes, SIZE, 0, NULL, NULL) == SIZE); }

static void one_poll(void) {
    struct pollfd one = {.fd = near, .events = POLLIN};
    must(poll(&one, 1, 1000) == 1);
}

static void one_epoll_wait(void) {
    struct epoll_event event;
    must(epoll_wait(set, &event, 1, 1000) == 1);
}

/* Of so many sockets of the kernel's alone that an array of them would take memory. (They are writable: not connected.) */
static void one_select(void) {
    fd_set writable = copies;
    struct timeval now = {0, 0};
    must(select(last + 1, NULL, &writable, NULL, &now) == COPIES);
}

/* As in calls.c. */
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

/* The end that is counted is the accepted one: shuntd has been asked for its peer, which may come yet. */
static void connect_both(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, length) == 0);
    must(listen(listener, 1) == 0);
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    far = unseen(SYS_socket, AF_INET, SOCK_STREAM, 0, 0);
    must(far >= 0 && unseen(SYS_connect, far, (long)&address, length, 0) == 0);
    near = accept(listener, NULL, NULL);
    must(near >= 0);
}

int main(void) {
    connect_both();
    /* Until the connection has shown that it lives. */
    for (int i = 0; i < MANY; i++) {
        one_send();
        far_receives();
        far_sends();
        one_recv();
    }
    count("plain_send", NULL, one_send, far_receives);
    count("plain_writev", NULL, one_writev, far_receives);
    count("plain_recv", far_sends, one_recv, NULL);
    count("plain_recvfrom", far_sends, one_recvfrom, NULL);
    count("plain_poll", far_sends, one_poll, one_recv);
    set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, near, &event) == 0);
    count("plain_epoll_wait", far_sends, one_epoll_wait, one_recv);
    int unconnected = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < COPIES; i++) {
        last = dup(unconnected);
        must(last >= 0 && last < FD_SETSIZE);
        FD_SET(last, &copies);
    }
    count("plain_select", NULL, one_select, NULL);
    return 0;
}
