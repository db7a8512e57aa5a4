"""A stream whose pieces are handed on as they came, and copied only where they are small."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, NoReturn, SupportsIndex

_SMALL: Final = 16 * 1024


class PieceReader(asyncio.StreamReader):
    """What comes from a destination: ``read`` is all that there is to it.

    asyncio's own copies each byte into one buffer and out of it again, which is a third of what a
    large download costs here.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """Reading pauses above twice ``limit``, as with asyncio's own."""
        super().__init__(limit=limit, loop=loop)
        self._most = 2 * limit
        self._running = loop
        self._pieces: deque[bytes | bytearray] = deque()
        self._size = 0
        self._ended = False
        self._paused = False
        self._from: asyncio.ReadTransport | None = None
        self._awaited: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<PieceReader {self._size} bytes in {len(self._pieces)} pieces>"

    # --- the protocol's side ---

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        """Where it comes from."""
        super().set_transport(transport)
        assert isinstance(transport, asyncio.ReadTransport)
        self._from = transport

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """A piece more: bytes, as a transport has them."""
        if not isinstance(data, bytes):
            data = bytes(data)
        if not data:
            return
        # Many small ones are to take no more memory than their bytes.
        last = self._pieces[-1] if self._pieces else None
        if last is not None and len(last) + len(data) <= _SMALL:
            if not isinstance(last, bytearray):
                last = self._pieces[-1] = bytearray(last)
            last += data
        else:
            self._pieces.append(data)
        self._size += len(data)
        self._wake()
        if self._size > self._most and not self._paused and self._from is not None:
            self._from.pause_reading()
            self._paused = True

    def feed_eof(self) -> None:
        """There is no more."""
        self._ended = True
        self._wake()

    def set_exception(self, exc: Exception) -> None:
        """The connection broke."""
        super().set_exception(exc)
        self._wake()

    def _wake(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    # --- the reader's side ---

    def at_eof(self) -> bool:
        """Whether all was read."""
        return self._ended and not self._pieces

    async def read(self, n: int = -1) -> bytes:
        """A piece, at most so much of it; empty at the end."""
        if (broken := self.exception()) is not None:
            raise broken
        if not self._pieces and not self._ended:
            assert self._awaited is None, "two read at once"
            self._awaited = self._running.create_future()
            try:
                await self._awaited
            finally:
                self._awaited = None
            if not self._pieces and (broken := self.exception()) is not None:
                raise broken
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        if 0 <= n < len(piece):
            self._pieces.appendleft(piece[n:])
            piece = piece[:n]
        self._size -= len(piece)
        if self._paused and self._size <= self._most // 2 and self._from is not None:
            self._paused = False
            self._from.resume_reading()
        return bytes(piece)

    async def readuntil(self, separator: object = b"\n") -> NoReturn:
        """Not of this one."""
        raise NotImplementedError

    async def readexactly(self, n: int) -> NoReturn:
        """Not of this one."""
        raise NotImplementedError
