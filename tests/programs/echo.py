"""Echo servers: with a thread, or a child, for each connection, or one thread for all that sleeps in poll or select."""
import os
import select
import socket
import threading


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


def serve():
    """Says its port on standard output first."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def serve_by_forks():
    """Answers ten messages before a child takes the connection over."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        for _ in range(10):
            connection.sendall(connection.recv(65536))
        if os.fork() == 0:
            listener.close()
            echo(connection)
            os._exit(0)
        connection.close()


def serve_by_poll():
    def wait(there):
        poll = select.poll()
        for one in there:
            poll.register(one, select.POLLIN)
        ready = {number for number, _ in poll.poll()}
        return [one for one in there if one.fileno() in ready]

    serve_alone(wait)


def serve_by_select():
    serve_alone(lambda there: select.select(there, [], [])[0])


def serve_alone(wait):
    """In one thread: none but the call in which it sleeps can bring a connection to shared memory meanwhile."""
    there = [socket.create_server(("127.0.0.1", 0))]
    print(there[0].getsockname()[1], flush=True)
    while True:
        for one in wait(there):
            if one is there[0]:
                there.append(one.accept()[0])
            elif data := one.recv(65536):
                one.sendall(data)
            else:
                there.remove(one)
                one.close()
