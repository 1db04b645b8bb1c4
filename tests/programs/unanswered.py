"""A close beside a call that sends the connection back to TCP in vain resets it, as any close before unread bytes.

    unanswered.py SHUNT

Two programs under Shunt have a connection. shuntd is killed, so that nobody lends a descriptor. The client sends a
message and makes no call any more. A thread of the server starts a program, which is to have the connection, and waits
for the message to come by TCP; another thread closes the connection. The client then hears of a reset.
"""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
DAEMON = os.path.join(os.path.dirname(SHUNT), "shuntd")
PATIENCE = 20
TRIPS = 200


def talk(connection, first):
    for _ in range(TRIPS):
        if first:
            connection.sendall(b"x" * 64)
        assert connection.recv(64, socket.MSG_WAITALL) == b"x" * 64
        if not first:
            connection.sendall(b"x" * 64)


def await_order():
    os.read(0, 1)


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.set_inheritable(True)
    talk(connection, False)
    print("talked", flush=True)
    await_order()
    starter = threading.Thread(target=os.system, args=("true",))
    starter.start()
    # If it has not begun by then, the close is an ordinary one.
    time.sleep(0.3)
    connection.close()
    print("closed", flush=True)
    starter.join()


def client(port):
    connection = socket.create_connection(("127.0.0.1", port))
    talk(connection, True)
    print("talked", flush=True)
    await_order()
    connection.sendall(b"unread")
    print("sent", flush=True)
    await_order()
    try:
        print("received", connection.recv(64), flush=True)
    except ConnectionResetError:
        print("reset", flush=True)


class Program:
    def __init__(self, *words):
        line = [SHUNT, "run", "--upgrade=eager", "--", sys.executable, os.path.abspath(__file__), SHUNT, *words]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("x")
        self.process.stdin.flush()


def check():
    daemon = subprocess.Popen([DAEMON, "--linger", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while shuntd.pid() != daemon.pid and time.monotonic() < end:
        time.sleep(0.01)
    serving = Program("--server")
    calling = Program("--client", serving.said())
    said = [serving.said(), calling.said()]
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    calling.go_on()
    said.append(calling.said())
    serving.go_on()
    said.append(serving.said())
    calling.go_on()
    said.append(calling.said())
    for program in (serving, calling):
        program.process.wait()
    if said != ["talked", "talked", "sent", "closed", "reset"]:
        sys.exit(f"it went otherwise: {said}")
    print("ok a close beside a call that waits for an answer resets")


def main():
    words = sys.argv[2:]
    if words and words[0] == "--server":
        server()
    elif words:
        client(int(words[1]))
    elif shuntd.leave():
        check()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is killed")


main()
