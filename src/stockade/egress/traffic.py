"""Bytes on their way, counted and held back."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from stockade.egress.answers import Refusal
from stockade.port.egress import EgressPolicy

LARGEST_PIECE = 256 * 1024
_SMALLEST_PIECE = 16 * 1024
_TOGETHER = 4 * 1024 * 1024
_BURST_SECONDS = 0.25


def piece_of(connections: int) -> int:
    """How much of each may be here at once: a guest that reads nothing makes us hold it for all."""
    return max(_SMALLEST_PIECE, min(LARGEST_PIECE, _TOGETHER // max(1, connections)))


class Meter(Protocol):
    """Counts the bytes of one direction."""

    total: int

    @property
    def piece(self) -> int:
        """How much to read at once, so that a slow rate is an even one."""
        ...

    async def take(self, size: int) -> None:
        """Count bytes before they go on, and wait for their turn. Raises :class:`Refusal`."""
        ...


class _Ceiling:
    """Over all connections of an execution."""

    def __init__(
        self, what: str, ceiling: int, per_second: int | None, most_piece: Callable[[], int]
    ) -> None:
        self._most_piece = most_piece
        self._what = what
        self._ceiling = ceiling
        self._per_second = per_second
        self._free_at = 0.0
        self.total = 0

    @property
    def piece(self) -> int:
        """How much to read at once, so that a slow rate is an even one."""
        most = self._most_piece()
        if self._per_second is None:
            return most
        return max(1024, min(most, self._per_second // 8))

    async def take(self, size: int) -> None:
        """Count bytes before they go on, and wait for their turn. Raises :class:`Refusal`."""
        if self.total + size > self._ceiling:
            raise Refusal(
                429,
                f"{self._what}-bytes",
                f"the {self._ceiling} bytes that may be {self._what} are used up",
            )
        self.total += size
        if self._per_second is not None:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self._per_second
            if self._free_at > now:
                await asyncio.sleep(self._free_at - now)


class _Share:
    """Of one connection."""

    def __init__(self, whole: Meter) -> None:
        self._whole = whole
        self.total = 0

    @property
    def piece(self) -> int:
        return self._whole.piece

    async def take(self, size: int) -> None:
        await self._whole.take(size)
        self.total += size


@dataclass(frozen=True, slots=True)
class Traffic:
    """Both directions."""

    sent: Meter
    received: Meter

    @classmethod
    def under(
        cls, policy: EgressPolicy, most_piece: Callable[[], int] = lambda: LARGEST_PIECE
    ) -> Self:
        """All of an execution's. ``most_piece``: what may be read at once, as it is now."""
        return cls(
            _Ceiling("sent", policy.sent_bytes, policy.bytes_per_second, most_piece),
            _Ceiling("received", policy.received_bytes, policy.bytes_per_second, most_piece),
        )

    def of_one_connection(self) -> "Traffic":
        """Counts a connection's own bytes, under the ceilings of all."""
        return Traffic(_Share(self.sent), _Share(self.received))


class Source:
    """A stream that was read too far, or that is to be looked at before it is read."""

    def __init__(self, reader: asyncio.StreamReader, data: bytes = b"") -> None:
        self._reader = reader
        self.buffer = bytearray(data)
        self.ended = False

    async def more(self, size: int = 64 * 1024) -> bool:
        """Wait for more in the buffer; ``False`` at the stream's end."""
        if self.ended:
            return False
        data = await self._reader.read(size)
        self.buffer += data
        self.ended = not data
        return bool(data)

    def take(self, size: int | None = None) -> bytes:
        """What is in the buffer, or the first of it."""
        data = bytes(self.buffer if size is None else self.buffer[:size])
        del self.buffer[: len(data)]
        return data

    def put_back(self, data: bytes) -> None:
        """What was taken and is not needed."""
        self.buffer[:0] = data

    async def read(self, size: int) -> bytes:
        """As of a stream: what there is, at most so much, and empty at its end."""
        if self.buffer:
            return self.take(size)
        if self.ended:
            return b""
        data = await self._reader.read(size)
        self.ended = not data
        return data


class Readable(Protocol):
    """What bytes come from."""

    async def read(self, n: int, /) -> bytes:
        """What there is, at most so much; empty at the end."""
        ...


async def pump(
    source: Readable,
    writer: asyncio.StreamWriter,
    meter: Meter,
    change: Callable[[bytes], bytes] | None = None,
) -> None:
    """Carry bytes one way until their end, and pass the end on."""
    while data := await source.read(meter.piece):
        await meter.take(len(data))
        writer.write(change(data) if change is not None else data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def tunnel(
    guest: Readable,
    to_guest: asyncio.StreamWriter,
    upstream: Readable,
    to_upstream: asyncio.StreamWriter,
    traffic: Traffic,
    *,
    change: Callable[[bytes], bytes] | None = None,
    half_closed_seconds: float = 60.0,
) -> None:
    """Carry bytes both ways until both ends are reached.

    Where one is, the other has to go on: a peer that went away looks like one that has said all.
    ``change`` is applied to what goes to the guest.
    """
    there = asyncio.create_task(pump(guest, to_upstream, traffic.sent))
    back = asyncio.create_task(pump(upstream, to_guest, traffic.received, change))
    both = {there, back}
    try:
        waiting = both
        while waiting:
            carried = (traffic.sent.total, traffic.received.total)
            timeout = half_closed_seconds if len(waiting) == 1 else None
            done, waiting = await asyncio.wait(
                waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
            if not done and carried == (traffic.sent.total, traffic.received.total):
                break
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)
