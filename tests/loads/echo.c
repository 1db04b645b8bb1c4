// A server whose answers take it a microsecond or so, and its client.
//   echo serve-one|serve-threads PORT   one connection after another, or a thread for each
//   echo ask PORT SECONDS               100 bytes there and back; prints requests per second
#include <arpa/inet.h>
#include <err.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WORK = 2000, LENGTH = 100 };

static void *serve(void *argument) {
  int fd = (int)(intptr_t)argument;
  char buffer[4096];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
    for (volatile int i = 0; i < WORK; i++) {
    }
    send(fd, buffer, n, MSG_NOSIGNAL);
  }
  close(fd);
  return NULL;
}

static void accept_all(int listener, int in_threads) {
  for (;;) {
    int one = 1, fd = accept(listener, NULL, NULL);
    pthread_t thread;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!in_threads) {
      serve((void *)(intptr_t)fd);
    } else if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0) {
      pthread_detach(thread);
    }
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void ask(int fd, double seconds) {
  char message[LENGTH] = {1};
  double begin = now(), end;
  long asked = 0;
  do {
    send(fd, message, sizeof message, 0);
    for (ssize_t got = 0, n; got < LENGTH; got += n)
      if ((n = recv(fd, message, LENGTH - got, 0)) <= 0) errx(1, "the connection has ended");
    asked++;
    end = now();
  } while (end - begin < seconds);
  printf("%.0f\n", asked / (end - begin));
}

int main(int argc, char **argv) {
  if (argc < 3) errx(2, "usage: echo serve-one|serve-threads PORT, or echo ask PORT SECONDS");
  int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (strcmp(argv[1], "ask") == 0) {
    if (connect(fd, (void *)&address, sizeof address)) err(1, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ask(fd, argc > 3 ? atof(argv[3]) : 1);
    return 0;
  }
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (void *)&address, sizeof address) || listen(fd, 99)) err(1, "listen");
  accept_all(fd, strcmp(argv[1], "serve-threads") == 0);
}
