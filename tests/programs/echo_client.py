"""Many clients of echo_server.py at once: echo_client.py PORT CLIENTS MESSAGES [ADDRESS]

Every client sends messages of random sizes and contents and compares what
comes back. All are connected before the first one sends.
"""
import asyncio
import random
import sys

PORT, CLIENTS, MESSAGES = map(int, sys.argv[1:4])
ADDRESS = sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1"
errors = 0
messages = 0


async def client(number, connected, start):
    global errors, messages
    rng = random.Random(number)
    try:
        reader, writer = await asyncio.open_connection(ADDRESS, PORT)
        connected.release()
        await start.wait()
        for _ in range(MESSAGES):
            sent = rng.randbytes(int(2 ** rng.uniform(0, 14)))
            writer.write(sent)
            await writer.drain()
            got = await reader.readexactly(len(sent))
            if got != sent:
                raise ValueError(f"client {number}: other bytes came back")
            messages += 1
        if number % 2:
            writer.write_eof()
            if await reader.read() != b"":
                raise ValueError(f"client {number}: bytes after the last message")
        writer.close()
        await writer.wait_closed()
    except Exception as error:  # noqa: BLE001 - counted and printed
        errors += 1
        connected.release()
        print("client", number, repr(error), flush=True)


async def main():
    connected = asyncio.Semaphore(0)
    start = asyncio.Event()
    tasks = []
    for number in range(CLIENTS):
        tasks.append(asyncio.create_task(client(number, connected, start)))
    for _ in range(CLIENTS):
        await connected.acquire()
    start.set()
    await asyncio.gather(*tasks)


asyncio.run(main())
print(f"{CLIENTS} clients, {messages} messages, {errors} errors")
sys.exit(1 if errors else 0)
