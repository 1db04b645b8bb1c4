#!/usr/bin/env python3
"""What it costs a load under Shunt that somebody reads its counters ten times a second.

    watched.py [--pairs 60] [--clients 50,1] [--pipeline 1] [--delay 0.1] [--shunt PATH]

redis-benchmark's GET against redis-server, both under Shunt and on every core, tells each quarter of a second how many requests
it made. One reader at a time, `shunt ss --json --watch`, `shunt top` in a terminal or `shunt metrics` which is asked by a client,
is stopped for half a second and goes on in the next one, or the other way round, by chance (it looks as soon as it goes on, and so five times in half a second). Tells the median ratio of the two, with a
range that holds the true one in 95 of 100 such measurements (order statistics), how often the counters were read (or, by `top`,
shown: a screen has what several looks have found), and the share of a core that the reader, shuntd and this program (which is
the terminal, and who asks for metrics) worked. For "nobody" nothing goes on in either half: that ratio is chance. A "stranger"
has nothing to do with Shunt, and works for a millisecond as often as the others look: what it costs any process does.
Files are in memory: what a disk costs is no part of a look.
Root is needed. Packages: redis-server redis-tools.
"""
import argparse
import contextlib
import fcntl
import json
import math
import os
import pty
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
IN_NAMESPACE = "SHUNT_WATCHED"
PORT = "6379"
# Lines and columns of the terminal.
SIZE = (50, 200)
# More than are made while it is measured.
REQUESTS = "2000000000"


def enter_namespace():
    """A network namespace of our own: its ports are free, and its shuntd serves nobody else."""
    if IN_NAMESPACE not in os.environ:
        words = ["unshare", "--net", "sh", "-e", "-c", 'ip link set lo up; exec "$@"', "sh", "python3", *sys.argv]
        os.execvpe(words[0], words, {**os.environ, IN_NAMESPACE: "1"})


def cpu_of(pid):
    """Seconds of processor time that the threads of a process have had (proc_pid_schedstat(5))."""
    spent = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            spent += int(file.read().split()[0])
    return spent / 1e9


class Reader:
    """Reads the counters while it goes on; `looks` says how often it has, or how often it has shown `what`."""
    process, what = None, "looks"

    def __init__(self, options, directory):
        self.shunt, self.delay, self.directory, self.looks = options.shunt, options.delay, directory, 0

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def cpu(self):
        return cpu_of(self.process.pid)

    def end(self):
        self.process.kill()
        self.process.wait()


class nobody(Reader):
    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.looks = 1

    def go_on(self):
        pass

    stop = end = go_on

    def cpu(self):
        return 0.0


class stranger(Reader):
    """Has nothing to do with Shunt: works for as long as a look and its reader do, and sleeps for the delay."""
    what = "times"
    WORK = (
        "import sys, time\n"
        "while True:\n"
        "    end = time.process_time() + 0.001\n"
        "    while time.process_time() < end:\n"
        "        pass\n"
        "    time.sleep(float(sys.argv[1]))\n"
    )

    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.process = subprocess.Popen([sys.executable, "-c", self.WORK, str(options.delay)])
        self.start = None

    def go_on(self):
        self.start = self.start or self.cpu()
        super().go_on()

    def end(self):
        self.looks = (self.cpu() - self.start) / 0.001
        super().end()


class ss(Reader):
    """Writes into a file: whoever reads a pipe works as well, and is none of Shunt's."""

    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.path = os.path.join(directory, "ss")
        words = [self.shunt, "ss", "--json", f"--watch={self.delay}"]
        with open(self.path, "wb") as file:
            self.process = subprocess.Popen(words, stdout=file)

    def end(self):
        super().end()
        with open(self.path, "rb") as file:
            self.looks = file.read().count(b'"listeners"')


class top(Reader):
    """In a terminal, which a thread of ours reads. What it draws at once is a screen: what comes less than
    a fifth of the delay after the last."""
    what = "screens"

    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        words = [self.shunt, "top", f"--delay={self.delay}"]
        settings = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(words, stdin=end, stdout=end, stderr=end, env=settings, start_new_session=True)
        os.close(end)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        last = 0.0
        with contextlib.suppress(OSError):  # its end is closed
            while True:
                os.read(self.terminal, 1 << 16)
                now = time.monotonic()
                self.looks += now - last > self.delay / 5
                last = now
        os.close(self.terminal)


class metrics(Reader):
    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.path = os.path.join(directory, "metrics")
        self.process = subprocess.Popen([self.shunt, "metrics", f"--listen={self.path}"])
        self.may, self.over = threading.Event(), False
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def go_on(self):
        super().go_on()
        self.may.set()

    def stop(self):
        self.may.clear()

    def read(self):
        """Stays connected, as Prometheus does."""
        while self.may.wait() and not self.over:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as stream:
                stream.connect(self.path)
                while self.may.wait() and not self.over:
                    self.looks += b"shunt_daemon_up 1" in self.ask(stream)
                    time.sleep(self.delay)
            time.sleep(self.delay)

    def ask(self, stream):
        stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"# EOF\n"):
            more = stream.recv(1 << 16)
            if not more:
                raise ConnectionError
            answer += more
        return answer

    def end(self):
        self.over = True
        self.may.set()
        self.thread.join()
        super().end()


READERS = {kind.__name__: kind for kind in (nobody, stranger, ss, top, metrics)}


class Load:
    """redis-benchmark without end, and what it tells of itself."""

    def __init__(self, options, clients):
        words = [options.shunt, "run", "--", "redis-benchmark", "-p", PORT, "-t", "get"]
        words += ["-c", str(clients), "-P", str(options.pipeline), "-n", REQUESTS]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self.text = b""

    def quarter(self):
        """Requests a second since the last quarter was told."""
        while True:
            told = re.search(rb"rps=([\d.]+) [^\r]*\r", self.text)
            if told:
                self.text = self.text[told.end():]
                return float(told[1])
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                raise SystemExit("the load has ended early")
            self.text += more

    def half(self):
        """The same for the last two."""
        return (self.quarter() + self.quarter()) / 2

    def end(self):
        self.process.kill()
        self.process.wait()


def is_shunted(options):
    """Whether each connection's bytes go through rings, most of them so far."""
    told = subprocess.run([options.shunt, "ss", "--json"], check=True, stdout=subprocess.PIPE).stdout
    ways = [connection["bytes"]["to_client"] for connection in json.loads(told)["connections"]]
    return ways and all(way["ring"] > 9 * way["kernel"] for way in ways)


def measure(options, load, reader, daemon):
    """Pairs of rates, watched and unwatched; and seconds of processor time in one of watching: the reader's, shuntd's, ours."""
    pairs, watching, worked = [], 0.0, [0.0] * 3
    spent = lambda: [reader.cpu(), cpu_of(daemon), time.process_time()]
    time.sleep(0.5)
    reader.stop()
    load.quarter()
    for _ in range(options.pairs):
        found = {}
        for watched in random.sample([True, False], 2):
            if watched:
                before, began = spent(), time.monotonic()
                reader.go_on()
            found[watched] = load.half()
            if watched:
                reader.stop()
                watching += time.monotonic() - began
                worked = [sum - earlier + now for sum, earlier, now in zip(worked, before, spent())]
        pairs.append((found[True], found[False]))
    reader.end()
    if not reader.looks:
        raise SystemExit(f"{type(reader).__name__} reads nothing")
    return pairs, reader.looks / watching, [seconds / watching for seconds in worked]


def tell(name, what, pairs, looks, worked):
    ratios = sorted(watched / alone if alone else math.inf for watched, alone in pairs)
    # In 2.5 of 100 cases more values than this are below the true median, and in as many above it.
    out = max(int(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))), 0)
    low, high = ratios[out], ratios[-1 - out]
    alone = statistics.median(rate for _, rate in pairs)
    print(f"  {name}: {alone:.0f} requests a second, watched {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f})", end="")
    if name != "nobody":
        reader, daemon, own = [100 * share for share in worked]
        print(f", {looks:.1f} {what} a second; of a core: reader {reader:.2f} %, shuntd {daemon:.2f} %, this {own:.2f} %", end="")
    print(flush=True)


def wait_for_server():
    listens = f":{int(PORT):04X} 00000000:0000 0A"
    while not any(listens in line for line in open("/proc/net/tcp")):
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60, help="of halves of a second for each reader (60)")
    parser.add_argument("--clients", default="50,1", help="connections of the load, one measurement each (50,1)")
    parser.add_argument("--pipeline", type=int, default=1, help="requests at once on each connection (1)")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds from one look to the next (0.1)")
    parser.add_argument("--readers", default=",".join(READERS), help="which (all)")
    parser.add_argument("--shunt", default=os.path.join(HERE, "../../target/release/shunt"), help="the program shunt")
    options = parser.parse_args()
    enter_namespace()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        daemon = subprocess.Popen([os.path.join(os.path.dirname(options.shunt), "shuntd")])
        words = [options.shunt, "run", "--", "redis-server", "--port", PORT, "--save", "", "--dir", directory]
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            wait_for_server()
            for clients in options.clients.split(","):
                print(f"{clients} clients:", flush=True)
                load = Load(options, clients)
                for _ in range(4):
                    load.quarter()
                for name in options.readers.split(","):
                    reader = READERS[name](options, directory)
                    tell(name, reader.what, *measure(options, load, reader, daemon.pid))
                shunted = is_shunted(options)
                load.end()
                if not shunted:
                    raise SystemExit("too little goes through rings")
        finally:
            for process in (server, daemon):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
