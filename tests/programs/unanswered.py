"""A close beside a call that sends the connection back to TCP in vain resets it, as any close before unread bytes.

    unanswered.py SHUNT

Two programs under Shunt have a connection. shuntd is killed, so that nobody lends a descriptor. The client sends a
message and makes no call any more. A thread of the server starts a program, which is to have the connection, and waits
for the message to come by TCP; another thread closes the connection. The client then hears of a reset.
"""
import os
import signal
import threading
import time

import unread


def server():
    connection = unread.accepted()
    connection.set_inheritable(True)
    starter = threading.Thread(target=os.system, args=("true",))
    starter.start()
    # If it has not begun by then, the close is an ordinary one.
    time.sleep(0.3)
    connection.close()
    print("closed", flush=True)
    starter.join()


def client(port):
    connection = unread.connected(port)
    try:
        print("received", connection.recv(64), flush=True)
    except ConnectionResetError:
        print("reset", flush=True)


def killed(daemon, serving, calling):
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    said = []
    for program in (calling, serving, calling):
        program.go_on()
        said.append(program.said())
    return said


def run():
    unread.check(killed, ["sent", "closed", "reset"], "a close beside a call that waits for an answer resets")


unread.main(server, client, run)
