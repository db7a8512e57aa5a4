"""Standard input that comes by a request of its own."""

import asyncio
from collections.abc import AsyncIterator


class StandardInputPipe:
    """From one request to one program, a piece at a time: the program's pace is the caller's."""

    def __init__(self) -> None:
        self.taken = False
        """Whether a request has it already."""
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._closed = False

    async def put(self, piece: bytes) -> None:
        """Hand over a piece, when there is room for it."""
        if not self._closed:
            await self._pieces.put(piece)

    async def end(self) -> None:
        """It was all."""
        if not self._closed:
            await self._pieces.put(None)

    def close(self) -> None:
        """Nobody reads any more: what comes is thrown away, and whoever waits for room goes on."""
        self._closed = True
        while not self._pieces.empty():
            self._pieces.get_nowait()

    async def read(self) -> AsyncIterator[bytes]:
        """The program's side."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
