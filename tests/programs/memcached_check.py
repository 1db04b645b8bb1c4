"""Writes values of 1 byte to 1,000,000 bytes to memcached and reads them back: memcached_check.py PORT [ADDRESS PAUSE]

Exits with 1 on any difference. With a pause (in seconds) each connection begins with a hundred requests so far apart:
it is paired by then, however busy the machine is.
"""
import random
import socket
import sys
import time


def check(connection):
    rng = random.Random(connection)
    with socket.create_connection((address, port), timeout=30) as sock:
        stream = sock.makefile("rb")
        for _ in range(100 if pause else 0):
            time.sleep(pause)
            sock.sendall(b"mn\r\n")
            if stream.readline() != b"MN\r\n":
                sys.exit("no answer to `mn`")
        sizes = [1 << bit for bit in range(20)] + [1_000_000]
        sizes += [int(2 ** rng.uniform(0, 19)) for _ in range(40)]
        rng.shuffle(sizes)
        wanted = {}
        for number, size in enumerate(sizes):
            key = b"check:%d:%d" % (connection, number)
            wanted[key] = random.Random(number).randbytes(size)
            sock.sendall(b"set %s 7 0 %d\r\n%s\r\n" % (key, size, wanted[key]))
            answer = stream.readline()
            if answer != b"STORED\r\n":
                sys.exit(f"set of {size} bytes: {answer!r}")
            sock.sendall(b"get %s\r\n" % key)
            answer = stream.readline()
            if answer != b"VALUE %s 7 %d\r\n" % (key, size):
                sys.exit(f"get of {size} bytes: {answer!r}")
            if stream.read(size + 2)[:-2] != wanted[key]:
                sys.exit(f"get of {size} bytes: wrong bytes")
            if stream.readline() != b"END\r\n":
                sys.exit("no END")
        small = [b"small:%d" % i for i in range(1000)]
        sock.sendall(b"".join(b"set %s 0 0 %d noreply\r\n%s\r\n" % (k, len(k), k) for k in small))
        sock.sendall(b"get %s\r\n" % b" ".join(small[:50]))
        for key in small[:50]:
            if stream.readline() != b"VALUE %s 0 %d\r\n" % (key, len(key)) or stream.readline() != key + b"\r\n":
                sys.exit("multi-get: wrong bytes")
        if stream.readline() != b"END\r\n":
            sys.exit("no END")
        stream.close()


port = int(sys.argv[1])
address, pause = (sys.argv[2], float(sys.argv[3])) if sys.argv[2:] else ("127.0.0.1", 0)
for connection in range(4):
    check(connection)
