"""zmq_ping.py serve ADDRESS, or ask ADDRESS SECONDS   100 bytes there and back by ZeroMQ; prints how often a second.

An ADDRESS is one of ZeroMQ's (ipc:///run/ping), or a port of 127.0.0.1.
"""
import sys
import time

import zmq

address = sys.argv[2] if "://" in sys.argv[2] else "tcp://127.0.0.1:" + sys.argv[2]
context = zmq.Context()
if sys.argv[1] == "serve":
    server = context.socket(zmq.REP)
    server.bind(address)
    while True:
        server.send(server.recv())
client = context.socket(zmq.REQ)
client.connect(address)
begin, answers = time.monotonic(), 0
while time.monotonic() - begin < float(sys.argv[3]):
    client.send(bytes(100))
    client.recv()
    answers += 1
print(answers / (time.monotonic() - begin))
