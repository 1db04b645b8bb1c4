// Interrupted calls, calls in handlers, exit handlers that still use sockets.
#include "show.h"
#include <sys/time.h>

static int pair[2];

static void handle(int number) {
    // The first use of these calls may be in here.
    struct pollfd fd = {pair[0], POLLOUT, 0};
    int error = errno;
    if (poll(&fd, 1, 0) != 1 || send(pair[0], "s", 1, 0) != 1) _exit(98);
    errno = error;
    (void)number;
}

static void farewell(void) { SHOW(send(pair[0], "farewell", 8, 0)), SHOW(recv(pair[1], (char[99]){0}, 99, 0)); }

__attribute__((destructor)) static void last(void) { SHOW(write(pair[0], "last", 4)), SHOW(close(pair[0])); }

static void alarm_soon(int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    struct itimerval timer = {.it_value = {0, 20000}};
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    tcp_pair(pair);
    int other[2];
    char byte[9];
    tcp_pair(other);
    atexit(farewell);
    alarm_soon(0), SHOW(read(other[0], byte, 1)), SHOW(read(pair[1], byte, 9));
    alarm_soon(SA_RESTART), SHOW(recv(pair[1], byte, 1, 0));
    struct pollfd fd = {other[0], POLLIN, 0};
    alarm_soon(SA_RESTART), SHOW(poll(&fd, 1, -1)), SHOW(read(pair[1], byte, 9));
    signal(SIGPIPE, SIG_DFL);
    close(other[1]);
    if (count > 1 && strcmp(arguments[1], "pipe") == 0) {
        send(other[0], "x", 1, 0), usleep(1000), send(other[0], "x", 1, 0), usleep(1000), send(other[0], "x", 1, 0);
    }
    if (count > 1 && strcmp(arguments[1], "quick") == 0) quick_exit(7);
    if (count > 1 && strcmp(arguments[1], "exit") == 0) exit(8);
    if (count > 1 && strcmp(arguments[1], "_exit") == 0) _exit(9);
    return 6;
}
