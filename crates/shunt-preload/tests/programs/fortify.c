// Built with _FORTIFY_SOURCE: calls that fit, then one that does not.
#include "show.h"

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    int pair[2];
    char buffer[16];
    tcp_pair(pair);
    struct pollfd fds[2] = {{pair[0], POLLOUT, 0}, {pair[1], POLLIN, 0}};
    struct timespec now = {0, 0};
    volatile size_t size = 16, few = 2;
    SHOW(write(pair[0], "0123456789abcdefghi", 19)), SHOW(read(pair[1], buffer, size)), SHOW(recv(pair[1], buffer, size - 14, 0));
    SHOW(recvfrom(pair[1], buffer, size, 0, NULL, NULL)), SHOW(poll(fds, few, 0)), SHOW(ppoll(fds, few, &now, NULL));
    SHOW(dprintf(pair[0], "%s %f", arguments[0] ? "x" : "y", 1.5)), SHOW(recv(pair[1], buffer, size, 0));
    size += 1, few += 1;
    switch (count > 1 ? arguments[1][0] : 0) {
    case 'r': return (int)read(pair[1], buffer, size);
    case 'v': return (int)recv(pair[1], buffer, size, 0);
    case 'f': return (int)recvfrom(pair[1], buffer, size, 0, NULL, NULL);
    case 'p': return poll(fds, few, 0);
    case 'P': return ppoll(fds, few, &now, NULL);
    }
    return 0;
}
