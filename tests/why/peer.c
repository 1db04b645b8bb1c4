/* One end of a connection for `cargo xtask why`: `peer listen ADDRESS` or `peer connect ADDRESS PORT HOW`.
 * The client sends lines that the server sends back, does what HOW says, sends more lines, and waits. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef GO
/* The record by which a Go program is known, where Go's linker puts it. */
__attribute__((used, aligned(16))) static char go_record[32] = "\xff Go buildinf:\x08\x02";
#endif

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in address(const char *ip, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, ip, &to.sin_addr) != 1)
        fail(ip);
    return to;
}

static void serve(const char *ip) {
    struct sockaddr_in at = address(ip, "0");
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, length) || listen(listener, 8) ||
        getsockname(listener, (void *)&at, &length))
        fail("listen");
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    char line[2];
    while (recv(fd, line, sizeof line, MSG_WAITALL) == sizeof line)
        if (send(fd, line, sizeof line, MSG_NOSIGNAL) != sizeof line)
            fail("send");
    pause();
}

static void lines(int fd, int count) {
    char line[2];
    for (; count > 0; count--)
        if (send(fd, "x\n", 2, MSG_NOSIGNAL) != 2 || recv(fd, line, 2, MSG_WAITALL) != 2)
            fail("line");
}

static void by_stdio(int fd) {
    char line[8];
    FILE *stream = fdopen(fd, "r+");
    for (int i = 0; i < 20; i++) {
        if (fputs("x\n", stream) < 0 || fflush(stream))
            fail("fputs");
        if (!fgets(line, sizeof line, stream))
            fail("fgets");
    }
}

/* A ring whose calls nobody sees before they are made. */
static void set_up_ring(void) {
    uint32_t parameters[30] = {0, 0, 2 /* IORING_SETUP_SQPOLL */};
    if (syscall(SYS_io_uring_setup, 8, parameters) < 0)
        fail("io_uring_setup");
}

/* As much memory as there is now, and hardly more. */
static void limit_memory(void) {
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1)
        fail("statm");
    fclose(file);
    struct rlimit limit = {.rlim_cur = pages * 4096 + (256 << 10), .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit))
        fail("setrlimit");
}

static void call(const char *ip, const char *port, const char *how) {
    struct sockaddr_in to = address(ip, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(how, "memory"))
        limit_memory();
    if (connect(fd, (void *)&to, sizeof to))
        fail("connect");
    int few = !strcmp(how, "few");
    lines(fd, few ? 1 : 50);
    if (!strcmp(how, "stdio"))
        by_stdio(fd);
    if (!strcmp(how, "ring"))
        set_up_ring();
    if (!strcmp(how, "tls"))
        setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls");
    if (!few)
        lines(fd, 50);
    puts("ready");
    fflush(stdout);
    /* A connection is moved by the calls on it once shuntd has answered. */
    while (!few) {
        lines(fd, 1);
        usleep(10000);
    }
    pause();
}

int main(int count, char **words) {
    alarm(120);
    if (count == 3 && !strcmp(words[1], "listen"))
        serve(words[2]);
    else if (count == 5 && !strcmp(words[1], "connect"))
        call(words[2], words[3], words[4]);
    return 1;
}
