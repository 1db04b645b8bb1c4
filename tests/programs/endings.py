"""However a process ends, and whoever it has become, it leaves one line of statistics.

    endings.py SHUNT DIRECTORY

Each case is a client under `shunt run --stats` that exchanges messages with an echo server
under Shunt and then ends in its way. Its line must say what it did, also if it was idle
since before shuntd was killed and another took its place. Prints one line a case.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time

import shuntd

TRIPS, SIZE, PATIENCE = 1000, 1000, 10
NOBODY = 65534


def exchange(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(TRIPS):
        connection.sendall(b"x" * SIZE)
        left = SIZE
        while left:
            left -= len(connection.recv(left))
    return connection


def die(number):
    os.kill(os.getpid(), number)
    signal.pause()


def idle():
    print("idle", flush=True)
    signal.pause()


def fork_and_die():
    child = os.fork()
    if child == 0:
        die(signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(0)


def become_nobody_and_die():
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    die(signal.SIGKILL)


def leave_the_root_and_die():
    os.chroot("/proc")
    die(signal.SIGKILL)


def close_everything_and_die():
    os.closerange(0, 65536)
    die(signal.SIGKILL)


ENDS = {
    "exit": lambda: sys.exit(0),
    "_exit": lambda: os._exit(0),
    "SIGTERM": lambda: die(signal.SIGTERM),
    "SIGINT": lambda: (signal.signal(signal.SIGINT, signal.SIG_DFL), die(signal.SIGINT)),
    "SIGKILL": lambda: die(signal.SIGKILL),
    "abort": os.abort,
    "fork": fork_and_die,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "close": close_everything_and_die,
}
LATER = {"restart": idle}
ROOTS = {"setuid": become_nobody_and_die, "chroot": leave_the_root_and_die}


def client(port, end):
    connection = exchange(port)
    (ENDS | LATER | ROOTS)[end]()
    del connection


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except ConnectionError:
                pass


def lines(file):
    try:
        return [json.loads(line) for line in open(file)]
    except FileNotFoundError:
        return []


def await_lines(file, how_many):
    """shuntd writes the line of a process that could not; it hears of the end when we do."""
    end = time.monotonic() + PATIENCE
    while len(lines(file)) < how_many and time.monotonic() < end:
        time.sleep(0.01)
    return lines(file)


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def restart_daemon(shunt, known):
    """Kills it, and returns when its successor knows a process."""
    os.kill(shuntd.pid(), signal.SIGKILL)
    wait_until(lambda: shuntd.pid() is None)
    subprocess.check_call([shunt, "run", "true"])
    listed = [shunt, "ss", "--json", "--pid", str(known)]
    wait_until(lambda: json.loads(subprocess.check_output(listed))["connections"])


def main(shunt, directory):
    ends = ENDS | (ROOTS if os.geteuid() == 0 else {})
    if os.geteuid() != 0:
        print("skipped: setuid, chroot (not root)")
    alone = "XTASK_NETNS" in os.environ
    if not alone:
        print("skipped: restart (no network namespace of our own: that shuntd may be in use)")
    failed = 0
    for mode in ("eager", "off"):
        run = [shunt, "run", f"--upgrade={mode}", "--stats"]
        python = ["--", sys.executable, os.path.abspath(__file__)]
        file = os.path.join(directory, f"server.{mode}")
        echo = subprocess.Popen([*run, file, *python, "server"], stdout=subprocess.PIPE)
        port = echo.stdout.readline().decode().strip()

        def judge(name, file, pid, how_many, total):
            got = await_lines(file, how_many)
            first = next((line for line in got if line["pid"] == pid), None)
            good = len(got) == how_many and first is not None
            if good and total is not None:
                good = first["connections"]["total"] == total
                good = good and (first["tx"]["ring_bytes"] > 0) == (mode != "off")
            print("ok" if good else "FAILED", mode, name, "" if good else got, flush=True)
            return not good

        for end in ends:
            file = os.path.join(directory, f"{end}.{mode}")
            with subprocess.Popen([*run, file, *python, "client", port, end]) as child:
                child.wait(60)
            # The program that an exec starts, and a forked child, have lines of their own.
            failed += judge(end, file, child.pid, 2 if end in ("exec", "fork") else 1, 1)
        if alone:
            file = os.path.join(directory, f"restart.{mode}")
            command = [*run, file, *python, "client", port, "restart"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                child.stdout.readline()
                restart_daemon(shunt, child.pid)
                child.kill()
            failed += judge("restart", file, child.pid, 1, 1)
        echo.kill()
        echo.wait()
        failed += judge("server", os.path.join(directory, f"server.{mode}"), echo.pid, 1, None)
    print(f"{failed} failed")
    return failed != 0


if sys.argv[1] == "server":
    server()
elif sys.argv[1] == "client":
    client(int(sys.argv[2]), sys.argv[3])
else:
    sys.exit(main(sys.argv[1], sys.argv[2]))
