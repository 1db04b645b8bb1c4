"""`shunt ss` has a true row for each listener and connection of a program under Shunt.

    listing.py SHUNT

Each case is an echo server and a client that has exchanged messages and stays connected,
with neither, one or both of them under Shunt. Prints one line a case.
"""
import json
import os
import socket
import subprocess
import sys

TRIPS, SIZE = 3000, 1000


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)


def client(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(TRIPS):
        connection.sendall(b"x" * SIZE)
        left = SIZE
        while left:
            left -= len(connection.recv(left))
    print("done", flush=True)
    sys.stdin.read()


def row_of(rows, port):
    return next((row for row in rows if row["local"].endswith(f":{port}")), None)


def main(shunt):
    python = [sys.executable, os.path.abspath(__file__)]
    failed = 0
    for mode in ("eager", "adaptive"):
        run = [shunt, "run", f"--upgrade={mode}", "--"]
        for ends in ("both", "server", "client"):
            under = {"server": ends != "client", "client": ends != "server"}
            start = lambda end, *words: subprocess.Popen(
                [*(run if under[end] else []), *python, end, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            with start("server") as echo:
                port = echo.stdout.readline().strip()
                with start("client", port) as peer:
                    peer.stdout.readline()
                    listing = json.loads(subprocess.check_output([shunt, "ss", "--json"]))
                    row = row_of(listing["connections"], port)
                    listener = row_of(listing["listeners"], port)
                    peer.stdin.close()
            pids = {p["end"]: p["pid"] for p in row["processes"]} if row else {}
            here = {"server": echo.pid, "client": peer.pid}
            good = row and all(pids.get(end) == here[end] for end in here if under[end])
            good = good and (listener is not None) == under["server"]
            if good and ends == "both":
                moved = row["bytes"]["to_server"]
                good = row["path"] == "shm" and row["reason"] is None
                good = good and sum(moved.values()) == TRIPS * SIZE and moved["ring"] > 0
            elif good:
                good = row["path"] == "tcp" and row["reason"] == "PEER_PLAIN"
            failed += not good
            print(f"{'ok' if good else 'FAILED'} {mode} {ends}", "" if good else listing, flush=True)
    print(f"{failed} failed")
    return failed != 0


if sys.argv[1] == "server":
    server()
elif sys.argv[1] == "client":
    client(int(sys.argv[2]))
else:
    sys.exit(main(sys.argv[1]))
