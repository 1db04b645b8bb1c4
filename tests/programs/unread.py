"""Two programs under Shunt, one of which leaves bytes unread in shared memory.

A program that imports this is started anew as `--server` and as `--client PORT`, and each does its part as it is told.
"""
import os
import socket
import subprocess
import sys
import time

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
DAEMON = os.path.join(os.path.dirname(SHUNT), "shuntd")
PATIENCE = 20
TRIPS = 200


def talk(connection, first):
    """Until the connection is in shared memory."""
    for _ in range(TRIPS):
        if first:
            connection.sendall(b"x" * 64)
        assert connection.recv(64, socket.MSG_WAITALL) == b"x" * 64
        if not first:
            connection.sendall(b"x" * 64)
    print("talked", flush=True)


def await_order():
    os.read(0, 1)


def accepted():
    """The server's end of the connection, when it is told to go on."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    talk(connection, False)
    await_order()
    return connection


def connected(port):
    """The client's end, when it has sent what the server does not read, and is told to go on."""
    connection = socket.create_connection(("127.0.0.1", port))
    talk(connection, True)
    await_order()
    connection.sendall(b"unread")
    print("sent", flush=True)
    await_order()
    return connection


class Program:
    def __init__(self, *words):
        line = [SHUNT, "run", "--upgrade=eager", "--", sys.executable, os.path.abspath(sys.argv[0]), SHUNT, *words]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("x")
        self.process.stdin.flush()


def start_daemon():
    daemon = subprocess.Popen([DAEMON, "--linger", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while shuntd.pid() != daemon.pid and time.monotonic() < end:
        time.sleep(0.01)
    return daemon


def check(act, expected, success):
    """Has both programs talk. `act` gets the daemon and both, makes them go on and returns what they said."""
    daemon = start_daemon()
    serving = Program("--server")
    calling = Program("--client", serving.said())
    said = [serving.said(), calling.said()]
    if said != ["talked", "talked"]:
        sys.exit(f"they did not talk: {said}")
    said = act(daemon, serving, calling)
    for program in (serving, calling):
        program.process.wait()
    daemon.terminate()
    daemon.wait()
    if said != expected:
        sys.exit(f"it went otherwise: {said}")
    print(f"ok {success}")


def main(server, client, run):
    words = sys.argv[2:]
    if words and words[0] == "--server":
        server()
    elif words:
        client(int(words[1]))
    elif shuntd.leave():
        run()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is stopped or killed")
