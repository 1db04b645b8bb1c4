// Whether there is io_uring.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
    char parameters[120] = {0};
    int ring = syscall(SYS_io_uring_setup, 1, parameters);
    puts(ring >= 0 ? "a ring" : strerror(errno));
    return 0;
}
