/*
 * A super-server: each connection becomes descriptors 0, 1 and 2 of a program of its own.
 *     inetd PORT MODE PROGRAM
 * MODE says what happens on the connection before the program takes it over:
 *     now        nothing
 *     waiting    bytes of the client have arrived, unread
 *     greeted    lines of the client have been read, and each answered
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* As many as echo_check.py sends. */
#define GREETINGS 20

static void die(const char *what) { perror(what); exit(1); }

static void leave(int number) { (void)number; exit(0); }

static void wait_for_bytes(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    if (poll(&entry, 1, -1) != 1) die("poll");
}

static void greet(int fd) {
    for (int line = 0; line < GREETINGS; line++) {
        char byte;
        do {
            if (read(fd, &byte, 1) != 1) die("read");
        } while (byte != '\n');
        if (write(fd, "go\n", 3) != 3) die("write");
    }
}

static void serve(int fd, const char *mode, const char *program) {
    if (strcmp(mode, "waiting") == 0) wait_for_bytes(fd);
    if (strcmp(mode, "greeted") == 0) greet(fd);
    for (int standard = 0; standard <= 2; standard++)
        if (dup2(fd, standard) != standard) die("dup2");
    if (fd > 2) close(fd);
    execl(program, program, (char *)NULL);
    _exit(127);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) die("socket");
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) die("setsockopt");
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    if (listen(listener, 64) != 0) die("listen");
    signal(SIGCHLD, SIG_IGN);
    signal(SIGTERM, leave);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) signal(SIGTERM, SIG_DFL);
        if (child == 0) serve(fd, arguments[2], arguments[3]);
        close(fd);
    }
}
