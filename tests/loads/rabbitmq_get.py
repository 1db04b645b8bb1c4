"""rabbitmq_get.py PORT SECONDS   100 bytes published, confirmed, and got back; prints how often a second."""
import sys
import time

import pika

connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
channel = connection.channel()
channel.confirm_delivery()
queue = channel.queue_declare("", exclusive=True).method.queue
begin, answers = time.monotonic(), 0
while time.monotonic() - begin < float(sys.argv[2]):
    channel.basic_publish("", queue, bytes(100))
    channel.basic_get(queue, auto_ack=True)
    answers += 1
print(answers / (time.monotonic() - begin))
connection.close()
