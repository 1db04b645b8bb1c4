#!/usr/bin/env python3
"""TCP as it is, TCP whose messages a sockmap redirects, and TCP under Shunt, in turn.

    sockmap.py [--rounds 5] [--seconds 1] [--shunt PATH]

Two processes with one connection (`sockmap.c`, which is compiled), both pinned to one core or each to its own: round
trips of 8 bytes and 16 KiB, and a stream of 64 KiB writes, each received whole. Tells medians, with lowest and highest.
Root and `CONFIG_NET_SOCK_MSG` are needed, and a machine that does nothing else. Package: gcc.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
IN_NAMESPACE = "SHUNT_SOCKMAP"
WORK = [("trip", 8, "µs"), ("trip", 16384, "µs"), ("stream", 65536, "MB/s")]


def enter_namespace():
    """A network namespace of our own, in which nobody else's shuntd serves."""
    if IN_NAMESPACE not in os.environ:
        words = ["unshare", "--net", "sh", "-e", "-c", 'ip link set lo up; exec "$@"', "sh", "python3", *sys.argv]
        os.execvpe(words[0], words, {**os.environ, IN_NAMESPACE: "1"})


def is_shunted(path):
    """Whether nearly all bytes of each process that has one connection went through rings."""
    with open(path) as file:
        told = [json.loads(line) for line in file]
    ends = [end for end in told if end["connections"]["total"]]
    moved = lambda end, kind: end["tx"][kind] + end["rx"][kind]
    return len(ends) == 2 and all(moved(end, "ring_bytes") > 9 * moved(end, "kernel_bytes") for end in ends)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--seconds", default="1", help="of each measurement (1)")
    parser.add_argument("--shunt", default=os.path.join(HERE, "../../target/release/shunt"), help="the program shunt")
    options = parser.parse_args()
    enter_namespace()
    with tempfile.TemporaryDirectory() as directory:
        program, counts = os.path.join(directory, "sockmap"), os.path.join(directory, "counts")
        subprocess.run(["gcc", "-O2", "-o", program, os.path.join(HERE, "sockmap.c")], check=True)
        under = [options.shunt, "run", "--stats", counts, "--"]
        sides = {"tcp": ([], "tcp"), "sockmap": ([], "sockmap"), "shunt": (under, "tcp")}
        for place, cores in [("one core", "00"), ("two cores", "01")]:
            for what, size, unit in WORK:
                found = {side: [] for side in sides}
                for _ in range(options.rounds):
                    for side, (before, mode) in sides.items():
                        words = [*before, program, mode, what, str(size), options.seconds, *cores]
                        told = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=60).stdout
                        found[side].append(float(told))
                        if before and not is_shunted(counts):
                            raise SystemExit("too little goes through rings")
                        if before:
                            os.remove(counts)
                line = f"{what} of {size} bytes, {place}, {unit}:"
                for side, values in found.items():
                    line += f"  {side} {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
                print(line, flush=True)


if __name__ == "__main__":
    main()
