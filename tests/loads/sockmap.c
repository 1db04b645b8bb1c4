// Two processes with one TCP connection, as it is or with what they send redirected by a sockmap (bpf(2)): the
// kernel puts what one sends straight into the other's receive queue.
//   sockmap tcp|sockmap trip|stream BYTES SECONDS CORE CORE   the client's core and the server's
// Prints microseconds per round trip of BYTES, or million bytes per second of writes of BYTES. Root is needed for a sockmap.
#define _GNU_SOURCE
#include <err.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Places in the map.
enum { CLIENT, SERVER };

static int bpf(int command, union bpf_attr *attr, const char *what)
{
    int result = syscall(SYS_bpf, command, attr, sizeof *attr);
    if (result < 0)
        err(1, "%s", what);
    return result;
}

// A map of two sockets. What the one at `port` sends goes to the client's, all else to the server's.
static int redirect(uint16_t port)
{
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_SOCKMAP, .key_size = 4, .value_size = 4, .max_entries = 2};
    int map = bpf(BPF_MAP_CREATE, &attr, "a sockmap");
    struct bpf_insn program[] = {
        {BPF_LDX | BPF_MEM | BPF_W, BPF_REG_2, BPF_REG_1, offsetof(struct sk_msg_md, local_port), 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, SERVER},
        {BPF_JMP | BPF_JNE | BPF_K, BPF_REG_2, 0, 1, port},
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, CLIENT},
        {BPF_LD | BPF_DW | BPF_IMM, BPF_REG_2, BPF_PSEUDO_MAP_FD, 0, map},
        {0},
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_4, 0, 0, BPF_F_INGRESS},
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_msg_redirect_map},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
    attr = (union bpf_attr){.prog_type = BPF_PROG_TYPE_SK_MSG, .expected_attach_type = BPF_SK_MSG_VERDICT};
    attr.insns = (uintptr_t)program;
    attr.insn_cnt = sizeof program / sizeof *program;
    attr.license = (uintptr_t)"GPL";
    int verdict = bpf(BPF_PROG_LOAD, &attr, "a program for messages");
    attr = (union bpf_attr){.target_fd = map, .attach_bpf_fd = verdict, .attach_type = BPF_SK_MSG_VERDICT};
    bpf(BPF_PROG_ATTACH, &attr, "attach");
    return map;
}

static void enter(int map, uint32_t key, int fd)
{
    union bpf_attr attr = {.map_fd = map, .key = (uintptr_t)&key, .value = (uintptr_t)&fd};
    if (map >= 0)
        bpf(BPF_MAP_UPDATE_ELEM, &attr, "a socket for the map");
}

static void pin(const char *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(core), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        err(1, "core %s", core);
}

// `false` at the end of the stream.
static int take(int fd, char *at, size_t length)
{
    for (size_t had = 0; had < length;) {
        ssize_t n = recv(fd, at + had, length - had, 0);
        if (n < 0)
            err(1, "recv");
        if (n == 0)
            return 0;
        had += n;
    }
    return 1;
}

static void give(int fd, const char *at, size_t length)
{
    for (size_t had = 0; had < length;) {
        ssize_t n = send(fd, at + had, length - had, 0);
        if (n < 0)
            err(1, "send");
        had += n;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// Both sockets are in the map before anything is sent: each tells the other by a pipe.
static void meet(int out, int in)
{
    char byte = 0;
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1)
        err(1, "the other end");
}

int main(int argc, char **argv)
{
    if (argc != 7)
        errx(2, "usage: sockmap tcp|sockmap trip|stream BYTES SECONDS CORE CORE");
    int is_trip = !strcmp(argv[2], "trip"), one = 1, there[2], back[2];
    size_t length = strtoul(argv[3], NULL, 10);
    char *buffer = calloc(1, length);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, size) || listen(listener, 1) || getsockname(listener, (void *)&name, &size) ||
        pipe(there) || pipe(back))
        err(1, "a listener");
    int map = strcmp(argv[1], "sockmap") ? -1 : redirect(ntohs(name.sin_port));
    pid_t server = fork();
    if (server == 0) {
        pin(argv[6]);
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        enter(map, SERVER, fd);
        meet(back[1], there[0]);
        while (take(fd, buffer, length))
            if (is_trip)
                give(fd, buffer, length);
        if (!is_trip)
            give(fd, buffer, 1);
        return 0;
    }
    pin(argv[5]);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&name, sizeof name))
        err(1, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    enter(map, CLIENT, fd);
    meet(there[1], back[0]);
    double seconds = atof(argv[4]), begun = 0, spent = 0;
    unsigned long count = 0, warm = is_trip ? 2000 : 200;
    for (; spent < seconds; count++) {
        if (count == warm)
            begun = now();
        give(fd, buffer, length);
        if (is_trip)
            take(fd, buffer, length);
        if (count > warm && count % 64 == 0)
            spent = now() - begun;
    }
    shutdown(fd, SHUT_WR);
    if (!is_trip) {
        // The last byte has come when the server says so.
        take(fd, buffer, 1);
        spent = now() - begun;
    }
    waitpid(server, NULL, 0);
    printf("%.3f\n", is_trip ? spent * 1e6 / (count - warm) : (count - warm) * length / spent / 1e6);
    return 0;
}
