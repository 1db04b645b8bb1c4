"""Messages that are published with confirms, and got by a consumer beside it and one by one: rabbitmq_check.py PORT

Exits with 1 on any difference.
"""
import concurrent.futures
import random
import socket
import sys

import pika

STREAMED, ASKED = 2000, 200


def woken_by():
    """Instead of pika's own, a TCP connection to itself: both its ends are under Shunt where only the client is."""
    pair = socket.socketpair()
    for one in pair:
        one.setblocking(False)
    return pair


def body(number):
    """Small messages mostly, now and then one of many frames."""
    size = 300_000 if number % 500 == 499 else number % 700
    return random.Random(number).randbytes(size)


def connect():
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1]), blocked_connection_timeout=30))


def publish():
    """Returns when the broker has confirmed every message: without that `basic_publish` fails."""
    with connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(STREAMED):
            channel.basic_publish("", "stream", body(number), mandatory=True)


def consume(channel):
    errors = 0
    for number, (method, _, got) in enumerate(channel.consume("stream", inactivity_timeout=30)):
        if method is None:
            sys.exit(f"no message {number}")
        errors += got != body(number)
        channel.basic_ack(method.delivery_tag)
        if number + 1 == STREAMED:
            break
    channel.cancel()
    return errors


def ask(channel):
    errors = 0
    channel.confirm_delivery()
    for number in range(ASKED):
        channel.basic_publish("", "asked", body(number), mandatory=True)
        errors += channel.basic_get("asked", auto_ack=True)[2] != body(number)
    return errors + (channel.basic_get("asked") != (None, None, None))


pika.compat._nonblocking_socketpair = woken_by
with connect() as connection:
    channel = connection.channel()
    for queue in ("stream", "asked"):
        channel.queue_declare(queue)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        publisher = threads.submit(publish)
        errors = consume(channel)
        publisher.result()
    errors += ask(channel)
    errors += channel.queue_declare("stream", passive=True).method.message_count
print(f"{STREAMED + ASKED} messages, {errors} errors")
sys.exit(errors != 0)
