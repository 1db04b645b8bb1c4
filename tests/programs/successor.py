"""A claim that shuntd does not live to answer is made again to the one that comes after it.

    successor.py SHUNT

A client under Shunt has a connection to an echo server. shuntd is killed, or stopped and then killed, one or two
are made and used meanwhile, and a shuntd comes, of whom the server need not have heard when the client makes
thousands of calls on it. `shunt ss` shows the connections that have been made since in shared memory once they are used,
without any other being made. Nor is a claim lost that lies unread while the server forks: the child makes it again; nor
that of a server of one thread that sleeps in poll or select from before shuntd is gone until its successor serves.
Prints one line a case.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from echo import serve, serve_by_forks, serve_by_poll, serve_by_select
import shuntd

SHUNT = os.path.abspath(sys.argv[1])
DAEMON = os.path.join(os.path.dirname(SHUNT), "shuntd")
PATIENCE = 20
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def talk(connection, times):
    for _ in range(times):
        connection.sendall(b"x" * 64)
        assert connection.recv(64, socket.MSG_WAITALL) == b"x" * 64


def client(port):
    """Makes a connection, uses the last one or closes it, for each line that it is told."""
    connections = []
    print("begun", flush=True)
    for line in sys.stdin:
        if line.strip() == "close":
            connections.pop().close()
            print("closed", flush=True)
            continue
        if line.strip() == "make":
            connections.append(socket.create_connection(("127.0.0.1", port)))
        talk(connections[-1], 5000 if line.strip() == "use much" else 200)
        print(connections[-1].getsockname()[1], flush=True)


def start_daemon():
    daemon = subprocess.Popen([DAEMON, "--linger", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert until(lambda: shuntd.pid() == daemon.pid), "another shuntd serves here"
    return daemon


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def path(port):
    """Of the connection from that port."""
    shown = subprocess.run([SHUNT, "ss", "--json"], capture_output=True, env=PLAIN)
    for one in json.loads(shown.stdout)["connections"]:
        if f"127.0.0.1:{port}" in (one["local"], one["peer"]):
            return one["path"]
    return None


SERVERS = {"threads": serve, "forks": serve_by_forks, "poll": serve_by_poll, "select": serve_by_select}


def case(mode, stopped=False, busy=False, twice=False, server="threads"):
    forks = server == "forks"
    words = [SHUNT, "run", f"--upgrade={mode}", "--", sys.executable, os.path.abspath(__file__), SHUNT]
    first = start_daemon()
    serving = subprocess.Popen([*words, "--serve", server], stdout=subprocess.PIPE, text=True)
    port = serving.stdout.readline().strip()
    peer = subprocess.Popen([*words, "--client", port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # `shunt run` would start another shuntd if it found none.
    assert peer.stdout.readline().strip() == "begun"

    def tell(word):
        print(word, file=peer.stdin, flush=True)
        return peer.stdout.readline().strip()

    # Both are known to shuntd from here on, and may be to its successor.
    tell("make")
    if server in ("poll", "select"):
        # Beside one that is shunted, poll and select would be the library's.
        tell("close")
    if stopped:
        # The claim is made, and lies unread.
        first.send_signal(signal.SIGSTOP)
        made = tell("make")
        first.send_signal(signal.SIGCONT if forks else signal.SIGKILL)
    else:
        first.kill()
        first.wait()
        if twice:
            # Both processes know from here on that shuntd is gone.
            tell("make")
        made = tell("make")
    if forks:
        second = first
    else:
        first.wait()
        second = start_daemon()
    if busy:
        tell("use much")

    def is_shunted():
        tell("use")
        return path(made) == "shm"

    good = until(is_shunted)
    words = [word for word, there in (("stopped", stopped), ("busy", busy), ("twice", twice)) if there]
    print("ok" if good else "FAILED", mode, server, *words, path(made), flush=True)
    for process in (peer, serving, second):
        process.kill()
        process.wait()
    return not good


def main():
    if shuntd.pid() is not None and not shuntd.leave():
        print("skipped: another shuntd serves this user here")
        return 0
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        cases = [{}, {"twice": True}, {"stopped": True}, {"stopped": True, "busy": True}, {"stopped": True, "server": "forks"}]
        cases += [{"stopped": stopped, "server": server} for server in ("poll", "select") for stopped in (False, True)]
        return sum(case(mode, **how) for mode in ("eager", "adaptive") for how in cases)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        SERVERS[sys.argv[-1]]()
    elif "--client" in sys.argv:
        client(int(sys.argv[-1]))
    else:
        sys.exit(1 if main() else 0)
