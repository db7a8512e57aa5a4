"""What an execution has printed, for any number of readers, in bounded memory.

Each reader sees each piece once and in order. One that comes late first gets what was kept. The
caller who waits for the output holds the guest back when it is slow, as the port says; one who only
watches never does: whoever falls too far behind is told so and left.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from stockade.port import KIB, EgressEvent, Stream

_MOST_BYTES_IN_PIECE: Final = 64 * KIB
_MOST_EVENTS: Final = 1024
"""Of connections, in one execution. The record has them all."""
# Tiny writes cost more than their bytes: an empty piece counts as this much.
_COST_OF_PIECE: Final = 128


class Piece(NamedTuple):
    """Some output."""

    stream: Stream
    data: bytes
    end: int
    """Bytes of both streams up to and with it: where a reader goes on that was cut off."""


class Told(NamedTuple):
    """What became of a connection."""

    event: EgressEvent
    end: int
    """Bytes of output before it."""


class Omitted(NamedTuple):
    """Output that was not kept for a reader that came late."""

    bytes: int


class TooSlow(Exception):
    """A watcher fell behind what is kept."""


class OutputLog:
    """The output of one execution.

    ``window``: bytes that are kept for readers. ``hold``: how far one who holds the guest back
    may be behind.
    """

    def __init__(self, window: int = 512 * KIB, hold: int = 128 * KIB) -> None:
        self.ended = False
        self._window = window
        self._hold = hold
        self._pieces: deque[Piece | Told] = deque()
        self._events = 0
        self._first = 0
        """The number of the oldest piece that is kept."""
        self._cost = 0
        self._total = 0
        self._holders: set[Reader] = set()
        self._news = asyncio.Event()
        self._read = asyncio.Event()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<OutputLog {state}: {self._total} bytes, {len(self._pieces)} pieces kept>"

    async def add(self, stream: Stream, data: bytes) -> None:
        """Take output; returns when those who may hold the guest back have nearly read it."""
        for start in range(0, len(data), _MOST_BYTES_IN_PIECE):
            piece = data[start : start + _MOST_BYTES_IN_PIECE]
            self._total += len(piece)
            self._pieces.append(Piece(stream, piece, self._total))
            self._cost += len(piece) + _COST_OF_PIECE
            while self._cost > self._window and len(self._pieces) > 1:
                self._forget_oldest()
            self._tell()
            while any(self._cost_since(reader) > self._hold for reader in self._holders):
                await self._read.wait()

    async def tell(self, event: EgressEvent) -> None:
        """Take what became of a connection, among the output; it holds nobody back."""
        self._events += 1
        if self._events <= _MOST_EVENTS:
            self._pieces.append(Told(event, self._total))
            self._cost += _COST_OF_PIECE
            self._tell()

    def _forget_oldest(self) -> None:
        oldest = self._pieces.popleft()
        self._cost -= _COST_OF_PIECE
        if isinstance(oldest, Piece):
            self._cost -= len(oldest.data)
        self._first += 1

    def end(self) -> None:
        """Nothing follows."""
        self.ended = True
        self._tell()

    def open(self, *, after: int = 0, holding: bool = False) -> "Reader":
        """A reader of what comes after so many bytes. It has to be closed."""
        reader = Reader(self, after)
        if holding:
            self._holders.add(reader)
        return reader

    def _cost_since(self, reader: "Reader") -> int:
        behind = self._first + len(self._pieces) - reader.number
        return self._total - reader.position + behind * _COST_OF_PIECE

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _has_read(self) -> None:
        self._read.set()
        self._read = asyncio.Event()


class Reader:
    """One reader of a log, from where it asked to begin."""

    def __init__(self, log: OutputLog, after: int) -> None:
        self.position = after
        """Bytes that it has seen, or does not want."""
        self.number = log._first  # noqa: SLF001
        if after:
            behind = bisect_left(log._pieces, after + 1, key=lambda piece: piece.end)  # noqa: SLF001
            self.number += behind
        """Of the piece that comes next."""
        self.pause: float | None = None
        """In seconds; it may be set anew between two pieces."""
        self._log = log

    async def pieces(
        self, pause: float | None = None
    ) -> AsyncIterator[Piece | Told | Omitted | None]:
        """Until the execution's end; ``None`` after each ``pause`` in seconds without any.

        Raises :class:`TooSlow`.
        """
        log = self._log
        begun = False
        self.pause = pause
        while True:
            if self.number < log._first:  # noqa: SLF001
                raise TooSlow
            index = self.number - log._first  # noqa: SLF001
            if index >= len(log._pieces):  # noqa: SLF001
                if log.ended:
                    return
                if not await _came(log._news, self.pause):  # noqa: SLF001
                    yield None
                continue
            piece = log._pieces[index]  # noqa: SLF001
            if isinstance(piece, Told):
                yield piece
                self.number += 1
                log._has_read()  # noqa: SLF001
                continue
            stream, data, end = piece
            start = end - len(data)
            if not begun and start > self.position:
                missed = start - self.position
                self.position = start
                yield Omitted(missed)
                # What was kept may have gone on while the reader was busy.
                begun = True
                continue
            begun = True
            data = data[self.position - start :] if self.position > start else data
            yield Piece(stream, data, end)
            # Only now has it been read: whoever holds the guest back does so until here.
            self.position = end
            self.number += 1
            log._has_read()  # noqa: SLF001

    def close(self) -> None:
        """It reads no more, and holds nobody back."""
        self._log._holders.discard(self)  # noqa: SLF001
        self._log._has_read()  # noqa: SLF001


async def _came(news: asyncio.Event, within: float | None) -> bool:
    try:
        async with asyncio.timeout(within):
            await news.wait()
    except TimeoutError:
        return False
    return True
