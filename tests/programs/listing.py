"""`shunt ss` has a true row for each listener and connection of a program under Shunt.

    listing.py SHUNT

Each case is an echo server and a client that has exchanged messages and stays connected,
with one or both of them under Shunt, one client with another user since before it connected;
or a server that accepts and closes so many connections while shuntd stands still that not
all it has to say finds room. Prints one line a case.
"""
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys

import shuntd

TRIPS, SIZE = 3000, 1000
# Connections that shuntd is to pair before it stands still, and while it does.
FIRST, BURST = 400, 1200
# A connection is claimed in the last of them at the latest.
ROUNDS = 3
NOBODY = 65534
# Its number is the same on every architecture.
PIDFD_GETFD = 438


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)


def client(port):
    connection = socket.socket()  # Nobody may not import what names need.
    connection.connect(("127.0.0.1", port))
    for _ in range(TRIPS):
        connection.sendall(b"x" * SIZE)
        left = SIZE
        while left:
            left -= len(connection.recv(left))
    print(os.getpid(), flush=True)
    sys.stdin.read()


def crowd():
    """A server that is told to accept, to close, to listen elsewhere, and to echo."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    connections, listeners = [], [listener]
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        order, count = line.split()
        if order == "accept":
            new = [listener.accept()[0] for _ in range(int(count))]
            for _ in range(ROUNDS):
                for connection in new:
                    connection.sendall(connection.recv(1))
            connections += new
        elif order == "close":
            for connection in connections[:int(count)]:
                connection.close()
            del connections[:int(count)]
        elif order == "listen":
            listeners.append(socket.create_server(("127.0.0.1", 0)))
        else:
            connection, _ = listeners[-1].accept()
            while data := connection.recv(65536):
                connection.sendall(data)
        print(listeners[-1].getsockname()[1], flush=True)


def copies_descriptors():
    """Whether the kernel lets a process copy descriptors, which a container may refuse."""
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    own = os.pidfd_open(os.getpid())
    copy = system_call(PIDFD_GETFD, own, own, 0)
    os.close(own)
    if copy < 0:
        return False
    os.close(copy)
    return True


def burst(shunt, mode):
    """What is wrong after a burst, or nothing."""
    run = [shunt, "run", f"--upgrade={mode}", "--"]
    python = [sys.executable, os.path.abspath(__file__)]
    command = [*run, *python, "crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        port = int(server.stdout.readline())

        def tell(order, count=0):
            print(order, count, file=server.stdin, flush=True)

        def ordered(order, count=0):
            tell(order, count)
            return server.stdout.readline().strip()

        def connect(count):
            new = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            for connection in new:
                connection.sendall(b"x" * ROUNDS)
            connections.extend(new)
            ordered("accept", count)

        def listing_after(*orders):
            """What is listed when shuntd goes on after that."""
            os.kill(still, signal.SIGSTOP)
            try:
                answers = [order() for order in orders]
            finally:
                os.kill(still, signal.SIGCONT)
            return *listing(), answers[-1]

        def listing():
            listed = json.loads(subprocess.check_output([shunt, "ss", "--json"]))
            pids = lambda row: [end["pid"] for end in row["processes"]]
            return ([row for row in listed["connections"] if server.pid in pids(row)],
                    [row for row in listed["listeners"] if row["pid"] == server.pid])

        connections, wrong = [], []
        connect(FIRST)
        listing()  # All that has been said so far has been read.
        still = shuntd.pid()
        rows, listeners, _ = listing_after(lambda: connect(BURST))
        if len(rows) != FIRST + BURST or len(listeners) != 1:
            wrong.append(f"{len(rows)} connections and {len(listeners)} listeners after the burst")
        rows, listeners, other = listing_after(lambda: ordered("close", FIRST), lambda: ordered("listen"))
        if len(rows) != BURST or len(listeners) != 2:
            wrong.append(f"{len(rows)} connections and {len(listeners)} listeners after they were closed")
        # A later call says what is due, so that the other listener's connections are paired.
        ordered("close", 1)
        tell("echo")
        with subprocess.Popen([*run, *python, "client", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
            peer.stdout.readline()
            rows, _ = listing()
            peer.stdin.close()
        if [row["path"] for row in rows if row["local"].endswith(f":{other}")] != ["shm"]:
            wrong.append("a connection to the later listener is not shunted")
        if len(rows) != BURST:
            wrong.append(f"{len(rows)} connections at last")
        server.stdin.close()
    return ", ".join(wrong)


def guest(port):
    """As nobody, in a child that has to find shuntd anew."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    child = os.fork()
    if child == 0:
        client(port)
        os._exit(0)
    os.waitpid(child, 0)


def row_of(rows, port):
    return next((row for row in rows if row["local"].endswith(f":{port}")), None)


def main(shunt):
    python = [sys.executable, os.path.abspath(__file__)]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    guests = True
    if os.geteuid() != 0:
        guests = False
        print("skipped: guest (not root)")
    elif not copies_descriptors():
        guests = False
        print("skipped: guest (pidfd_getfd is refused: shuntd cannot look at a process of another user)")
    failed = 0
    for mode in ("eager", "adaptive"):
        run = [shunt, "run", f"--upgrade={mode}", "--"]
        for ends in ("both", "server", "client", "guest")[:4 if guests else 3]:
            under = {"server": ends != "client", "client": ends != "server"}
            start = lambda end, *words: subprocess.Popen(
                [*(run if under[end] else []), *python, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            with start("server", "server") as echo:
                port = echo.stdout.readline().strip()
                with start("client", "guest" if ends == "guest" else "client", port) as peer:
                    connected = int(peer.stdout.readline())
                    listing = json.loads(subprocess.check_output([shunt, "ss", "--json"]))
                    row = row_of(listing["connections"], port)
                    listener = row_of(listing["listeners"], port)
                    peer.stdin.close()
            pids = {p["end"]: p["pid"] for p in row["processes"]} if row else {}
            here = {"server": echo.pid, "client": connected}
            good = row and all(pids.get(end) == here[end] for end in here if under[end])
            good = good and (listener is not None) == under["server"]
            if good and ends == "both":
                moved = row["bytes"]["to_server"]
                good = row["path"] == "shm" and row["reason"] is None
                good = good and sum(moved.values()) == TRIPS * SIZE and moved["ring"] > 0
            elif good:
                reason = "OTHER_USER" if ends == "guest" else "PEER_PLAIN"
                good = row["path"] == "tcp" and row["reason"] == reason
            failed += not good
            print(f"{'ok' if good else 'FAILED'} {mode} {ends}", "" if good else listing, flush=True)
        wrong = burst(shunt, mode)
        failed += wrong != ""
        print(f"{'FAILED' if wrong else 'ok'} {mode} burst", wrong, flush=True)
    print(f"{failed} failed")
    return failed != 0


if sys.argv[1] == "server":
    server()
elif sys.argv[1] == "crowd":
    crowd()
elif sys.argv[1] in ("client", "guest"):
    globals()[sys.argv[1]](int(sys.argv[2]))
else:
    sys.exit(main(sys.argv[1]))
