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
import tempfile
import time

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
# Of each connection so many messages are a millisecond apart: time enough for whoever would be paired.
PACED = 200
FEW, SOME, MANY = 10, 30, 1000


def echo(connection):
    while message := connection.recv(64):
        connection.sendall(message)


def serve(ways):
    """A child for each connection, or one for all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for way in ways.split(","):
            if way == "all" and os.fork() == 0:
                for _ in range(3):
                    with listener.accept()[0] as connection:
                        echo(connection)
                os._exit(0)
            elif way == "each":
                connection, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    echo(connection)
                    os._exit(0)
                connection.close()
            os.wait()


def ask(port, messages):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(messages):
            message = b"%7d" % number
            connection.sendall(message)
            assert connection.recv(len(message), socket.MSG_WAITALL) == message
            if number < PACED:
                time.sleep(0.001)


def received(way, *connections):
    """What the child, to which so many messages go on each connection, has received through the ring, and its line."""
    with tempfile.TemporaryDirectory() as directory:
        stats = os.path.join(directory, "stats")
        program = ["--", sys.executable, os.path.abspath(__file__), SHUNT]
        command = [SHUNT, "run", "--stats", stats, *program, "serve", way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            port = server.stdout.readline().strip()
            for messages in connections:
                subprocess.run([SHUNT, "run", *program, "ask", port, str(messages)], check=True)
            assert server.wait() == 0
        with open(stats) as file:
            lines = [json.loads(line) for line in file]
        children = [line for line in lines if line["pid"] != server.pid]
        assert len(children) == 1, lines
        return children[0]["rx"]["ring_bytes"], children[0]


def check():
    by_ring, line = received("each", FEW)
    if by_ring != 0 or line["connections"]["total"] != 1:
        sys.exit(f"{FEW} messages to a forked child went by the ring: {line}")
    print("ok a forked child with a short connection stays on TCP")
    by_ring, line = received("each", MANY)
    if by_ring < 7 * MANY // 2:
        sys.exit(f"{MANY} messages to a forked child went by TCP: {line}")
    print("ok a forked child with a long connection does not")
    by_ring, line = received("all", FEW, SOME, SOME)
    if by_ring < 7 * SOME // 2:
        sys.exit(f"the connections of a worker that outlives its first one stay on TCP: {line}")
    print("ok nor does one that outlives its first connection")


def main():
    words = sys.argv[2:]
    if words[:1] == ["serve"]:
        serve(words[1])
    elif words[:1] == ["ask"]:
        ask(int(words[1]), int(words[2]))
    elif shuntd.leave():
        check()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is started")


main()
