// Prints each call with its value and errno, so that two runs can be compared.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

// errno is set to something unlikely first: a call that succeeds must leave it.
#define SHOW(call)                                                                                                     \
    ({                                                                                                                 \
        errno = 7777;                                                                                                  \
        long long value_ = (long long)(call);                                                                          \
        int error_ = errno;                                                                                            \
        printf("%d: %s = %lld, errno %d\n", __LINE__, #call, value_, error_);                                          \
        value_;                                                                                                        \
    })

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: %s: errno %d\n", __FILE__, __LINE__, #condition, errno);                                    \
            exit(99);                                                                                                  \
        }                                                                                                              \
    } while (0)

// FD_ZERO as an expression.
#define CLEAR(set) memset(set, 0, sizeof *(set))

// A connected pair over the loopback interface.
__attribute__((unused)) static void tcp_pair(int pair[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 5) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    MUST((pair[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    MUST(connect(pair[0], (struct sockaddr *)&address, length) == 0);
    MUST((pair[1] = accept(listener, NULL, NULL)) >= 0);
    MUST(close(listener) == 0);
}
