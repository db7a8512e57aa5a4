"""A guest that a test plays by hand, on a pair of pipes."""

import asyncio
import json
import os
import struct
from types import TracebackType
from typing import Self

from stockade.executor.link import Link

HELLO, OPEN, DATA, CREDIT, CLOSE, RESET, END = range(1, 8)
_HEADER = struct.Struct(">IHB")


class HandPlayedGuest:
    """The guest's ends of the wire; ``link`` is the host's, under test."""

    def __init__(self, *, hello: bool = True) -> None:
        from_host, host_out = os.pipe()
        host_in, to_host = os.pipe()
        self.link = Link(asyncio.get_running_loop(), host_in, host_out)
        self._read_from, self._write_to = from_host, to_host
        os.set_blocking(from_host, False)
        self._received = b""
        if hello:
            self.frame(HELLO, 0, {"version": 1, "receipt": {}})

    def frame(self, kind: int, channel: int, payload: bytes | dict[str, object] = b"") -> None:
        """Send one frame."""
        body = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self.raw(_HEADER.pack(len(body), channel, kind) + body)

    def raw(self, data: bytes) -> None:
        """Send any bytes."""
        assert os.write(self._write_to, data) == len(data)

    async def next(self, *kinds: int) -> tuple[int, int, bytes]:
        """The host's next frame, of these kinds if any are named."""
        while True:
            frame = await self._any()
            if not kinds or frame[0] in kinds:
                return frame

    async def _any(self) -> tuple[int, int, bytes]:
        async with asyncio.timeout(5):
            while True:
                if len(self._received) >= _HEADER.size:
                    length, channel, kind = _HEADER.unpack_from(self._received)
                    end = _HEADER.size + length
                    if len(self._received) >= end:
                        payload = self._received[_HEADER.size : end]
                        self._received = self._received[end:]
                        return kind, channel, payload
                try:
                    data = os.read(self._read_from, 65_536)
                except BlockingIOError:
                    await asyncio.sleep(0.001)
                    continue
                assert data, "the host closed the wire"
                self._received += data

    async def asked(self) -> tuple[int, bytes]:
        """Wait for a request: its channel, and all of its payload."""
        _, channel, payload = await self.next(OPEN)
        return channel, payload

    def hang_up(self) -> None:
        """Close both ends, as a guest that died."""
        for descriptor in (self._read_from, self._write_to):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_from = self._write_to = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.link.close()
        self.hang_up()
