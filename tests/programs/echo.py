"""Echo servers: with a thread, or a child, for each connection."""
import os
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
