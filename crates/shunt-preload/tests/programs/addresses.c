/* Addresses for connect: whole, at the very end of memory, and bad ones. */
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include "show.h"

enum { PAGE = 4096 };

static void attempt(const char *what, const void *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int result = connect(fd, address, sizeof(struct sockaddr_in));
    printf("%s: %d %s\n", what, result, result ? strerror(errno) : "");
    close(fd);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&address, sizeof address);
    listen(listener, 8);
    getsockname(listener, (void *)&address, &length);

    char *pages = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + PAGE, PAGE, PROT_NONE);
    attempt("whole", &address);
    attempt("at the end", memcpy(pages + PAGE - sizeof address, &address, sizeof address));
    attempt("odd", memcpy(pages + 1, &address, sizeof address));
    attempt("cut off", pages + PAGE - 4);
    attempt("forbidden", pages + PAGE);
    attempt("null", 0);
    return 0;
}
