"""Writes values of 1 byte to 1 MiB to redis and reads them back: redis_check.py PORT

Blocking, pipelined, on several connections; exits with 1 on any difference.
"""
import hashlib
import random
import socket
import sys


def command(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def value(seed, size):
    return random.Random(seed).randbytes(size)


def check(port, connection):
    rng = random.Random(connection)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        stream = sock.makefile("rb")

        def line():
            answer = stream.readline()
            if not answer.endswith(b"\r\n") or answer.startswith(b"-"):
                sys.exit(f"redis answered {answer!r}")
            return answer[:-2]

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


for connection in range(4):
    check(int(sys.argv[1]), connection)
