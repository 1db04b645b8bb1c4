"""zookeeper_get.py PORT SECONDS   100 bytes read from ZooKeeper; prints how often a second."""
import sys
import time

from kazoo.client import KazooClient

client = KazooClient("127.0.0.1:" + sys.argv[1])
client.start()
node = client.create("/node-", bytes(100), ephemeral=True, sequence=True)
begin, answers = time.monotonic(), 0
while time.monotonic() - begin < float(sys.argv[2]):
    client.get(node)
    answers += 1
print(answers / (time.monotonic() - begin))
client.stop()
