"""A model of a guest's end of the wire: bytes in, events and bytes out.

The protocol is in ``docs/wire.md``.  The guest that is shipped is
``src/stockade/guest/native/wire.c``; this one exists to be tested against, and shares no code
with either end.
"""

import json
import struct
from collections import deque
from typing import Any

Buffer = bytes | bytearray | memoryview

VERSION = 1
WINDOW = 262144
GRANT_STEP = WINDOW // 2
LARGEST_PAYLOAD = 65536
LARGEST_HELLO = 16384
LARGEST_REASON = 1024
MOST_SPAN = 8

HELLO, OPEN, DATA, CREDIT, CLOSE, RESET, END = range(1, 8)

_HEADER = struct.Struct(">IHB")
_GRANT = struct.Struct(">I")
# The fewest and the most bytes of payload for each kind that the host sends.
_BOUNDS = {
    OPEN: (2, LARGEST_PAYLOAD),
    DATA: (1, LARGEST_PAYLOAD),
    CREDIT: (4, 4),
    CLOSE: (0, 0),
    RESET: (0, LARGEST_REASON),
}
_UNKNOWN = (1, 0)


class WireError(Exception):
    """The host sent what the protocol does not allow; the connection cannot go on."""


class _Channel:
    __slots__ = (
        "close_sent",
        "closing",
        "credit",
        "listed",
        "owed",
        "peer_closed",
        "queue",
        "queued",
        "untaken",
        "window",
    )

    def __init__(self) -> None:
        self.credit = WINDOW  # bytes that may still be sent
        self.queue: deque[Buffer] = deque()  # frames that wait
        self.queued = 0
        self.listed = False  # in the round robin
        self.closing = False
        self.close_sent = False
        self.window = WINDOW  # bytes that the host may still send
        self.untaken = 0  # handed out, not yet consumed
        self.owed = 0  # consumed, not yet granted again
        self.peer_closed = False

    def sendable(self) -> bool:
        if self.queue:
            return self.credit >= len(self.queue[0])
        return self.closing and not self.close_sent

    def done(self) -> bool:
        # Only once the program took everything: nothing may be said about this channel
        # after END, because the host then gives its number to another.
        return self.close_sent and self.peer_closed and not self.untaken


class Wire:
    """The channels of one connection.

    ``receive`` returns events in order: ``("open", channel, span, service, arguments)``,
    ``("data", channel, bytes)``, ``("close", channel)``, ``("reset", channel, reason)``,
    ``("granted", channel)``.  Channel 0 in a reset is the connection itself.  What is asked
    of a channel that has ended does nothing.
    """

    __slots__ = ("_buffer", "_channels", "_control", "_failure", "_greeted", "_ready")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._channels: dict[int, _Channel] = {}
        self._control: list[bytes] = []  # frames that need no credit; they go first
        self._ready: list[int] = []  # round robin of channels that can send now
        self._greeted = False
        self._failure = ""

    def __repr__(self) -> str:
        channels = self._channels.values()
        queued = sum(channel.queued for channel in channels)
        untaken = sum(channel.untaken for channel in channels)
        return (
            f"<Wire {self._failure or 'ready'} [Channels: {len(channels)} open | "
            f"Bytes: {queued} queued, {untaken} untaken]>"
        )

    def receive(self, data: Buffer) -> list[tuple[Any, ...]]:
        """Take bytes that the host sent; raise WireError if they break the protocol."""
        if self._failure:
            raise WireError(self._failure)
        events: list[tuple[Any, ...]] = []
        try:
            self._parse(data, events)
        except WireError as error:
            self._failure = str(error)
            self._channels.clear()
            self._control.clear()
            self._ready.clear()
            self._buffer = bytearray()
            raise
        return events

    def _parse(self, data: Buffer, events: list[tuple[Any, ...]]) -> None:
        buffer = self._buffer
        if buffer:
            buffer += data
            data = buffer
        offset = 0
        size = len(data)
        with memoryview(data) as view:
            while size - offset >= 7:
                length, number, kind = _HEADER.unpack_from(view, offset)
                fewest, most = _BOUNDS.get(kind, _UNKNOWN)
                if not fewest <= length <= most:
                    raise WireError(f"a frame of kind {kind} with {length} bytes")
                end = offset + 7 + length
                if end > size:
                    break
                event = self._take(kind, number, bytes(view[offset + 7 : end]))
                if event is not None:
                    events.append(event)
                offset = end
            if data is not buffer:
                buffer += view[offset:]
        if data is buffer:
            del buffer[:offset]

    def _take(self, kind: int, number: int, payload: bytes) -> tuple[Any, ...] | None:
        if kind == OPEN:
            return self._take_open(number, payload)
        if number == 0:
            if kind != RESET:
                raise WireError(f"a frame of kind {kind} on channel 0")
            self._channels.clear()
            self._ready.clear()
            return ("reset", 0, payload.decode("utf-8", "replace"))
        channel = self._channels.get(number)
        if channel is None:
            return None  # sent before the host saw how we ended it
        if kind == DATA:
            size = len(payload)
            if channel.peer_closed or size > channel.window:
                raise WireError(f"DATA on channel {number} after CLOSE or beyond credit")
            channel.window -= size
            channel.untaken += size
            return ("data", number, payload)
        if kind == CREDIT:
            channel.credit += _GRANT.unpack(payload)[0]
            self._list(number, channel)
            return None if channel.close_sent else ("granted", number)
        if kind == CLOSE:
            if channel.peer_closed:
                raise WireError(f"a second CLOSE on channel {number}")
            channel.peer_closed = True
            self._end_if_done(number, channel)
            return ("close", number)
        self._drop(number, channel)
        self._control.append(_HEADER.pack(0, number, RESET))
        return ("reset", number, payload.decode("utf-8", "replace"))

    def _take_open(self, number: int, payload: bytes) -> tuple[Any, ...]:
        span = payload[0]
        if not 1 <= span <= MOST_SPAN or not 1 <= number <= 65536 - span:
            raise WireError(f"OPEN of {span} channels from {number}")
        service, nul, arguments = payload[1:].partition(b"\0")
        if not service or not nul or not service.isascii():
            raise WireError("OPEN without a service")
        for each in range(number, number + span):
            if each in self._channels:
                raise WireError(f"OPEN of channel {each}, which is open")
        for each in range(number, number + span):
            self._channels[each] = _Channel()
        return ("open", number, span, service.decode("ascii"), arguments)

    def hello(self, receipt: dict[str, Any]) -> None:
        """Say that the guest is up; once, before anything else."""
        if self._greeted:
            raise ValueError("hello was sent")
        payload = _dump({"version": VERSION, "receipt": receipt})
        if len(payload) > LARGEST_HELLO:
            raise ValueError(f"a receipt of {len(payload)} bytes")
        self._greeted = True
        self._control.append(_HEADER.pack(len(payload), 0, HELLO) + payload)

    def send(self, channel: int, data: Buffer) -> None:
        """Queue data of any size; up to 65,536 bytes go as one frame, whole."""
        found = self._channels.get(channel)
        if found is None:
            return
        if found.closing:
            raise ValueError(f"channel {channel} is closed for sending")
        if type(data) is not bytes:
            data = bytes(data)
        size = len(data)
        if size <= LARGEST_PAYLOAD:
            if size:
                found.queue.append(data)
        else:
            view = memoryview(data)
            for start in range(0, size, LARGEST_PAYLOAD):
                found.queue.append(view[start : start + LARGEST_PAYLOAD])
        found.queued += size
        self._list(channel, found)

    def send_json(self, channel: int, obj: dict[str, Any]) -> None:
        """Queue one message: a DATA frame with one JSON object."""
        payload = _dump(obj)
        if len(payload) > LARGEST_PAYLOAD:
            raise ValueError(f"a message of {len(payload)} bytes")
        self.send(channel, payload)

    def close(self, channel: int) -> None:
        """Send no more on this channel after what is queued."""
        found = self._channels.get(channel)
        if found is not None:
            found.closing = True
            self._list(channel, found)

    def reset(self, channel: int, reason: str) -> None:
        """End both directions of a channel now; on channel 0 the connection."""
        if channel == 0:
            self._channels.clear()
            self._ready.clear()
        else:
            found = self._channels.get(channel)
            if found is None:
                return
            self._drop(channel, found)
        text = reason.encode("utf-8", "backslashreplace")
        if len(text) > LARGEST_REASON:
            text = text[:LARGEST_REASON].decode("utf-8", "ignore").encode("utf-8")
        self._control.append(_HEADER.pack(len(text), channel, RESET) + text)

    def consumed(self, channel: int, n: int) -> None:
        """The program took n bytes of this channel, or they were thrown away for good."""
        found = self._channels.get(channel)
        if found is None:
            return
        if not 0 <= n <= found.untaken:
            raise ValueError(f"{n} bytes consumed of {found.untaken}")
        found.untaken -= n
        if found.peer_closed:
            self._end_if_done(channel, found)
            return
        found.owed += n
        if found.owed >= GRANT_STEP:
            self._control.append(_HEADER.pack(4, channel, CREDIT) + _GRANT.pack(found.owed))
            found.window += found.owed
            found.owed = 0

    def window(self, channel: int) -> int:
        """How many more bytes may be sent on this channel without waiting."""
        found = self._channels.get(channel)
        if found is None or found.closing:
            return 0
        return max(0, found.credit - found.queued)

    def queued(self, channel: int) -> int:
        """How many bytes were sent to this channel and not yet returned by outgoing."""
        found = self._channels.get(channel)
        return 0 if found is None else found.queued

    def outgoing(self) -> bytes:
        """Return what may go out now; the caller has to write it."""
        parts: list[Buffer] = [*self._control]
        self._control.clear()
        ready = self._ready
        while ready:
            turn = ready[:]
            ready.clear()
            for number in turn:
                channel = self._channels[number]
                if channel.queue:
                    piece = channel.queue.popleft()
                    channel.credit -= len(piece)
                    channel.queued -= len(piece)
                    parts.append(_HEADER.pack(len(piece), number, DATA))
                    parts.append(piece)
                if channel.closing and not channel.queue:
                    parts.append(_HEADER.pack(0, number, CLOSE))
                    channel.close_sent = True
                channel.listed = False
                self._list(number, channel)
                if channel.done():
                    del self._channels[number]
                    parts.append(_HEADER.pack(0, number, END))
        return b"".join(parts)

    def _list(self, number: int, channel: _Channel) -> None:
        if not channel.listed and channel.sendable():
            channel.listed = True
            self._ready.append(number)

    def _drop(self, number: int, channel: _Channel) -> None:
        del self._channels[number]
        if channel.listed:
            self._ready.remove(number)

    def _end_if_done(self, number: int, channel: _Channel) -> None:
        if channel.done():
            self._drop(number, channel)
            self._control.append(_HEADER.pack(0, number, END))


def _dump(obj: dict[str, Any]) -> bytes:
    return json.dumps(obj, separators=(",", ":"), allow_nan=False).encode("ascii")
