"""A destination on this machine's loopback: HTTP and HTTPS, WebSocket, git, a package index."""

import asyncio
import base64
import hashlib
import io
import os
import ssl
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import WSMsgType, web
from tests.packages.test_live import npm_package

ALLOWED = "allowed.test"
DENIED = "denied.test"
NPM_PACKAGE = npm_package("nice")
_FOLDER = web.AppKey("folder", Path)


@dataclass(frozen=True)
class Origin:
    """Where it listens, and where its git repository is."""

    http: int
    https: int
    repository: Path

    @property
    def urls(self) -> tuple[str, str]:
        """What the policy allows."""
        return f"http://{ALLOWED}:{self.http}", f"https://{ALLOWED}:{self.https}"

    @property
    def denied_urls(self) -> tuple[str, str]:
        """The same server, by a name that no rule has."""
        return f"http://{DENIED}:{self.http}", f"https://{DENIED}:{self.https}"


@asynccontextmanager
async def serving(certificate: ssl.SSLContext, folder: Path) -> AsyncIterator[Origin]:
    """Until the context ends."""
    app = web.Application(client_max_size=1 << 24)
    app[_FOLDER] = folder
    app.router.add_get("/greeting", _greeting)
    app.router.add_post("/echo", _echo)
    app.router.add_get("/ws", _websocket)
    app.router.add_get("/simple/good/", _index)
    app.router.add_get("/files/{name}", _wheel)
    app.router.add_get("/npm/nice", _package)
    app.router.add_get("/npm/nice-1.0.0.tgz", _tarball)
    app.router.add_route("*", "/git/{path:.*}", _git)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        sites = [
            web.TCPSite(runner, "127.0.0.1", 0),
            web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate),
        ]
        for site in sites:
            await site.start()
        plain, secure = (address[1] for address in runner.addresses)
        yield Origin(plain, secure, folder / "repository.git")
    finally:
        await runner.cleanup()


async def _greeting(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def _echo(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    async for piece in request.content.iter_any():
        await answer.write(piece)
    await answer.write_eof()
    return answer


async def _websocket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(f"heard {message.data}")
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data[::-1])
    return socket


async def _index(_: web.Request) -> web.Response:
    name = "good-1.0-py3-none-any.whl"
    return web.Response(text=f'<a href="/files/{name}">{name}</a>', content_type="text/html")


async def _wheel(_: web.Request) -> web.Response:
    about = "good-1.0.dist-info"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in {
            "good.py": "VALUE = 'good'",
            f"{about}/METADATA": "Metadata-Version: 2.1\nName: good\nVersion: 1.0\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "".join(
                f"{each},,\n" for each in ("good.py", f"{about}/METADATA", f"{about}/RECORD")
            ),
        }.items():
            archive.writestr(name, text)
    return web.Response(body=made.getvalue())


async def _package(request: web.Request) -> web.Response:
    tarball = str(request.url.with_name("nice-1.0.0.tgz"))
    digest = base64.b64encode(hashlib.sha512(NPM_PACKAGE).digest()).decode()
    version = {
        "name": "nice",
        "version": "1.0.0",
        "dist": {"tarball": tarball, "integrity": f"sha512-{digest}"},
    }
    return web.json_response(
        {"name": "nice", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    )


async def _tarball(_: web.Request) -> web.Response:
    return web.Response(body=NPM_PACKAGE)


async def _git(request: web.Request) -> web.Response:
    """git's own server, by CGI (RFC 3875)."""
    folder = request.app[_FOLDER]
    running = await asyncio.create_subprocess_exec(
        *("git", "http-backend"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": request.method,
            "PATH_INFO": "/" + request.match_info["path"],
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "REMOTE_USER": "guest",
        },
    )
    said, _ = await running.communicate(await request.read())
    head, _, body = said.partition(b"\r\n\r\n")
    lines = [line.partition(": ") for line in head.decode().split("\r\n") if line]
    headers = {name: value for name, _, value in lines}
    status = int(headers.pop("Status", "200 OK").split(" ")[0])
    return web.Response(status=status, headers=headers, body=body)
