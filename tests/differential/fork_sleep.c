// A forked child sleeps only where the program says so: its parent may look for that in /proc.
// path: shunted
// timeout: 60
#include "diff.h"

static void noted(int signal) { (void)signal; }

// Or has ended.
static int is_asleep(struct end *e, pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return strstr(text, ") S ") || strstr(text, ") Z ");
}

// A signal for a child that sleeps ends its wait.
static void signalled_asleep(struct end *e)
{
    AT(S) {
        int interrupted = 0, set = MUST(epoll_create1(EPOLL_CLOEXEC));
        struct sigaction action = {.sa_handler = noted};
        MUST(sigaction(SIGUSR1, &action, NULL));
        for (int i = 0; i < 40 && interrupted == i; i++) {
            pid_t child = MUST(fork());
            if (child == 0) {
                struct epoll_event event;
                int found = epoll_wait(set, &event, 1, PATIENCE_MS);
                _exit(found == -1 && errno == EINTR ? 0 : 1);
            }
            int status;
            while (!is_asleep(e, child))
                ;
            MUST(kill(child, SIGUSR1));
            MUST(waitpid(child, &status, 0));
            interrupted += status == 0;
        }
        close(set);
        say(e, "interrupted %d", interrupted);
    }
}

DIFF_MAIN(CASE(signalled_asleep, SPLIT))
