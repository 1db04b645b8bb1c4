"""ZeroMQ with numbered, checked messages.

    zmq_check.py serve PORT PULL   answers requests with their hash; what is pushed to PULL is counted and
                                   hashed, and told on request; SIGTERM ends it
    zmq_check.py load PORT PULL    asks and pushes, both checked
"""
import hashlib
import random
import signal
import sys
import threading

import zmq

ASKED, PUSHED = 5000, 40_000


def body(number):
    """Small messages mostly, now and then a large one."""
    size = 100_000 if number % 1000 == 999 else number % 500
    return random.Random(number).randbytes(size) + number.to_bytes(4, "big")


def serve(port, pull_port):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    context = zmq.Context()
    answers, pull = context.socket(zmq.REP), context.socket(zmq.PULL)
    pull.bind(f"tcp://127.0.0.1:{pull_port}")
    answers.bind(f"tcp://127.0.0.1:{port}")
    hashed = {}
    poller = zmq.Poller()
    poller.register(answers, zmq.POLLIN)
    poller.register(pull, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if pull in ready:
            name, data = pull.recv_multipart()
            state = hashed.setdefault(name, [0, hashlib.sha256()])
            state[0] += 1
            state[1].update(data)
        if answers in ready:
            kind, data = answers.recv_multipart()
            if kind == b"hash":
                answers.send(hashlib.sha256(data).digest())
            else:
                count, digest = hashed.get(data, (0, hashlib.sha256()))
                answers.send_multipart([str(count).encode(), digest.digest()])


def connect(context, kind, port):
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.setsockopt(zmq.SNDTIMEO, 20_000)
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def push(context, pull_port, name):
    """Returns when all messages have been handed to ZeroMQ."""
    socket = connect(context, zmq.PUSH, pull_port)
    for number in range(PUSHED):
        socket.send_multipart([name, body(number)])
    socket.close()


def check_pushed(request, name):
    """Asks until the server has all, which it then must have in order."""
    wanted = hashlib.sha256()
    for number in range(PUSHED):
        wanted.update(body(number))
    while True:
        request.send_multipart([b"pushed", name])
        count, digest = request.recv_multipart()
        if int(count) == PUSHED:
            return digest == wanted.digest()


def load(port, pull_port):
    context = zmq.Context()
    request = connect(context, zmq.REQ, port)
    pusher = threading.Thread(target=push, args=(context, pull_port, b"one"))
    pusher.start()
    errors = 0
    for number in range(ASKED):
        data = body(number)
        request.send_multipart([b"hash", data])
        errors += request.recv() != hashlib.sha256(data).digest()
    pusher.join()
    errors += not check_pushed(request, b"one")
    request.close()
    context.term()
    print(f"{ASKED} answers, {PUSHED} pushed, {errors} errors")
    return errors != 0


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), int(sys.argv[3]))
else:
    sys.exit(load(int(sys.argv[2]), int(sys.argv[3])))
