"""One HTTP server in somebody else's event loop, which owns the signals."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from stockade.serving.bounds import Bounds
from stockade.serving.protocol import bounded
from stockade.serving.tls import TlsAcceptor

_SEND_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen: a unix socket, or a host and a port with or without TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    path: Path | None = None
    """Of a unix socket, whose folder says who may connect."""
    tls: ssl.SSLContext | None = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._bounds = bounds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None or sockets is None:
            await super().startup(sockets)
        else:
            await self.lifespan.startup()
            servers: list[Any] = [
                TlsAcceptor(listener, self.config.ssl, self._protocol, self._bounds)
                for listener in sockets
            ]
            self.servers = servers
            self.started = True
        self.listening.set()

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BoundedServer:
    """Serves one application."""

    def __init__(self, server: _Server, serving: asyncio.Task[None], url: str) -> None:
        self.url = url
        """Where it is reached."""
        self._server = server
        self._serving = serving

    def __repr__(self) -> str:
        return f"<BoundedServer {self.url}: {self.connections} connections>"

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._server.server_state.connections)

    async def failed(self) -> None:
        """Wait for its end, which nobody asked for."""
        await asyncio.shield(self._serving)

    async def stop(self) -> None:
        """Accept no more, let answers that have begun end, and return."""
        self._server.should_exit = True
        await self._serving

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        application: Any,
        listening: Listening,
        bounds: Bounds,
        *,
        grace: float = 10.0,
    ) -> AsyncIterator["BoundedServer"]:
        """Serve until the context ends, and then for ``grace`` seconds what was begun.

        Raises :class:`OSError` where it cannot listen.
        """
        listener = _bind(listening, bounds)
        try:
            url = _url(listening, listener)
            config = uvicorn.Config(
                application,
                http=bounded(bounds),
                ws="websockets-sansio",
                ws_max_size=bounds.message_bytes,
                ws_max_queue=4,
                ws_per_message_deflate=False,
                interface="asgi3",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                # What a proxy says of the caller is not believed: nobody asks for it.
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(bounds.idle_seconds),
                timeout_graceful_shutdown=int(grace),
                ssl_context_factory=None
                if listening.tls is None
                else lambda _config, _default, context=listening.tls: context,  # type: ignore[misc]
            )
            server = _Server(config, bounds)
            serving = asyncio.create_task(server.serve([listener]))
            await server.listening.wait()
            opened = cls(server, serving, url)
            try:
                yield opened
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    await opened.stop()
        finally:
            listener.close()
            if listening.path is not None:
                with contextlib.suppress(FileNotFoundError):
                    listening.path.unlink()


def _bind(listening: Listening, bounds: Bounds) -> socket.socket:
    if listening.path is not None:
        listener = socket.socket(socket.AF_UNIX)
        try:
            # One that nobody listens on is what a killed process left.
            if listening.path.is_socket() and not _answers(listening.path):
                listening.path.unlink()
            listener.bind(os.fspath(listening.path))
            listening.path.chmod(0o660)
        except OSError:
            listener.close()
            raise
    else:
        family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
        # asyncio turns Nagle's algorithm off for what says that it is TCP, and for nothing else.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((listening.host, listening.port))
        except OSError:
            listener.close()
            raise
    # What is sent and not taken waits with whoever makes it, and is not held here by the megabyte.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    listener.listen(min(bounds.connections, 2048))
    listener.setblocking(False)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(1)
        try:
            trial.connect(os.fspath(path))
        except OSError:
            return False
        return True


def _url(listening: Listening, listener: socket.socket) -> str:
    if listening.path is not None:
        return f"unix:{listening.path}"
    host, port = listener.getsockname()[:2]
    scheme = "http" if listening.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
