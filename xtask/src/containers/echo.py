"""The two ends of a test: a server that answers each message with its own key before it, and a client
that checks every byte.

    echo.py server PORT KEY CONNECTIONS
    echo.py client ADDRESS PORT KEY MESSAGES [ITS OWN PORT]
    echo.py lasting ADDRESS PORT KEY FILE    until there is such a file
    echo.py crowd-server PORT KEY CONNECTIONS                       all at once, each in a thread of its own
    echo.py crowd-client ADDRESS PORT KEY MESSAGES CONNECTIONS      this number of messages by each
"""
import os
import socket
import sys
import threading
import time

LENGTH = 1000
# How soon a connection is paired depends on how busy the machine is, and is not what is tested: the
# first messages come slowly, and are few among all.
FIRST = 100
PAUSE = 0.01


def receive(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise SystemExit(f"the connection ended after {len(data)} of {length} bytes")
        data += part
    return data


def serve(port, key, connections):
    listener = socket.create_server(("", int(port)))
    print("listening", flush=True)
    for _ in range(int(connections)):
        answer(listener.accept()[0], key)


def answer(connection, key):
    with connection:
        while message := connection.recv(LENGTH, socket.MSG_WAITALL):
            connection.sendall(key.encode() + message)


def ask(address, port, key, messages, own=0):
    connection = socket.create_connection((address, int(port)), source_address=("", int(own)))
    exchange(connection, key, int(messages), FIRST)
    print("all answers are right", flush=True)


def last(address, port, key, file):
    connection = socket.create_connection((address, int(port)))
    exchange(connection, key, 4000, FIRST)
    print("under way", flush=True)
    while not os.path.exists(file):
        exchange(connection, key, 100)
    print("all answers are right", flush=True)


def exchange(connection, key, messages, slow=0):
    for number in range(messages):
        if number < slow:
            time.sleep(PAUSE)
        message = os.urandom(LENGTH)
        connection.sendall(message)
        answer = receive(connection, len(key) + LENGTH)
        if answer != key.encode() + message:
            raise SystemExit(f"answer {number} is not what was sent: {answer[:40]}")


def serve_crowd(port, key, connections):
    listener = socket.create_server(("", int(port)), backlog=int(connections))
    print("listening", flush=True)
    accepted = [listener.accept()[0] for _ in range(int(connections))]
    crowd(lambda number: answer(accepted[number], key), int(connections))


def ask_crowd(address, port, key, messages, connections):
    made = [socket.create_connection((address, int(port))) for _ in range(int(connections))]
    crowd(lambda number: exchange(made[number], key, int(messages), FIRST), int(connections))
    print("all answers are right", flush=True)


def crowd(work, count):
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as why:
            failed.append(why)

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


ROLES = {
    "server": serve,
    "client": ask,
    "lasting": last,
    "crowd-server": serve_crowd,
    "crowd-client": ask_crowd,
}
ROLES[sys.argv[1]](*sys.argv[2:])
