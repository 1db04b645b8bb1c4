"""Nodes that are made, changed, watched and forgotten by two clients: zookeeper_check.py PORT

Exits with 1 on any difference.
"""
import queue
import random
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError, NodeExistsError

NODES, CHANGES = 300, 300


def check(right, what):
    if not right:
        sys.exit(f"wrong: {what}")


def refused(error, call, *words):
    try:
        call(*words)
    except error:
        return True
    return False


def value(number):
    """Small ones mostly, now and then nearly as much as ZooKeeper takes."""
    size = 900_000 if number % 100 == 99 else number % 700
    return random.Random(number).randbytes(size)


def connect():
    client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=30)
    client.start(timeout=30)
    return client


def check_values(one, other):
    one.create("/values")
    made = [one.create_async(f"/values/{number}", value(number)) for number in range(NODES)]
    check([result.get(30) for result in made] == [f"/values/{number}" for number in range(NODES)], "names")
    got = [other.get_async(f"/values/{number}") for number in range(NODES)]
    for number, result in enumerate(got):
        check(result.get(30)[0] == value(number), f"value {number}")
    check(len(other.get_children("/values")) == NODES, "children")
    check(refused(NodeExistsError, other.create, "/values/0"), "a node made twice")
    check(refused(NoNodeError, other.get, "/values/none"), "a node that is not there")


def check_watches(one, other):
    """Each change is told to the other client once, which asks again and finds it."""
    events = queue.Queue()
    one.create("/watched", b"0")
    for number in range(CHANGES):
        data, status = other.get("/watched", watch=events.put)
        check(data == b"%d" % number and status.version == number, f"change {number}")
        one.set("/watched", b"%d" % (number + 1), version=number)
        event = events.get(timeout=30)
        check((event.type, event.path) == ("CHANGED", "/watched"), event)
    check(refused(BadVersionError, one.set, "/watched", b"", 0), "a change of another version")
    check(events.empty(), "one event more")


def check_ephemeral(one, other):
    """They end with their session."""
    events = queue.Queue()
    for number in range(10):
        name = one.create("/ephemeral-", ephemeral=True, sequence=True)
        check(name.startswith("/ephemeral-"), name)
    check(other.exists(name, watch=events.put).ephemeralOwner == one.client_id[0], "owner")
    one.stop()
    event = events.get(timeout=30)
    check((event.type, event.path) == ("DELETED", name), event)
    left = [name for name in other.get_children("/") if name.startswith("ephemeral-")]
    check(not left, left)


one, other = connect(), connect()
check_values(one, other)
check_watches(one, other)
check_ephemeral(one, other)
other.stop()
print(f"{NODES} nodes, {CHANGES} changes")
