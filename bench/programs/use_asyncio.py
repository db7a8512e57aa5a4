"""asyncio: tasks, a subprocess, a server on the loopback and one on a Unix socket, a thread."""

import asyncio
import sys


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A line back in capitals."""
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Its answer."""
    writer.write(b"hello\n")
    line = await reader.readline()
    writer.close()
    return line


async def main() -> None:
    """All of it at once."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "print(input()[::-1])"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(b"abc\n")
    assert (output, process.returncode) == (b"cba\n", 0)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        asked = [ask(*await asyncio.open_connection(host, port)) for _ in range(20)]
        assert await asyncio.gather(*asked) == [b"HELLO\n"] * 20
    async with await asyncio.start_unix_server(answer, "socket"):
        assert await ask(*await asyncio.open_unix_connection("socket")) == b"HELLO\n"

    assert await asyncio.to_thread(sum, range(10)) == 45
    naps = [asyncio.sleep(0.05, number) for number in range(1000)]
    print(sum(await asyncio.gather(*naps)))


asyncio.run(main())
