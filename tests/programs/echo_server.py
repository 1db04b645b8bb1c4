"""An asyncio echo server: echo_server.py PORT [ADDRESS]. SIGTERM ends it; it prints only what goes wrong."""
import asyncio
import signal
import sys


async def serve(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except Exception as error:  # noqa: BLE001 - reported, and the test fails on any output
        print("server:", repr(error), flush=True)
    finally:
        writer.close()


async def main():
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    server = await asyncio.start_server(serve, address, int(sys.argv[1]), backlog=2048)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with server:
        await stop.wait()


asyncio.run(main())
