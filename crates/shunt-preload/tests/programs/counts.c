// Many connections, and a child that moves some bytes on the last; with a second word the
// kernel maps nothing more at a place that is asked for, behind the library's back.
#include "show.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { PAIRS = 600 };
static int pairs[PAIRS][2];

static long unseen(long number, long a, long b, long c, long d, long e) {
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

static void refuse_fixed(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(unseen(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(unseen(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0) == 0);
}

// `length` bytes each way.
static void exchange(int pair[2], size_t length) {
    char buffer[64];
    for (int i = 0; i < 2; i++) {
        MUST(send(pair[i], buffer, length, 0) == (ssize_t)length);
        MUST(recv(pair[!i], buffer, length, MSG_WAITALL) == (ssize_t)length);
    }
}

int main(int count, char **words) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    MUST(limit.rlim_max >= 2 * PAIRS + 100);
    limit.rlim_cur = 2 * PAIRS + 100;
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < PAIRS; i++) tcp_pair(pairs[i]), exchange(pairs[i], 1);
    if (count > 1) refuse_fixed();
    pid_t child = fork();
    if (child == 0) {
        exchange(pairs[PAIRS - 1], 10);
        exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    exchange(pairs[0], 5);
    printf("%d %d\n", getpid(), child);
}
