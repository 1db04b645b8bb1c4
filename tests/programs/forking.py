"""A forked child whose first connection is short stays on TCP with it; one whose connections live does not.

    forking.py SHUNT

In the default mode. To come to shuntd and make memory takes a child as long as many messages, and a server that forks for each
connection has many children that exchange few.
"""
import json
import os
import socket
import subprocess
import sys
import time

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
# Of each connection so many messages are a millisecond apart: time enough for whoever would be paired.
PACED = 200
FEW, SOME, MANY = 10, 30, 1000


def echo(connection):
    while message := connection.recv(64):
        connection.sendall(message)


def ask(port, messages, is_last=True):
    """The last connection stays open until we are told to go on."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(messages):
            message = b"%7d" % number
            connection.sendall(message)
            assert connection.recv(len(message), socket.MSG_WAITALL) == message
            if number < PACED:
                time.sleep(0.001)
        if is_last:
            print("done", flush=True)
            sys.stdin.read()


def serve():
    """A child for the one connection that comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            echo(connection)
            os._exit(0)
        connection.close()
        os.wait()


def employ(*connections):
    """A child that connects to us, again and again; it never waits for connections, which would bring it to shuntd."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        print(port, flush=True)
        if os.fork() == 0:
            listener.close()
            for number, messages in enumerate(connections, 1):
                ask(port, messages, number == len(connections))
            os._exit(0)
        for _ in connections:
            with listener.accept()[0] as connection:
                echo(connection)
        os.wait()


def by_ring(role, *connections):
    """How many bytes of the last connection have gone through its rings, to or from the child of a program with this role. It has
    so many messages on each. (With statistics a child would come to shuntd for their sake.)"""
    program = [SHUNT, "run", "--", sys.executable, os.path.abspath(__file__), SHUNT]
    words = [str(messages) for messages in connections]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*program, role, *words], **pipes) as parent:
        port = parent.stdout.readline().strip()
        asker = subprocess.Popen([*program, "ask", port, *words], **pipes) if role == "serve" else parent
        assert asker.stdout.readline() == "done\n"
        told = subprocess.run([SHUNT, "ss", "--json", "sport", "=", f":{port}"], check=True, stdout=subprocess.PIPE).stdout
        asker.stdin.close()
        assert asker.wait() == 0 and parent.wait() == 0
    (connection,) = json.loads(told)["connections"]
    return sum(way["ring"] for way in connection["bytes"].values())


def check():
    moved = by_ring("serve", FEW)
    if moved != 0:
        sys.exit(f"of {FEW} messages to a forked child {moved} bytes went by ring")
    print("ok a forked child with a short connection stays on TCP")
    moved = by_ring("serve", MANY)
    if moved < 7 * MANY:
        sys.exit(f"of {MANY} messages to a forked child {moved} bytes went by ring")
    print("ok a forked child with a long connection does not")
    moved = by_ring("employ", FEW, SOME, SOME)
    if moved < 7 * SOME:
        sys.exit(f"a worker that has outlived its first connection stays on TCP: {moved} bytes went by ring")
    print("ok nor does one that outlives its first connection")


def main():
    role, *numbers = sys.argv[2:] or [None]
    numbers = [int(number) for number in numbers]
    if role == "serve":
        serve()
    elif role == "employ":
        employ(*numbers)
    elif role == "ask":
        ask(*numbers)
    elif shuntd.leave():
        check()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is started")


main()
