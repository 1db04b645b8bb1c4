"""Why a connection is not shunted whose other end is out of reach: in another network namespace, or
another user's.

    elsewhere.py SHUNT

Makes network namespaces, joined by a bridge, and users. Each case is an echo server and a client
that stays connected; whichever of them runs under Shunt must have the case's reason in `shunt ss`
and, when it has ended or was killed, in its line of statistics. Prints one line a case.
"""
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

TRIPS, SIZE, PATIENCE = 100, 100, 10
INSIDE = "ELSEWHERE_INSIDE"
CLONE_NEWNET = 0x40000000
# Nobody has these numbers; no name is needed.
ONE, OTHER = 61001, 61002
BRIDGE, BRIDGE6, HOST = "10.77.0.1", "fd77::1", "10.78.0.1"


def server(host, port=0):
    listener = socket.create_server((host, int(port)), family=family(host))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)


def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def exchange(connection):
    """Once, and again for each line of input."""
    again = True
    while again:
        for _ in range(TRIPS):
            connection.sendall(b"x" * SIZE)
            left = SIZE
            while left:
                left -= len(connection.recv(left))
        print("exchanged", flush=True)
        again = sys.stdin.readline()


def client(host, port, own="0"):
    connection = socket.socket(family(host))  # Not all users may import what names need.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if own != "0":
        connection.bind((host, int(own)))
    connection.connect((host, int(port)))
    exchange(connection)


def hidden(host):
    """A client in a namespace that no process lives in: its socket alone does."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    print("away", flush=True)
    port = int(sys.stdin.readline())
    connection = socket.create_connection((host, port))
    if libc.setns(home, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    exchange(connection)


def ip(words, within=None):
    enter = ["nsenter", f"--net=/proc/{within}/ns/net", "--"] if within else []
    subprocess.check_call([*enter, "ip", *words.split()])


def join(pid, number):
    """Puts an interface into a process's network namespace, on our bridge."""
    ip(f"link add v{number} type veth peer name eth0 netns {pid}")
    ip(f"link set v{number} master bridge up")
    ip("link set lo up", pid)
    ip("link set eth0 up", pid)
    ip(f"address add 10.77.0.{number}/24 dev eth0", pid)
    ip(f"route add default via {BRIDGE}", pid)


class Container:
    """A network namespace with a process in it."""

    def __init__(self, number, v6):
        command = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # Now it is there.
        self.address = f"10.77.0.{number}"
        join(self.process.pid, number)
        if v6:
            ip(f"address add fd77::{number}/64 dev eth0 nodad", self.process.pid)

    def enter(self):
        return ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--"]


class End:
    """Where, as whom and how one end of a connection runs."""

    def __init__(self, under=True, within=None, user=None):
        self.under, self.within, self.user = under, within, user

    def command(self, words):
        enter = self.within.enter() if self.within else []
        user = self.user
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
        return [*enter, *become, *words]


class Place:
    """A directory that every user may read: copies of Shunt's files, and of this one."""

    def __init__(self, shunt, directory):
        os.chmod(directory, 0o755)
        for name in ("shunt", "shuntd", "libshunt.so"):
            shutil.copy(os.path.join(os.path.dirname(os.path.abspath(shunt)), name), directory)
        self.script = shutil.copy(os.path.abspath(__file__), directory)
        self.shunt = os.path.join(directory, "shunt")
        self.daemon = os.path.join(directory, "shuntd")
        self.lines = os.path.join(directory, "lines")
        os.mkdir(self.lines)
        os.chmod(self.lines, 0o1777)
        self.failed = 0
        self.served = set()

    def serve(self, end):
        """Has a shuntd run for such ends, and waits until it answers: a program waits less."""
        key = (end.within, end.user)
        if end.under and key not in self.served:
            self.served.add(key)
            subprocess.check_call(end.command([self.shunt, "run", "--", "true"]), cwd="/")
            self.row(end, 0)

    def start(self, end, mode, stats, *words):
        self.serve(end)
        run = [self.shunt, "run", f"--upgrade={mode}", *(["--stats", stats] if stats else []), "--"]
        command = [*(run if end.under else []), sys.executable, self.script, *words]
        return subprocess.Popen(end.command(command), cwd="/", text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def row(self, end, port):
        listed = subprocess.check_output(end.command([self.shunt, "ss", "--json"]), cwd="/")
        rows = json.loads(listed)["connections"]
        return next((row for row in rows if port in (port_of(row["local"]), port_of(row["peer"]))), None)

    def await_reason(self, end, port, reason):
        """What is wrong, or nothing."""
        last = None

        def is_right():
            nonlocal last
            last = self.row(end, port)
            return last is not None and (last["path"], last["reason"]) == ("tcp", reason)
        return "" if wait_until(is_right) else f"listed as {last}; "

    def case(self, name, host, reason, server, client, ports=(0, 0)):
        for mode in ("eager", "adaptive"):
            for stats in (False, True):
                wrong = self.connection(mode, host, reason, server, client, ports, stats)
                self.failed += wrong != ""
                what = f"{mode} {'statistics' if stats else 'ss'} {name}"
                print("FAILED" if wrong else "ok", what, wrong, flush=True)

    def connection(self, mode, host, reason, server, client, ports, stats):
        """What is wrong with such a connection, or nothing. The server is killed at the end."""
        files = [tempfile.mktemp(dir=self.lines) if stats else None for _ in "sc"]
        with self.start(server, mode, files[0], "server", host, str(ports[0])) as listens:
            port = listens.stdout.readline().strip()
            with self.start(client, mode, files[1], "client", host, port, str(ports[1])) as connects:
                connects.stdout.readline()
                wrong = "".join(self.await_reason(end, int(port), reason)
                                for end in (server, client) if end.under)
                if mode == "adaptive":
                    # What is known stays known. Else neither makes another call.
                    print(file=connects.stdin, flush=True)
                    connects.stdout.readline()
                listens.kill()
                connects.stdin.close()
        for end, file in zip((server, client), files):
            if end.under and stats:
                wrong += await_line(file, reason)
        return wrong

    def unseen(self):
        """A namespace where shuntd sees nobody might as well be on another host."""
        end = End()
        for mode in ("eager", "adaptive"):
            with self.start(end, mode, None, "server", BRIDGE) as listens:
                port = listens.stdout.readline().strip()
                with self.start(End(under=False), mode, None, "hidden", BRIDGE) as connects:
                    connects.stdout.readline()
                    join(connects.pid, 9)
                    print(port, file=connects.stdin, flush=True)
                    connects.stdout.readline()
                    wrong = self.await_reason(end, int(port), "NOT_LOCAL")
                    connects.stdin.close()
            self.failed += wrong != ""
            print("FAILED" if wrong else "ok", mode, "unseen", wrong, flush=True)

    def twins(self, one):
        """The same loopback addresses in another namespace are another connection."""
        ports = (17001, 17002)
        with self.start(End(under=False, within=one), "off", None, "server", "127.0.0.1", str(ports[0])) as listens:
            listens.stdout.readline()
            words = ["client", "127.0.0.1", str(ports[0]), str(ports[1])]
            with self.start(End(under=False, within=one), "off", None, *words) as connects:
                connects.stdout.readline()
                self.case("twins", "127.0.0.1", "PEER_PLAIN", End(), End(under=False), ports)
                connects.stdin.close()


def port_of(address):
    return int(address.rpartition(":")[2])


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def await_line(file, reason):
    """What is wrong with the one line, or nothing. shuntd writes that of who is killed."""
    lines = []

    def is_there():
        nonlocal lines
        lines = [json.loads(line) for line in open(file)]
        return lines
    wait_until(is_there)
    return "" if [line["reasons"] for line in lines] == [{reason: 1}] else f"counted as {lines}; "


def containers(place, root):
    ip("link add bridge type bridge")
    ip("link set bridge up")
    ip(f"address add {BRIDGE}/24 dev bridge")
    ip(f"address add {HOST}/32 dev lo")
    v6 = os.path.exists("/proc/net/if_inet6")
    if v6:
        ip(f"address add {BRIDGE6}/64 dev bridge nodad")
    else:
        print("skipped: IPv6")
    one, two = Container(2, v6), Container(3, v6)
    plain, there = End(under=False, within=one), End(within=one)
    expect = lambda name, host, server, client: place.case(name, host, "OTHER_NAMESPACE", server, client)
    expect("from a container", BRIDGE, End(), plain)
    expect("to a container", one.address, plain, End())
    expect("host address", HOST, End(), plain)
    expect("both under Shunt", BRIDGE, End(), there)
    expect("between containers", two.address, End(within=two), there)
    if v6:
        expect("IPv6", BRIDGE6, End(), plain)
    if root:
        # Its shuntd may not look into other users' processes.
        expect("a user's", BRIDGE, End(user=ONE), plain)
    place.unseen()
    place.twins(one)
    for container in (one, two):
        container.process.stdin.close()
        container.process.wait()


def users(place, alone):
    expect = lambda name, client: place.case(name, "127.0.0.1", "OTHER_USER", End(user=ONE), client)
    expect("two users", End(user=OTHER))
    expect("another user without Shunt", End(under=False, user=OTHER))
    expect("root without Shunt", End(under=False))
    if not alone:
        print("skipped: shuntd --system (no network namespace to be had)")
        return
    ready, told = os.pipe()
    command = [place.daemon, "--system", "--ready-fd", str(told)]
    with subprocess.Popen(command, pass_fds=[told], cwd="/") as daemon:
        os.close(told)
        os.read(ready, 1)
        place.served.clear()
        expect("shuntd --system", End(user=OTHER))
        daemon.terminate()


def can(*command):
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return shutil.which(command[0]) and subprocess.run(command, **quiet).returncode == 0


def main(shunt):
    root = os.geteuid() == 0
    unshare = ["unshare", *([] if root or INSIDE in os.environ else ["--map-root-user"]), "--net", "--"]
    if INSIDE not in os.environ and can(*unshare, "true"):
        os.environ[INSIDE] = "root" if root else "user"
        os.execvp("unshare", [*unshare, sys.executable, os.path.abspath(__file__), shunt])
    alone = INSIDE in os.environ
    root = root and os.environ.get(INSIDE) != "user"
    with tempfile.TemporaryDirectory() as directory:
        place = Place(shunt, directory)
        if not alone:
            print("skipped: namespaces (no network namespace to be had)")
        elif not can(*unshare, "ip", "link", "add", "v1", "type", "veth", "peer", "name", "v2"):
            ip("link set lo up")
            print("skipped: namespaces (no veth interfaces)")
        else:
            ip("link set lo up")
            containers(place, root)
        if root and can("setpriv", f"--reuid={ONE}", f"--regid={ONE}", "--clear-groups", "true"):
            users(place, alone)
        else:
            print("skipped: users (not root, or no setpriv)")
    print(f"{place.failed} failed")
    return place.failed != 0


if sys.argv[1] in ("server", "client", "hidden"):
    globals()[sys.argv[1]](*sys.argv[2:])
else:
    sys.exit(main(sys.argv[1]))
