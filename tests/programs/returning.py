"""A connection that went back to TCP for a reason that has passed is shunted again.

    returning.py SHUNT

A client talks to an echo server, both under Shunt. What sends the connection back to TCP: another
program that has it for a while (`system`, `fork` and `exec`, an `exec` that the kernel gives up),
and `shunt downgrade`. (An `exec` of a file that is not there changes nothing.) While the other program has it, it stays on TCP; after that `shunt ss` shows
it in shared memory again, and its bytes go there. Prints one line a case.
"""
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

from echo import serve

SHUNT = os.path.abspath(sys.argv[1])
PATIENCE = 20
MESSAGE = bytes(range(100))
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def talk(connection, times=1):
    for _ in range(times):
        connection.sendall(MESSAGE)
        data = b""
        while len(data) < len(MESSAGE):
            data += connection.recv(len(MESSAGE) - len(data))
        if data != MESSAGE:
            raise RuntimeError("other bytes came back")


def row():
    """Path, reason and bytes by ring of the one connection."""
    # The program that lists it must not have it, or start one that may.
    shown = subprocess.run([SHUNT, "ss", "--json"], capture_output=True, env=PLAIN, close_fds=True)
    one = json.loads(shown.stdout)["connections"][0]
    return one["path"], one.get("reason"), one["bytes"]["to_server"]["ring"]


def until(connection, path, ring=-1):
    """Talks until the path is that, and more than `ring` bytes went by ring."""
    end = time.monotonic() + PATIENCE
    while True:
        talk(connection, 20)
        now = row()
        if now[0] == path and now[2] > ring or time.monotonic() > end:
            return now


def follow(connection, path):
    """Talks until the path is that: a wish is heard by a call that is about to wait."""
    end = time.monotonic() + PATIENCE
    while True:
        talk(connection)
        now = row()
        if now[0] == path or time.monotonic() > end:
            return now


def by_system(connection):
    os.system("true")


def by_exec(connection):
    child = os.fork()
    if child == 0:
        os.execv("/bin/true", ["true"])
    os.waitpid(child, 0)


def fail_to_execute(path, expected):
    try:
        os.execv(path, ["nobody"])
    except OSError as error:
        assert error.errno == expected


def by_failed_exec(connection):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"no program")
        file.flush()
        os.fchmod(file.fileno(), 0o755)
        fail_to_execute(file.name, errno.ETXTBSY)


def by_vain_exec(connection):
    fail_to_execute("/nonexistent", errno.ENOENT)
    fail_to_execute("/dev/null", errno.EACCES)
    fail_to_execute("/dev/null/program", errno.ENOTDIR)


def by_downgrade(connection):
    name = "%s:%d" % connection.getsockname()
    subprocess.run([SHUNT, "downgrade", name], env=PLAIN, stdout=subprocess.DEVNULL, check=True)


def by_holder(connection):
    """A program has it until it is told to end."""
    holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    talk(connection, 400)
    time.sleep(0.3)
    talk(connection, 400)
    path, _, before = row()
    talk(connection, 50)
    if row()[2] != before:
        path = "shm"
    holder.communicate()
    if path != "tcp":
        raise RuntimeError("it was shunted while another program had it")


WAYS = [by_system, by_exec, by_failed_exec, by_vain_exec, by_downgrade, by_holder]
# Of these the connection hears nothing.
STAYS = [by_vain_exec]


def client(port):
    """Runs under Shunt; says what it saw of each way."""
    connection = socket.create_connection(("127.0.0.1", int(port)))
    os.set_inheritable(connection.fileno(), True)
    first = until(connection, "shm")
    print("first", *first, flush=True)
    for way in WAYS:
        for turn in range(2):
            before = until(connection, "shm")
            way(connection)
            path = "shm" if way in STAYS else "tcp"
            after = follow(connection, path)
            back = until(connection, "shm", after[2])
            good = before[0] == "shm" and after[0] == path and back[0] == "shm" and back[2] > after[2]
            print("good" if good else "wrong", way.__name__, turn, before, after, back, flush=True)


def case(mode):
    words = [SHUNT, "run", f"--upgrade={mode}", "--", sys.executable, os.path.abspath(__file__), SHUNT]
    server = subprocess.Popen([*words, "--serve"], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip()
    done = subprocess.run([*words, "--client", port], capture_output=True, text=True)
    server.kill()
    server.wait()
    lines = [line for line in done.stdout.splitlines() if line.split()[0] in ("good", "wrong")]
    wrong = 0
    for line in lines:
        word, rest = line.split(maxsplit=1)
        wrong += word == "wrong"
        print("ok" if word == "good" else "FAILED", mode, rest if word == "wrong" else " ".join(rest.split()[:2]))
    if done.returncode != 0 or len(lines) != 2 * len(WAYS):
        print("FAILED", mode, done.stdout, done.stderr)
        wrong += 1
    return wrong


def main():
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        return sum(case(mode) for mode in ("eager", "adaptive"))


if "--serve" in sys.argv:
    serve()
elif "--client" in sys.argv:
    client(sys.argv[-1])
else:
    sys.exit(1 if main() else 0)
