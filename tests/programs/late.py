"""A shuntd that gets no processor for a while still brings what lies unread, to a program without Shunt.

    late.py SHUNT

Two programs under Shunt have a connection. The client sends a message and makes no call any more. shuntd is stopped.
The server starts a program without Shunt that inherits the connection and receives the message. After some seconds
shuntd goes on.
"""
import os
import signal
import subprocess
import sys
import time

import unread

# Longer than anybody waits for a shuntd that refuses.
LATE = 4.5

RECEIVES = """
import socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
connection.settimeout(10)
try:
    print(connection.recv(64).decode(), flush=True)
except TimeoutError:
    print("nothing", flush=True)
"""


def server():
    number = unread.accepted().detach()
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SHUNT", "LD_PRELOAD"))}
    line = [sys.executable, "-c", RECEIVES, str(number)]
    subprocess.run(line, env=plain, pass_fds=[number], check=True)


def client(port):
    unread.connected(port)


def late(daemon, serving, calling):
    calling.go_on()
    said = [calling.said()]
    daemon.send_signal(signal.SIGSTOP)
    serving.go_on()
    time.sleep(LATE)
    daemon.send_signal(signal.SIGCONT)
    said.append(serving.said())
    calling.go_on()
    return said


def run():
    unread.check(late, ["sent", "unread"], "a late shuntd brings what lies unread")


unread.main(server, client, run)
