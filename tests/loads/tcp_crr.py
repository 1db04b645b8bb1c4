#!/usr/bin/env python3
"""What it costs plain TCP connections that shuntd has the kernel write down the end of each handshake.

    tcp_crr.py [--rounds 60] [--seconds 1] [--processors 0,0] [--control] [--shuntd PATH]

netperf's TCP_CRR (connect, one byte each way, close) without Shunt: in each round once while no `shuntd --system` runs
and once while one does, in an order that changes. Tells the medians of connections a second and of their ratio in each
round, with the halves of the ratios around it. With --control no shuntd is started in either: the ratio is chance.
Root is needed, and a machine that does nothing else. Package: netperf (Debian's non-free).
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
IN_NAMESPACE = "SHUNT_TCP_CRR"


def enter_namespace():
    """A network namespace of our own, in which closed connections keep no ports. netperf asks getaddrinfo, which knows
    no IPv4 where the only address is 127.0.0.1."""
    if IN_NAMESPACE not in os.environ:
        script = 'ip link set lo up; ip addr add 10.0.0.1/32 dev lo; echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets; exec "$@"'
        words = ["unshare", "--net", "sh", "-e", "-c", script, "sh", "python3", *sys.argv]
        os.execvpe(words[0], words, {**os.environ, IN_NAMESPACE: "1"})


class Daemon:
    """A shuntd that serves nobody, for as long as a `with` block lasts."""

    def __init__(self, program, directory):
        self.log = os.path.join(directory, "log")
        configuration = os.path.join(directory, "shunt.toml")
        open(configuration, "w").close()
        socket = os.path.join(directory, "run/socket")
        self.words = [program, "--system", "--verbose", "--socket", socket, "--config", configuration]

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.words, stderr=log)
        deadline = time.monotonic() + 10
        while "ends are paired by" not in (said := open(self.log).read()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"shuntd does not serve: {said}")
            time.sleep(0.01)
        if "mirrored sequence numbers" not in said:
            raise SystemExit(f"shuntd attaches no eBPF program: {said}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def wait_for_netserver():
    listens = ":3241 00000000:0000 0A"  # port 12865
    while not any(listens in line for line in open("/proc/net/tcp")):
        time.sleep(0.01)


def rate(options):
    words = ["netperf", "-H", "127.0.0.1", "-t", "TCP_CRR", "-l", str(options.seconds), "-P", "0", "-v", "0"]
    if options.processors:
        words += ["-T", options.processors]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def measure(options, daemon):
    without, beside = [], []
    rate(options)  # warms up
    for number in range(options.rounds):
        for is_beside in (False, True) if number % 2 else (True, False):
            if is_beside and not options.control:
                with daemon:
                    beside.append(rate(options))
            else:
                (beside if is_beside else without).append(rate(options))
    return without, beside


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="number of pairs (60)")
    parser.add_argument("--seconds", type=int, default=1, help="how long each takes (1)")
    parser.add_argument("--processors", help="of netperf and of netserver, such as 0,0 (any)")
    parser.add_argument("--control", action="store_true", help="start no shuntd: how much of the ratio is chance")
    parser.add_argument("--shuntd", default=os.path.join(HERE, "../../target/release/shuntd"), help="the program shuntd")
    options = parser.parse_args()
    enter_namespace()
    server = subprocess.Popen(["netserver", "-D", "-L", "127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        wait_for_netserver()
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            without, beside = measure(options, Daemon(options.shuntd, directory))
    finally:
        server.kill()
        server.wait()
    ratios = [b / a for a, b in zip(without, beside)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    names = ("first", "second") if options.control else ("without", "beside shuntd")
    print(f"connections a second: {names[0]} {statistics.median(without):.0f}, {names[1]} {statistics.median(beside):.0f}")
    print(f"ratio {middle:.4f} (half of the rounds {low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
