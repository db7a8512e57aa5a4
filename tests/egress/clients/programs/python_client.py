"""`python_client.py LIBRARY URL...`: what a Python client gets of each URL, a line each."""

import asyncio
import sys

sys.path.insert(0, "/workspace/libraries.zip")


def main(library: str, *urls: str) -> None:
    for url in urls:
        try:
            said = READERS[library](url)
        except Exception as error:  # noqa: BLE001 - whatever a person would be shown
            said = f"{type(error).__name__}: {error}"
        sys.stdout.write(f"{library} {' '.join(said.split())}\n")


def by_urllib(url: str) -> str:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            body: bytes = answer.read()
        return body.decode()
    except urllib.error.HTTPError as error:
        return f"{error}: {error.read().decode()}"


def by_requests(url: str) -> str:
    import requests

    return requests.get(url, timeout=60).text


def by_httpx(url: str) -> str:
    import httpx

    return httpx.get(url, timeout=60).text


def by_aiohttp(url: str) -> str:
    import aiohttp

    async def get() -> str:
        # By itself it heeds no variable.
        async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as answer:
            return await answer.text()

    return asyncio.run(get())


def by_websockets(url: str) -> str:
    import websockets.asyncio.client

    async def ask() -> str:
        where = url.replace("http", "ws", 1).replace("/greeting", "/ws")
        async with websockets.asyncio.client.connect(where) as socket:
            await socket.send("hello")
            first = await socket.recv()
            await socket.send(bytes(range(256)) * 1000)
            second = await socket.recv()
            return f"{first!s} {second == bytes(reversed(range(256))) * 1000}"

    return asyncio.run(ask())


READERS = {
    "urllib": by_urllib,
    "requests": by_requests,
    "httpx": by_httpx,
    "aiohttp": by_aiohttp,
    "websockets": by_websockets,
}
main(*sys.argv[1:])
