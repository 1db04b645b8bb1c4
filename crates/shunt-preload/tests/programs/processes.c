// Forks and execs by every road.
#include "show.h"
#include <dlfcn.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>

static int work(void *argument) { return *(int *)argument + (write(1, "cloned\n", 7) == 7); }

static void reap(pid_t child) {
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    SHOW(status);
}

static void *open_and_close(void *argument) {
    // Holds the dynamic linker's lock most of the time.
    while (!*(volatile int *)argument) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        dlclose(library);
    }
    return NULL;
}

#define EXEC(call)                                                                                                     \
    do {                                                                                                               \
        pid_t child_ = fork();                                                                                         \
        if (child_ == 0) {                                                                                             \
            call;                                                                                                      \
            _exit(errno);                                                                                              \
        }                                                                                                              \
        reap(child_);                                                                                                  \
    } while (0)

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    pid_t child;
    if (count > 1 && strcmp(arguments[1], "daemon") == 0) {
        // The daemon's end of the pipe closes when it ends.
        MUST(daemon(1, 1) == 0);
        return dprintf(1, "daemon\n") != 7;
    }
    EXEC(execl("/bin/echo", "echo", "one", NULL));
    EXEC(execl("/bin/echo", "echo", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", NULL));
    EXEC(execl("/bin/echo", "echo", NULL));
    EXEC(execlp("echo", "echo", "a", "b", "c", "d", "e", "f", "g", NULL));
    char *environment[] = {"ONLY=this", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") - strlen("LD_PRELOAD=") : NULL, NULL};
    EXEC(execle("/bin/sh", "sh", "-c", "echo $ONLY$HOME", "x", "y", "z", NULL, environment));
    EXEC(execle("/bin/sh", "sh", "-c", "echo $ONLY$HOME", NULL, environment));
    char *argv[] = {"sh", "-c", "echo vector $ONLY", NULL};
    EXEC(execv("/bin/sh", argv));
    EXEC(execvp("sh", argv));
    EXEC(execve("/bin/sh", argv, environment));
    EXEC(execvpe("sh", argv, environment));
    int shell = open("/bin/sh", O_RDONLY);
    EXEC(fexecve(shell, argv, environment));
    EXEC(execveat(shell, "", argv, environment, AT_EMPTY_PATH));
    SHOW(execl("/nonexistent", "a", "b", NULL)), SHOW(execlp("nonexistent", "a", NULL)), SHOW(execle("/", "a", NULL, environment));
    SHOW(execv("/etc/passwd", argv)), SHOW(execvp("nonexistent", argv)), SHOW(execve("/", argv, environment)), SHOW(fexecve(-1, argv, environment));
    SHOW(system("exit 3")), SHOW(system("echo a | cat"));
    FILE *pipe = popen("echo popen", "r");
    char line[80] = "";
    SHOW(fgets(line, 80, pipe) != NULL), SHOW(pclose(pipe)), printf("%s", line);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions), posix_spawn_file_actions_adddup2(&actions, 1, 9), posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    MUST(posix_spawnp(&child, "sh", &actions, NULL, (char *[]){"sh", "-c", "echo spawned; exit 4", NULL}, environ) == 0);
    reap(child);
    if ((child = vfork()) == 0) {
        execl("/nonexistent", "a", NULL);
        _exit(5);
    }
    reap(child);
    if ((child = vfork()) == 0) {
        close(0), dup2(1, 0), execl("/bin/echo", "echo", "vforked", NULL);
        _exit(5);
    }
    reap(child), SHOW(fcntl(0, F_GETFD));
    if ((child = _Fork()) == 0) _Exit(6);
    reap(child);
    static char stack[65536] __attribute__((aligned(16)));
    int seven = 7;
    reap(clone(work, stack + sizeof stack, SIGCHLD, &seven));
    reap(clone(work, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &seven));
    SHOW(clone(work, NULL, SIGCHLD, &seven));
    int terminal;
    if ((child = forkpty(&terminal, NULL, NULL, NULL)) == 0) {
        MUST(write(1, "pty\n", 4) == 4);
        _exit(8);
    }
    SHOW(read(terminal, line, 80)), reap(child);
    volatile int stop = 0;
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, open_and_close, (void *)&stop) == 0);
    for (int round = 0; round < 200; round++) {
        // The child calls what nobody called before, perhaps while its copy of
        // the dynamic linker's lock is held by a thread that it has not got.
        if ((child = round % 2 ? _Fork() : fork()) == 0) {
            struct timespec now = {0, 0};
            struct iovec vector = {line, 0};
            writev(1, &vector, 1), readv(99, &vector, 1), epoll_pwait2(-1, NULL, 0, &now, NULL), pselect(0, NULL, NULL, NULL, &now, NULL);
            _exit(0);
        }
        int status;
        MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1, pthread_join(thread, NULL);
    puts("end");
    return 0;
}
