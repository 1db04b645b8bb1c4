"""epoll_echo.py PORT   an echo server, all connections in one epoll set."""
import select
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=99)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
connections = {}
while True:
    for fd, _ in epoll.poll():
        if fd == listener.fileno():
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections[connection.fileno()] = connection
            epoll.register(connection, select.EPOLLIN)
        elif data := connections[fd].recv(4096):
            connections[fd].send(data)
        else:
            epoll.unregister(fd)
            connections.pop(fd).close()
