"""One channel of the wire as an asyncio transport, with backpressure both ways."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from stockade.executor.link import Link
from stockade.executor.wire import WINDOW, Closed, Data, Event, Granted, Reset

_FRAME: Final = 65_536
_LEAST_SHARE: Final = 65_536
_TOGETHER: Final = 8 * 1_048_576
"""What a guest that reads nothing makes its agent hold, over all its connections, or little more."""
READER_LIMIT: Final = 131_072


class Shares:
    """How much of what was sent to a guest may be untaken: the fewer the more connections."""

    def __init__(self) -> None:
        self.connections = 0

    @property
    def each(self) -> int:
        """Bytes on their way to the guest, of one connection."""
        return min(WINDOW, max(_LEAST_SHARE, _TOGETHER // max(1, self.connections)))

    @property
    def high_water(self) -> int:
        """Bytes that wait behind those, before whoever writes waits too."""
        return self.each // 2


class ChannelTransport(asyncio.Transport):
    """Both directions of one channel.

    ``on_event`` is the channel's handler. The number is never touched again once the guest may
    have said its last frame on it: it may then be another's. ``on_change`` is called when
    ``lingering`` or ``over`` has changed.
    """

    def __init__(
        self,
        link: Link,
        channel: int,
        protocol: asyncio.StreamReaderProtocol,
        shares: Shares,
        on_change: "Callable[[ChannelTransport], None]",
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._channel = channel
        self._protocol: asyncio.BaseProtocol = protocol
        self._streams = protocol
        self._shares = shares
        self._on_change = on_change
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._owed = 0
        self._reading = True
        self._writing_paused = False
        self._eof = False  # no more is to be written
        self._close_sent = False
        self._guest_ended = False
        self._closing = False
        self._told = False
        self.over = False
        """Whether the channel is nobody's any more, or not ours."""
        shares.connections += 1
        protocol.connection_made(self)

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open"
        return f"<ChannelTransport {self._channel} {state}, {self._waiting_bytes} bytes wait>"

    # --- the guest's side ---

    def on_event(self, event: Event) -> None:
        """What came on the channel."""
        match event:
            case Data(_, data):
                if self._closing:
                    self._link.consumed(self._channel, len(data))
                    return
                self._owed += len(data)
                self._streams.data_received(data)
                if self._reading:
                    self._give_credit()
            case Granted():
                self._send_waiting()
            case Closed():
                self._guest_ended = True
                if not self._closing:
                    self._streams.eof_received()
                self._end_if_done()
            case Reset(_, reason):
                self.lost(ConnectionResetError(reason or "the guest reset the connection"))

    # --- reading ---

    def is_reading(self) -> bool:
        """Whether the guest gets credit for what it sends."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """The guest may send no more than a window."""
        self._reading = False

    def resume_reading(self) -> None:
        """What was handed over is taken."""
        self._reading = True
        if not self.over:
            self._give_credit()
            self._end_if_done()

    def _give_credit(self) -> None:
        owed, self._owed = self._owed, 0
        if owed:
            self._link.consumed(self._channel, owed)

    # --- writing ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it as the guest takes it."""
        if self.over or self._eof or not data:
            return
        size = len(data)
        # Nobody may change it before it goes.
        whole = data if isinstance(data, bytes) else bytes(data)
        if size <= _FRAME:
            self._waiting.append(whole)
        else:
            view = memoryview(whole)
            self._waiting.extend(view[start : start + _FRAME] for start in range(0, size, _FRAME))
        self._waiting_bytes += size
        self._send_waiting()
        if self._waiting_bytes > self._shares.high_water and not self._writing_paused:
            self._writing_paused = True
            self._streams.pause_writing()

    def _send_waiting(self) -> None:
        if self.over or self._close_sent:
            return
        link, channel = self._link, self._channel
        share = self._shares.each
        while self._waiting and WINDOW - link.credit(channel) + link.queued(channel) < share:
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            link.send(channel, piece)
        if self._writing_paused and self._waiting_bytes <= self._shares.high_water // 4:
            self._writing_paused = False
            self._streams.resume_writing()
        if self._eof and not self._waiting:
            self._close_sent = True
            link.close_channel(channel)
            self._end_if_done()

    def can_write_eof(self) -> bool:
        """One direction can end before the other."""
        return True

    def write_eof(self) -> None:
        """No more is sent, after what waits."""
        if not self._eof and not self.over:
            self._eof = True
            self._send_waiting()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for the guest."""
        return self._waiting_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """When the writer is paused, and resumed."""
        high = self._shares.high_water
        return high // 4, high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are what they are: a guest decides how long a buffer is full."""

    # --- the end ---

    @property
    def lingering(self) -> bool:
        """Whether all was said on our side, and the guest has not ended its own."""
        return self._closing and self._close_sent and not self.over

    def is_closing(self) -> bool:
        """Whether it was closed, or lost."""
        return self._closing

    def close(self) -> None:
        """End it when what waits was sent. What the guest still sends is thrown away."""
        if self._closing:
            return
        self._closing = True
        self._give_credit()
        if self._close_sent:
            self._end_if_done()
        else:
            self.write_eof()

    def abort(self) -> None:
        """End it now. The guest sees a reset, unless it has been given all there was."""
        if not self.over:
            self._owed = 0
            self._link.reset_channel(self._channel, "ended by the executor")
            self._end(None)

    def lost(self, error: Exception | None) -> None:
        """The channel has ended: by the guest, or with the wire."""
        if not self.over:
            # What nobody will read any more is taken, so that the number can serve again.
            self._give_credit()
            self._end(error)

    def _end_if_done(self) -> None:
        if self.over or not self._close_sent:
            return
        if self._guest_ended and (self._closing or not self._owed):
            self._give_credit()
            self._end(None)
        elif self._closing:
            self._tell(None)
            self._on_change(self)

    def _end(self, error: Exception | None) -> None:
        self.over = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._shares.connections -= 1
        self._tell(error)
        self._on_change(self)

    def _tell(self, error: Exception | None) -> None:
        if not self._told:
            self._told = True
            self._loop.call_soon(self._streams.connection_lost, error)

    # --- what asyncio asks for besides ---

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol of the streams."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """There is one, for good."""
        raise NotImplementedError

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known of the other end but what it says."""
        return default
