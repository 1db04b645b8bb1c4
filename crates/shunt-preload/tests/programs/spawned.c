// Starts programs that it has pidfds of, where libc can.
#include "show.h"
#include <dlfcn.h>
#include <spawn.h>

typedef int spawning(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);

static void start(const char *how, const char *file) {
    spawning *spawn = (spawning *)dlsym(RTLD_DEFAULT, how);
    MUST(spawn);
    int pidfd = -1;
    errno = 7;
    int error = spawn(&pidfd, file, NULL, NULL, (char *[]){"sh", "-c", "exit 4", NULL}, environ);
    printf("%s %d", how, error);
    if (error == 0) {
        siginfo_t ended;
        MUST(waitid(P_PIDFD, pidfd, &ended, WEXITED) == 0);
        printf(", ended with %d", ended.si_status);
    } else {
        printf(", errno %d", errno);
    }
    puts("");
}

int main(void) {
    start("pidfd_spawn", "/bin/sh");
    start("pidfd_spawnp", "sh");
    return 0;
}
