"""No data call waits until a late shuntd has let a program in.

    welcome.py SHUNT

shuntd is stopped. A client in the default mode, the first connection of its process, sends messages to a server that is
not under Shunt. Natively none of these calls sleeps, and none does here: its connection goes on by TCP.
"""
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import shuntd

SHUNT = os.path.abspath(sys.argv[1])
DAEMON = os.path.join(os.path.dirname(SHUNT), "shuntd")
PATIENCE = 20
MESSAGES = 64


def sleeps():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def client(port):
    print("begun", flush=True)
    os.read(0, 1)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        before = sleeps()
        for _ in range(MESSAGES):
            connection.sendall(b"x")
        print(sleeps() - before, flush=True)


def run(under, port):
    """How often a client slept."""
    line = [*under, sys.executable, os.path.abspath(__file__), SHUNT, str(port)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "begun"
        daemon = shuntd.pid()
        os.kill(daemon, signal.SIGSTOP)
        process.stdin.write("x")
        process.stdin.close()
        slept = process.stdout.readline().strip()
        os.kill(daemon, signal.SIGCONT)
        return int(slept)


def check():
    daemon = subprocess.Popen([DAEMON, "--linger", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while shuntd.pid() != daemon.pid and time.monotonic() < end:
        time.sleep(0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        natively, shunted = run([], port), run([SHUNT, "run", "--"], port)
    daemon.kill()
    daemon.wait()
    if (natively, shunted) != (0, 0):
        sys.exit(f"calls that slept: {natively} natively, {shunted} under Shunt")
    print("ok no call waits for the welcome")


def main():
    words = sys.argv[2:]
    if words:
        client(int(words[0]))
    elif shuntd.leave():
        check()
    else:
        print("skipped: no network namespace of its own, in which nobody needs the shuntd that is stopped")


main()
