"""What connections cost beside their bytes: addresses and memory, and that both are given back.

    capacity.py SHUNT

A server and a client, both under Shunt, with one connection, with many, under a limit of
addresses, and after the many are closed. Prints one line a case.
"""
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time

SHUNT = os.path.abspath(sys.argv[1])
MANY, EACH = 60, 3 << 20
PATIENCE = 30
MIB = 1 << 20
MESSAGE = bytes(range(100))


def status(field, pid="self"):
    """Of a process, in bytes."""
    with open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def receive(connection, size):
    left = size
    while left:
        data = connection.recv(min(left, 1 << 16))
        if not data:
            return False
        left -= len(data)
    return True


def echo(connection):
    with connection:
        while receive(connection, len(MESSAGE)):
            connection.sendall(MESSAGE)


def serve():
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], os.getpid(), flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def talk(connection, times=1):
    for _ in range(times):
        connection.sendall(MESSAGE)
        if not receive(connection, len(MESSAGE)):
            raise RuntimeError("the server has gone")


def fill(connection):
    """Sends much and reads no answer until both rings are as full as they get."""
    def send():
        for _ in range(EACH // len(MESSAGE)):
            connection.sendall(MESSAGE)

    writer = threading.Thread(target=send)
    writer.start()
    writer.join(0.02)
    receive(connection, EACH // len(MESSAGE) * len(MESSAGE))
    writer.join()


def is_shared(connections):
    """Talks until this process sees pages of the rings of all, both ways, beside its counters."""
    end = time.monotonic() + PATIENCE
    while status("RssShmem") <= len(connections) * 2 * 4096 + 20_000:
        if time.monotonic() > end:
            return False
        for connection in connections:
            talk(connection)
    return True


def few(port, server):
    before = status("VmSize")
    connection = socket.create_connection(("127.0.0.1", port))
    if not is_shared([connection]):
        return "nothing is shared"
    grown = status("VmSize") - before
    if grown > 300 * MIB:
        return f"{grown // MIB} MiB of addresses for one connection"
    return None


def many(port, server):
    kept = socket.create_connection(("127.0.0.1", port))
    talk(kept, 20)
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(MANY)]
    for connection in connections:
        talk(connection, 10)
    for connection in connections:
        fill(connection)
    most = [status("RssShmem"), status("RssShmem", server)]
    for connection in connections:
        connection.close()
    end = time.monotonic() + PATIENCE
    while True:
        talk(kept, 5)
        now = [status("RssShmem"), status("RssShmem", server)]
        # What lies beside the one that is kept stays.
        if max(now) * 3 < min(most):
            break
        if time.monotonic() > end:
            return f"{[n // MIB for n in now]} MiB stay of {[n // MIB for n in most]}"
        time.sleep(0.1)
    again = [socket.create_connection(("127.0.0.1", port)) for _ in range(MANY)]
    for connection in again:
        talk(connection, 20)
    talk(kept)
    return None


def limited(port, server):
    resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000,) * 2)
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(MANY)]
    for connection in connections:
        talk(connection, 20)
    if not is_shared(connections):
        return "nothing is shared"
    if not bytearray(2_100_000_000):
        return "no room is left for the program"
    return None


CASES = {case.__name__: case for case in (few, many, limited)}


def run(case, runtime):
    environment = dict(os.environ, XDG_RUNTIME_DIR=runtime)
    command = [SHUNT, "run", "--", sys.executable, os.path.abspath(__file__), SHUNT]
    server = subprocess.Popen([*command, "serve"], env=environment, stdout=subprocess.PIPE)
    try:
        port, pid = server.stdout.readline().split()
        client = [*command, "client", case, port.decode(), pid.decode()]
        done = subprocess.run(client, env=environment, stdout=subprocess.PIPE, timeout=120)
        said = done.stdout.decode().strip()
        return said or f"the client ended with {done.returncode}"
    finally:
        server.kill()
        server.wait()


def main():
    failed = False
    with tempfile.TemporaryDirectory() as runtime:
        for case in CASES:
            said = run(case, runtime)
            failed |= said != "ok"
            print("ok" if said == "ok" else "FAILED", case, "" if said == "ok" else said, flush=True)
    sys.exit(failed)


if sys.argv[2:3] == ["serve"]:
    serve()
elif sys.argv[2:3] == ["client"]:
    print(CASES[sys.argv[3]](int(sys.argv[4]), sys.argv[5]) or "ok", flush=True)
else:
    main()
