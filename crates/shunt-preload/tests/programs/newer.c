// What glibc 2.39 adds, for an older one.
#define _GNU_SOURCE
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

static int opened(int error, int *pidfd, pid_t child) {
    if (error == 0) *pidfd = syscall(SYS_pidfd_open, child, 0);
    return error;
}

int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const argv[], char *const envp[]) {
    pid_t child;
    int error = posix_spawn(&child, path, actions, attributes, argv, envp);
    return opened(error, pidfd, child);
}

int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const argv[], char *const envp[]) {
    pid_t child;
    int error = posix_spawnp(&child, file, actions, attributes, argv, envp);
    return opened(error, pidfd, child);
}
