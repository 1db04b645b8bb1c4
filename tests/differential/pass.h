// A descriptor goes to another process over a Unix socket.
#ifndef PASS_H
#define PASS_H

__attribute__((unused)) static void pass(int over, int fd)
{
    char data = 'f';
    union {
        struct cmsghdr h;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
#ifdef BY_MMSG
    sendmmsg(over, &(struct mmsghdr){m, 0}, 1, 0);
#else
    sendmsg(over, &m, 0);
#endif
}

__attribute__((unused)) static int passed(int over)
{
    char data;
    int fd = -1;
    union {
        struct cmsghdr h;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
#ifdef BY_MMSG
    struct mmsghdr one = {m, 0};
    int got = recvmmsg(over, &one, 1, MSG_CMSG_CLOEXEC, NULL);
    m = one.msg_hdr;
#else
    int got = recvmsg(over, &m, MSG_CMSG_CLOEXEC);
#endif
    if (got == 1) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c && c->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    }
    return fd;
}

#endif
