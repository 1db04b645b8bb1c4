"""A server that forks for each connection has only those of its children come to shuntd whose connections live.

    forking.py SHUNT

In the default mode a forked child that exchanges a few messages stays on TCP, and has no memory to give back when it ends; one
that exchanges many moves to shared memory.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
FEW, MANY = 10, 1000


def serve():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for _ in (FEW, MANY):
            connection, _ = listener.accept()
            child = os.fork()
            if child == 0:
                listener.close()
                while message := connection.recv(64):
                    connection.sendall(message)
                connection.close()
                sys.exit()
            connection.close()
            os.waitpid(child, 0)


def ask(port, messages):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(messages):
            message = b"%7d" % number
            connection.sendall(message)
            assert connection.recv(len(message), socket.MSG_WAITALL) == message


def check():
    with tempfile.TemporaryDirectory() as directory:
        stats = os.path.join(directory, "stats")
        under = [SHUNT, "run", "--stats", stats, "--", sys.executable, os.path.abspath(__file__), SHUNT]
        server = subprocess.Popen([*under, "serve"], stdout=subprocess.PIPE, text=True)
        port = server.stdout.readline().strip()
        for messages in (FEW, MANY):
            subprocess.run([*under[:2], *under[4:], "ask", port, str(messages)], check=True)
        assert server.wait() == 0
        with open(stats) as file:
            lines = [json.loads(line) for line in file]
        children = [line for line in lines if line["pid"] != server.pid]
        assert len(children) == 2, lines
        rings = [line["rx"]["ring_bytes"] for line in children]
    if rings[0] != 0:
        sys.exit(f"{FEW} messages to a forked child went by the ring: {children[0]}")
    print("ok a forked child with a short connection stays on TCP")
    if rings[1] < 7 * MANY // 2:
        sys.exit(f"{MANY} messages to a forked child went by TCP: {children[1]}")
    print("ok a forked child with a long connection does not")


def main():
    words = sys.argv[2:]
    if words[:1] == ["serve"]:
        serve()
    elif words[:1] == ["ask"]:
        ask(int(words[1]), int(words[2]))
    elif shuntd.leave():
        check()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is started")


main()
