"""Clients of an echo server, all at once, that compare every byte.

    echo_check.py PORT CLIENTS MIB [greet] [sum]

greet: the server first answers some lines with "go"; sum: the CRC-32 of what it got follows its end.
Each client sends while it receives. Once it has got all but the last part it sends that, shuts down its half at
once, and expects the rest and the other's end.
"""
import random
import socket
import sys
import threading
import zlib

PORT, CLIENTS, SIZE = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) << 20
LAST = SIZE // 16
GREET, SUM = "greet" in sys.argv[4:], "sum" in sys.argv[4:]
errors = []


def read(stream, length):
    """Exactly this many bytes."""
    data = bytearray()
    while len(data) < length:
        part = stream.recv(min(length - len(data), 1 << 16))
        if not part:
            raise EOFError(f"end after {len(data)} of {length} bytes")
        data += part
    return bytes(data)


def send(stream, data, sizes):
    at = 0
    while at < len(data):
        size = sizes.choice((1, 100, 4096, 65_536, 300_000))
        stream.sendall(data[at:at + size])
        at += size


def send_all(stream, data, received, number):
    try:
        sizes = random.Random(number)
        send(stream, data[:-LAST], sizes)
        received.wait()
        send(stream, data[-LAST:], sizes)
        stream.shutdown(socket.SHUT_WR)
    except OSError as error:
        errors.append(f"client {number}: send: {error!r}")


def talk(stream, number):
    data = random.Random(number).randbytes(SIZE)
    for _ in range(20 if GREET else 0):
        stream.sendall(b"hello\n")
        if read(stream, 3) != b"go\n":
            raise ValueError("no greeting")
    received = threading.Event()
    sender = threading.Thread(target=send_all, args=(stream, data, received, number))
    sender.start()
    try:
        if read(stream, SIZE - LAST) != data[:-LAST]:
            raise ValueError("other bytes than those sent")
        received.set()
        if read(stream, LAST) != data[-LAST:]:
            raise ValueError("other bytes at the end than those sent")
        if SUM and read(stream, 4) != zlib.crc32(data).to_bytes(4, "big"):
            raise ValueError("the server got other bytes")
        if stream.recv(1):
            raise ValueError("bytes behind the end")
    finally:
        received.set()
        sender.join()


def client(number):
    try:
        with socket.create_connection(("127.0.0.1", PORT)) as stream:
            stream.settimeout(20)
            talk(stream, number)
    except (OSError, EOFError, ValueError) as error:
        errors.append(f"client {number}: {error!r}")


threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for error in errors:
    print(error)
print(f"{CLIENTS} clients, {len(errors)} errors")
sys.exit(1 if errors else 0)
