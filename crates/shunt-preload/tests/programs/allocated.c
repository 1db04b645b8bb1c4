// Run under `allocator.c`: allocates, in threads and children too.
#include "show.h"

static void *body(void *argument) {
    for (int round = 0; round < 100; round++) free(realloc(malloc(10), 1000));
    return argument;
}

int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) MUST(pthread_create(threads + i, NULL, body, NULL) == 0);
    for (int i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL) == 0);
    int pair[2], status;
    tcp_pair(pair);
    if (fork() == 0) _exit(malloc(7) == NULL);
    MUST(wait(&status) > 0 && status == 0 && system("exit 0") == 0);
    puts("fine");
    return 0;
}
