"""zmq_ping.py serve PORT, or ask PORT SECONDS   100 bytes there and back by ZeroMQ; prints how often a second."""
import sys
import time

import zmq

context = zmq.Context()
if sys.argv[1] == "serve":
    server = context.socket(zmq.REP)
    server.bind("tcp://127.0.0.1:" + sys.argv[2])
    while True:
        server.send(server.recv())
client = context.socket(zmq.REQ)
client.connect("tcp://127.0.0.1:" + sys.argv[2])
begin, answers = time.monotonic(), 0
while time.monotonic() - begin < float(sys.argv[3]):
    client.send(bytes(100))
    client.recv()
    answers += 1
print(answers / (time.monotonic() - begin))
