"""A transport whose writes of one turn of the loop go out as one."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

_MOST_HELD: Final = 64 * 1024
"""More is no head with a short body; and who writes on and on is to be told to wait."""


class JoinedWrites:
    """An answer's head and body are written apart: the peer would be woken, and read, twice."""

    __slots__ = ("_held", "_loop", "_size", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def __repr__(self) -> str:
        return f"<JoinedWrites {len(self._held)} held, {self._transport!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it at the end of this turn, with what else is written by then."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self._flush()

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Behind what is held."""
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        """End this direction once all is sent."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close it once all is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held) if len(held) > 1 else held[0])
