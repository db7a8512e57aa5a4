"""TLS with its handshakes bounded: until one is done, a peer is not among the connections."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stockade.serving.bounds import Bounds

_PAUSE_SECONDS: Final = 0.1
"""After an accept that failed, for want of descriptors say."""


def most_handshakes(connections: int) -> int:
    """At once, beside so many connections."""
    return connections // 4 + 16


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """TLS 1.2 or later. ``client_ca``: whose certificates callers must have.

    Raises ``ValueError`` for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise ValueError(f"tls: a certificate or key cannot be used: {error}") from None
    return context


class TlsAcceptor:
    """Accepts on one socket; to uvicorn it is a server."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        bounds: Bounds,
    ) -> None:
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._seconds = bounds.header_seconds
        self._most = most_handshakes(bounds.connections)
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    def __repr__(self) -> str:
        return f"<TlsAcceptor {len(self._shaking)} handshakes>"

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing of it goes on."""
        await asyncio.wait({self._accepting, *self._shaking})

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._shaking) >= self._most:
                peer.close()  # nothing can be said that he would understand
                continue
            peer.setblocking(False)
            task = asyncio.create_task(self._shake(peer))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake(self, peer: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):  # ssl.SSLError and a time-out among them
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._protocol,
                    peer,
                    ssl=self._context,
                    ssl_handshake_timeout=self._seconds,
                )
                return
            peer.close()
        except asyncio.CancelledError:
            peer.close()
            raise
