"""Gets files by HTTP on one connection and compares them with its own: nginx_check.py PORT ADDRESS PAUSE FILE...

Both ends have the same files. It begins with a hundred requests for the last one so far apart (in seconds): the
connection is paired by then, however busy the machine is. Exits with 1 on any difference.
"""
import http.client
import sys
import time

port, address, pause, *files = sys.argv[1:]
connection = http.client.HTTPConnection(address, int(port), timeout=30)


def get(path):
    connection.request("GET", path)
    answer = connection.getresponse()
    got = answer.read()
    with open(path, "rb") as file:
        if answer.status != 200 or got != file.read():
            sys.exit(f"{path}: status {answer.status}, {len(got)} bytes, not those of the file")


for _ in range(100):
    time.sleep(float(pause))
    get(files[-1])
for path in files * 3:
    get(path)
