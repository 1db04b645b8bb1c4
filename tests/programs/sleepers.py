"""Who sleeps is called beside the stream: the TCP connection carries no byte for it.

    sleepers.py SHUNT

A server waits in one of several ways, with one or four threads; a client pauses before each
request, so that the server is asleep when it comes. Prints one line a case.
"""
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

TRIPS, SIZE = 1500, 100
# By TCP: what is sent before the rings are there, and a byte for each of the first sleeps
# on an epoll set.
MOST_BY_TCP = 5 * SIZE + 40


def wait_by_poll(connection):
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return lambda: poll.poll()


def wait_by_select(connection):
    return lambda: select.select([connection], [], [])


def wait_by_epoll(connection):
    poll = select.epoll()
    poll.register(connection, select.EPOLLIN)
    return lambda: poll.poll()


WAITS = {
    "recv": lambda connection: lambda: None,
    "poll": wait_by_poll,
    "select": wait_by_select,
    "epoll": wait_by_epoll,
}


def receive(connection):
    data = b""
    while len(data) < SIZE:
        more = connection.recv(SIZE - len(data))
        if not more:
            return None
        data += more
    return data


def serve(connection, way):
    wait = WAITS[way](connection)
    while True:
        wait()
        data = receive(connection)
        if data is None:
            return bytes_received(connection)
        connection.sendall(data)


def bytes_received(connection):
    # tcpi_bytes_received of linux/tcp.h
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return struct.unpack_from("=Q", info, 128)[0]


def ask(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for i in range(TRIPS):
        time.sleep(0.0005)
        message = i.to_bytes(4, "big") * (SIZE // 4)
        connection.sendall(message)
        assert receive(connection) == message


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def server(way, count):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    by_tcp = []
    in_threads(count, lambda: by_tcp.append(serve(listener.accept()[0], way)))
    print(max(by_tcp), flush=True)


def run_case(shunt, way, count):
    with tempfile.TemporaryDirectory() as directory:
        lines = os.path.join(directory, "lines")
        run = [shunt, "run", "--upgrade=eager", "--stats", lines, "--"]
        run += [sys.executable, os.path.abspath(__file__)]
        echo = subprocess.Popen([*run, "server", way, str(count)],
                                stdout=subprocess.PIPE, text=True)
        port = echo.stdout.readline().strip()
        status = subprocess.call([*run, "client", port, str(count)])
        by_tcp = int(echo.stdout.readline())
        status |= echo.wait()
        with open(lines) as file:
            line = next(each for each in map(json.loads, file) if each["pid"] == echo.pid)
    asleep = line["sleeps"] >= TRIPS * count // 2
    called = line["doorbells"]["received"] >= line["sleeps"] // 2
    return status == 0 and asleep and called and by_tcp <= MOST_BY_TCP, (by_tcp, line)


def main(shunt):
    failed = 0
    for way in WAITS:
        for count in (1, 4):
            good, seen = run_case(shunt, way, count)
            failed += not good
            print(f"{'ok' if good else 'FAILED'} {way} {count}", "" if good else seen, flush=True)
    print(f"{failed} failed")
    return failed != 0


if sys.argv[1] == "server":
    server(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "client":
    in_threads(int(sys.argv[3]), lambda: ask(int(sys.argv[2])))
else:
    sys.exit(main(sys.argv[1]))
