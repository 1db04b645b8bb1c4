/*
 * An 8-byte blocking ping-pong as any program would write it:
 *     pingpong server PORT CORE           serves one connection after the other
 *     pingpong client PORT CORE COUNT     prints "p50 µs mean µs p99 µs" of a round trip
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 5000

static void die(const char *what) { perror(what); exit(1); }

static void leave(int number) { (void)number; exit(0); }

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* 0 at the end of the stream. */
static int receive(int fd, void *buffer) {
    size_t got = 0;
    while (got < 8) {
        ssize_t n = recv(fd, (char *)buffer + got, 8 - got, 0);
        if (n < 0) die("recv");
        if (n == 0) return 0;
        got += (size_t)n;
    }
    return 1;
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    pin(atoi(argv[3]));
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    uint64_t word = 0;
    if (strcmp(argv[1], "server") == 0) {
        signal(SIGTERM, leave);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) die("listen");
        for (;;) {
            int peer = accept(fd, NULL, NULL);
            if (peer < 0) die("accept");
            setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            while (receive(peer, &word))
                if (send(peer, &word, 8, 0) != 8) die("send");
            close(peer);
        }
    }
    if (argc < 5) return 2;
    size_t count = (size_t)atol(argv[4]);
    uint64_t *times = calloc(count, sizeof *times), sum = 0;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (size_t i = 0; i < WARM_UP + count; i++) {
        uint64_t start = now(), sent = i;
        if (send(fd, &sent, 8, 0) != 8) die("send");
        if (!receive(fd, &word) || word != sent) { fprintf(stderr, "wrong answer\n"); return 1; }
        if (i >= WARM_UP) sum += times[i - WARM_UP] = now() - start;
    }
    qsort(times, count, sizeof *times, order);
    printf("p50 %.3f mean %.3f p99 %.3f\n", (double)times[count / 2] / 1e3, (double)sum / (double)count / 1e3,
           (double)times[count * 99 / 100] / 1e3);
    return 0;
}
