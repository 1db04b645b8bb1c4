"""Writes values of 1 byte to 1 MiB to redis and reads them back: redis_check.py PORT [ADDRESS PAUSE]

Blocking, pipelined, on several connections; exits with 1 on any difference. With a pause (in seconds) each connection
begins with a hundred requests so far apart: it is paired by then, however busy the machine is.
"""
import hashlib
import random
import socket
import sys
import time


def command(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def value(seed, size):
    return random.Random(seed).randbytes(size)


def check(connection):
    rng = random.Random(connection)
    with socket.create_connection((address, port), timeout=30) as sock:
        stream = sock.makefile("rb")

        def line():
            answer = stream.readline()
            if not answer.endswith(b"\r\n") or answer.startswith(b"-"):
                sys.exit(f"redis answered {answer!r}")
            return answer[:-2]

        for _ in range(100 if pause else 0):
            time.sleep(pause)
            sock.sendall(command(b"PING"))
            if line() != b"+PONG":
                sys.exit("PING failed")
        # Sizes around powers of two, then random ones; each key on its own.
        sizes = [1 << bit for bit in range(21)]
        sizes += [size + rng.choice((-1, 1)) for size in sizes[1:-1]]
        sizes += [int(2 ** rng.uniform(0, 20)) for _ in range(20)]
        rng.shuffle(sizes)
        for number, size in enumerate(sizes):
            key = b"check:%d:%d" % (connection, number)
            sock.sendall(command(b"SET", key, value(number, size)))
            if line() != b"+OK":
                sys.exit("SET failed")
            sock.sendall(command(b"GET", key))
            if line() != b"$%d" % size:
                sys.exit(f"GET of {size} bytes: wrong length")
            got = stream.read(size + 2)[:-2]
            if hashlib.sha256(got).digest() != hashlib.sha256(value(number, size)).digest():
                sys.exit(f"GET of {size} bytes: wrong bytes")
        # Many small ones in one write, answers read afterwards.
        batch = range(2000)
        sock.sendall(b"".join(command(b"SET", b"p:%d:%d" % (connection, i), value(i, i % 97 + 1)) for i in batch))
        for _ in batch:
            line()
        sock.sendall(b"".join(command(b"GET", b"p:%d:%d" % (connection, i)) for i in batch))
        for i in batch:
            if line() != b"$%d" % (i % 97 + 1) or stream.read(i % 97 + 3)[:-2] != value(i, i % 97 + 1):
                sys.exit("pipelined GET: wrong bytes")
        stream.close()


port = int(sys.argv[1])
address, pause = (sys.argv[2], float(sys.argv[3])) if sys.argv[2:] else ("127.0.0.1", 0)
for connection in range(4):
    check(connection)
