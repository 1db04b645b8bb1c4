// A preloaded allocator that reads its settings on the first allocation, before
// anything of ours ran, and allocates in every `dlsym`-like moment.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char memory[64 << 20] __attribute__((aligned(16)));
static size_t used;
static int ready;

static void prepare(void) {
    if (ready) return;
    ready = 1;
    char buffer[64];
    struct pollfd fd = {0, POLLIN, 0};
    int file = open("/proc/self/comm", O_RDONLY), copy = dup(file);
    if (read(copy, buffer, sizeof buffer) <= 0 || fcntl(copy, F_GETFD) != 0) _exit(97);
    close(copy), close(file), poll(&fd, 0, 0);
    int fds[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, fds), send(fds[0], "x", 1, 0), recv(fds[1], buffer, 1, 0), close(fds[0]), close(fds[1]);
}

void *malloc(size_t size) {
    prepare();
    size_t at = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED);
    if (at + size + 32 > sizeof memory) {
        errno = ENOMEM;
        return NULL;
    }
    *(size_t *)(memory + at) = size;
    return memory + at + 16;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void *memalign(size_t alignment, size_t size) {
    size_t block = (size_t)malloc(size + alignment);
    block = (block + alignment - 1) & ~(alignment - 1);
    ((size_t *)block)[-2] = size;
    return (void *)block;
}
int posix_memalign(void **block, size_t alignment, size_t size) { return (*block = memalign(alignment, size)) == NULL ? ENOMEM : 0; }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (old && block) {
        size_t had = ((size_t *)old)[-2];
        memcpy(block, old, had < size ? had : size);
    }
    return block;
}
