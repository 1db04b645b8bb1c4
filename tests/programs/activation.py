"""A service manager holds the socket of shuntd, and starts it; then another shuntd takes its place (an upgrade).

    activation.py SHUNT

Two programs under Shunt have a connection in shared memory. shuntd ends, or is killed, while they use it, and one from another
file is started with the same socket, at once or only after connections have been made that wait for it. The old
connection goes on in shared memory, with all of its bytes, and the others come there. Prints one line a case.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from echo import serve
import shuntd
from successor import PLAIN, SHUNT, DAEMON, path, talk, until

HERE = os.path.dirname(os.path.abspath(__file__))


def client(port):
    """Makes a connection, or uses one, for each line that it is told: `make`, or its number."""
    connections = []
    for line in sys.stdin:
        if line.strip() == "make":
            connections.append(socket.create_connection(("127.0.0.1", port)))
            number = len(connections) - 1
        else:
            number = int(line)
        talk(connections[number], 200)
        print(connections[number].getsockname()[1], flush=True)


def listen():
    """Where clients of this user look."""
    with open(os.path.join(HERE, "../../packaging/user/shuntd.socket")) as unit:
        name = re.search(r"^ListenSequentialPacket=@(.*)$", unit.read(), re.MULTILINE)[1]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name.replace("%U", str(os.geteuid())))
    listener.listen(128)
    return listener


def start_daemon(program, listener):
    """As a manager does: the socket is descriptor 3."""

    # `Popen` would take the environment before the number of the process is known.
    pid = os.fork()
    if pid == 0:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)  # It may have been that number.
        os.execv(program, [program])
    return pid


def end(pid, how):
    os.kill(pid, how)
    os.waitpid(pid, 0)


def case(mode, how, late):
    words = [SHUNT, "run", f"--upgrade={mode}", "--", sys.executable, os.path.abspath(__file__), SHUNT]
    with tempfile.TemporaryDirectory() as directory:
        other = shutil.copy(DAEMON, os.path.join(directory, "shuntd"))
        listener = listen()
        daemon = start_daemon(DAEMON, listener)
        server = subprocess.Popen([*words, "--serve"], stdout=subprocess.PIPE, text=True)
        port = server.stdout.readline().strip()
        peer = subprocess.Popen([*words, "--client", port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def tell(word):
            print(word, file=peer.stdin, flush=True)
            return peer.stdout.readline().strip()

        def is_shunted(number, made):
            return tell(number) == made and path(made) == "shm"

        first = tell("make")
        good = until(lambda: is_shunted(0, first))
        end(daemon, how)
        if not late:
            daemon = start_daemon(other, listener)
        # Who knocks at a socket that nobody serves yet waits for no answer.
        second = tell("make")
        good &= tell(0) == first
        if late:
            daemon = start_daemon(other, listener)
        good &= until(lambda: is_shunted(1, second))
        good &= until(lambda: is_shunted(0, first))
        third = tell("make")
        good &= until(lambda: is_shunted(2, third))
        print("ok" if good else "FAILED", mode, signal.Signals(how).name, "late" if late else "at once", flush=True)
        for process in (peer, server):
            process.kill()
            process.wait()
        end(daemon, signal.SIGKILL)
        listener.close()
    return not good


def main():
    if shuntd.pid() is not None and not shuntd.leave():
        print("skipped: another shuntd serves this user here")
        return 0
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["XDG_RUNTIME_DIR"] = PLAIN["XDG_RUNTIME_DIR"] = runtime
        ways = [(how, late) for how in (signal.SIGTERM, signal.SIGKILL) for late in (False, True)]
        return sum(case(mode, *way) for mode in ("eager", "adaptive") for way in ways)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    elif "--client" in sys.argv:
        client(int(sys.argv[-1]))
    else:
        sys.exit(1 if main() else 0)
