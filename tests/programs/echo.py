"""An echo server, with a thread for each connection."""
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
