"""memcached_get.py PORT SECONDS   16 connections, each always with one `get` of 100 bytes under way; prints how many a second."""
import selectors
import socket
import sys
import time

port, seconds = int(sys.argv[1]), float(sys.argv[2])
ASK, ANSWER = b"get k\r\n", len(b"VALUE k 0 100\r\n" + bytes(100) + b"\r\nEND\r\n")
selector = selectors.EpollSelector()
for number in range(16):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if number == 0:
        connection.sendall(b"set k 0 0 100\r\n" + b"x" * 100 + b"\r\n")
        assert connection.recv(100) == b"STORED\r\n"
    received = [0]
    selector.register(connection, selectors.EVENT_READ, received)
for key in selector.get_map().values():
    key.fileobj.sendall(ASK)
begin, answers = time.monotonic(), 0
while time.monotonic() - begin < seconds:
    for key, _ in selector.select():
        key.data[0] += len(key.fileobj.recv(4096))
        if key.data[0] == ANSWER:
            key.data[0] = 0
            answers += 1
            key.fileobj.sendall(ASK)
print(answers / (time.monotonic() - begin))
