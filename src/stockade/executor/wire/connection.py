"""One connection to one guest: the state of its channels, and credit both ways."""

from collections import deque
from typing import Final

from stockade.executor.wire import frames
from stockade.executor.wire.bounded_json import load_object
from stockade.executor.wire.events import Closed, Data, Event, Granted, Hello, Reset
from stockade.executor.wire.violation import CannotOpen, WireViolation

VERSION: Final = 1
WINDOW: Final = 262_144
GRANT_STEP: Final = WINDOW // 2
MOST_CREDIT: Final = 16 * 1_048_576
MOST_SPAN: Final = 8
LAST_CHANNEL: Final = 65_535
LARGEST_SERVICE: Final = 65_535
# A guest that never finishes its channels must not make the host remember all 65,535.
MOST_CHANNELS: Final = 4_096

_WAITING: Final = "waiting for HELLO"
_READY: Final = "ready"
_ENDED_BY_GUEST: Final = "ended by the guest"
_ENDED_BY_HOST: Final = "ended by the host"
_DEAD: Final = "dead"


class _Channel:
    """Both directions of one channel, as the host knows them.

    Outwards: ``credit`` bytes may still go, ``queue`` holds frames that wait.  Inwards: the
    guest may still send ``window`` bytes, ``untaken`` were handed out and not yet consumed,
    ``owed`` were consumed and not yet granted again; the three add up to WINDOW.
    """

    __slots__ = (
        "close_sent",
        "closing",
        "credit",
        "finished",
        "guest_closed",
        "listed",
        "number",
        "owed",
        "queue",
        "queued",
        "resetting",
        "untaken",
        "window",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.credit = WINDOW
        self.queue: deque[bytes | memoryview] = deque()
        self.queued = 0
        self.listed = False  # in the connection's round robin
        self.closing = False
        self.close_sent = False
        self.window = WINDOW
        self.untaken = 0
        self.owed = 0
        self.guest_closed = False
        self.resetting = False  # our RESET went out, the guest's last frame has not come
        self.finished = False  # the guest's last frame (END or RESET) has come

    @property
    def sendable(self) -> bool:
        if self.queue:
            return self.credit >= len(self.queue[0])
        return self.closing and not self.close_sent

    @property
    def silent(self) -> bool:
        """Nothing that the guest sends on it now is news."""
        return self.resetting or (self.close_sent and self.guest_closed)


class Connection:
    """The host's end of the wire to one guest.

    Feed it what was read with ``receive``; write what ``outgoing`` returns, after every
    call that may have made some.  What is asked of a channel that has ended does nothing,
    because the event that says so may stand further on in the same list.  A number is used
    again only when the guest's last frame on it came in an earlier ``receive`` and every
    byte was consumed, so whoever stops reading a channel has to ``reset`` it.
    """

    __slots__ = (
        "_channels",
        "_control",
        "_decoder",
        "_highest",
        "_lowest",
        "_ready",
        "_retired",
        "_state",
        "_violation",
    )

    def __init__(self) -> None:
        self._decoder = frames.FrameDecoder()
        self._state = _WAITING
        self._violation = ""
        self._channels: dict[int, _Channel] = {}
        self._control: list[bytes] = []  # frames that need no credit; they go first
        self._ready: deque[_Channel] = deque()  # round robin of those that can send now
        self._retired: set[int] = set()  # free from the next receive on
        self._lowest = 1  # every number below is taken
        self._highest = 0  # no number above was ever opened

    def __repr__(self) -> str:
        channels = self._channels.values()
        resetting = sum(channel.resetting for channel in channels)
        finished = sum(channel.finished for channel in channels)
        queued = sum(channel.queued for channel in channels)
        untaken = sum(channel.untaken for channel in channels)
        state = f"{self._state}: {self._violation}" if self._violation else self._state
        return (
            f"<Connection {state} [Channels: {len(channels) - resetting - finished} open, "
            f"{resetting} resetting, {finished} finished | Bytes: {queued} queued, "
            f"{untaken} untaken, {self._decoder.held} of a frame]>"
        )

    # What the guest says.

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Take bytes that the guest sent; return what they mean, in order.

        Raises :class:`WireViolation` if they break the protocol, and from then on always.
        """
        self._require_alive()
        for number in self._retired:
            self._lowest = min(self._lowest, number)
        self._retired.clear()
        events: list[Event] = []
        if self._state is _ENDED_BY_HOST:
            return events
        try:
            for kind, number, payload in self._decoder.feed(data):
                if kind == frames.DATA and self._state is _READY:
                    channel = self._channels.get(number)
                    if channel is None or channel.finished:
                        raise WireViolation(f"DATA on channel {number}, which is not open")
                    if channel.guest_closed:
                        raise WireViolation(f"DATA after CLOSE on channel {number}")
                    size = len(payload)
                    if size > channel.window:
                        raise WireViolation(
                            f"DATA of {size} bytes on channel {number} beyond its credit "
                            f"of {channel.window}"
                        )
                    channel.window -= size
                    if not channel.resetting:
                        channel.untaken += size
                        events.append(Data(number, payload))
                else:
                    event = self._take(kind, number, payload)
                    if event is not None:
                        events.append(event)
        except WireViolation as violation:
            self._die(str(violation))
            raise
        return events

    def _take(self, kind: int, number: int, payload: bytes) -> Event | None:
        if self._state is _ENDED_BY_GUEST:
            raise WireViolation("a frame after the guest ended the connection")
        if kind == frames.RESET and number == 0:
            self._end(_ENDED_BY_GUEST)
            return Reset(0, _reason(payload))
        if kind == frames.HELLO:
            return self._take_hello(number, payload)
        if self._state is _WAITING:
            raise WireViolation(f"{frames.NAMES[kind]} before HELLO")
        channel = self._channels.get(number)
        if channel is None or channel.finished:
            raise WireViolation(f"{frames.NAMES[kind]} on channel {number}, which is not open")
        if kind == frames.CREDIT:
            return self._take_credit(channel, frames.decode_grant(payload))
        if kind == frames.CLOSE:
            return self._take_close(channel)
        if kind == frames.RESET:
            return self._take_reset(channel, _reason(payload))
        self._take_end(channel)
        return None

    def _take_hello(self, number: int, payload: bytes) -> Hello:
        if self._state is not _WAITING:
            raise WireViolation("a second HELLO")
        if number != 0:
            raise WireViolation(f"HELLO on channel {number} instead of 0")
        body = load_object(payload, "HELLO", frames.LARGEST_HELLO)
        if body.keys() != {"version", "receipt"}:
            raise WireViolation("HELLO: other keys than version and receipt")
        if type(body["version"]) is not int or body["version"] != VERSION:
            raise WireViolation(f"HELLO: a version other than {VERSION}")
        if type(body["receipt"]) is not dict:
            raise WireViolation("HELLO: a receipt that is not an object")
        self._state = _READY
        return Hello(body)

    def _take_credit(self, channel: _Channel, grant: int) -> Granted | None:
        if grant == 0:
            raise WireViolation(f"CREDIT of zero on channel {channel.number}")
        if grant > frames.LARGEST_GRANT:
            raise WireViolation(
                f"CREDIT of {grant} on channel {channel.number}; "
                f"at most {frames.LARGEST_GRANT} at once"
            )
        if channel.credit + grant > MOST_CREDIT:
            raise WireViolation(
                f"CREDIT of {grant} lifts channel {channel.number} above {MOST_CREDIT} in total"
            )
        channel.credit += grant
        self._list(channel)
        return None if channel.resetting or channel.close_sent else Granted(channel.number)

    def _take_close(self, channel: _Channel) -> Closed | None:
        if channel.guest_closed:
            raise WireViolation(f"a second CLOSE on channel {channel.number}")
        channel.guest_closed = True
        return None if channel.resetting else Closed(channel.number)

    def _take_reset(self, channel: _Channel, reason: str) -> Reset | None:
        silent = channel.silent
        if not channel.resetting:
            self._control.append(frames.encode_reset(channel.number, ""))
            self._drop_queue(channel)
        self._finish(channel)
        return None if silent else Reset(channel.number, reason)

    def _take_end(self, channel: _Channel) -> None:
        # After our RESET the guest may have ended the channel before it saw it.
        if not channel.guest_closed or not channel.close_sent:
            raise WireViolation(f"END of channel {channel.number} before both sides sent CLOSE")
        self._finish(channel)

    # What the host says.

    def open(self, service: str, arguments: bytes = b"", span: int = 1) -> int:
        """Ask the guest for ``service`` on ``span`` new channels; return the first number."""
        self._require_alive()
        if not 1 <= span <= MOST_SPAN:
            raise ValueError(f"a span of {span} channels; 1 to {MOST_SPAN} may be opened")
        payload = service.encode("ascii") + b"\0" + arguments
        if len(payload) > LARGEST_SERVICE:
            raise ValueError(f"a service of {len(payload)} bytes; at most {LARGEST_SERVICE}")
        if self._state not in (_WAITING, _READY):
            raise CannotOpen(f"the connection was {self._state}")
        first = self._free_block(span)
        for number in range(first, first + span):
            self._channels[number] = _Channel(number)
        self._control.append(frames.encode_open(first, span, payload))
        if first == self._lowest:
            self._lowest = first + span
        self._highest = max(self._highest, first + span - 1)
        return first

    def send(self, channel: int, data: bytes | bytearray | memoryview) -> None:
        """Queue ``data``, of any size, for the guest.

        Up to 65,536 bytes go as one frame, whole; more is cut at that size.  Look at
        ``queued`` before sending much: the queue itself has no bound.  What could be changed
        before it goes is copied; a read-only view is not.
        """
        found = self._find(channel)
        if found is None:
            return
        if found.closing:
            raise ValueError(f"channel {channel} is closed for sending")
        if not isinstance(data, bytes) and not (isinstance(data, memoryview) and data.readonly):
            data = bytes(data)  # the caller may change it before it goes
        size = len(data)
        if size <= frames.LARGEST_PAYLOAD:
            if size:
                found.queue.append(data)
        else:
            view = memoryview(data)
            for start in range(0, size, frames.LARGEST_PAYLOAD):
                found.queue.append(view[start : start + frames.LARGEST_PAYLOAD])
        found.queued += size
        self._list(found)

    def close(self, channel: int) -> None:
        """Send no more on ``channel`` after what is queued; a second time does nothing."""
        found = self._find(channel)
        if found is not None:
            found.closing = True
            self._list(found)

    def reset(self, channel: int, reason: str) -> None:
        """End both directions now: drop what is queued, and hand out no event of it any more.

        On channel 0 the connection ends.
        """
        self._require_alive()
        if channel == 0:
            if self._state in (_WAITING, _READY):
                self._end(_ENDED_BY_HOST)
                self._control.append(frames.encode_reset(0, reason))
            return
        self._require_opened(channel)
        found = self._channels.get(channel)
        if found is None or found.resetting:
            return
        found.untaken = 0
        if found.finished:
            self._retire(found)
            return
        found.resetting = True
        self._drop_queue(found)
        self._control.append(frames.encode_reset(channel, reason))

    def consumed(self, channel: int, n: int) -> None:
        """The consumer took ``n`` bytes of this channel's Data; credit goes back in batches."""
        self._require_alive()
        self._require_opened(channel)
        found = self._channels.get(channel)
        if found is None or found.resetting:
            return
        if not 0 <= n <= found.untaken:
            raise ValueError(f"{n} bytes consumed of {found.untaken} on channel {channel}")
        found.untaken -= n
        if found.finished:
            if not found.untaken:
                self._retire(found)
        elif not found.guest_closed:
            found.owed += n
            if found.owed >= GRANT_STEP:
                self._control.append(frames.encode_credit(channel, found.owed))
                found.window += found.owed
                found.owed = 0

    def queued(self, channel: int) -> int:
        """How many bytes were sent to ``channel`` and not yet returned by ``outgoing``."""
        found = self._channels.get(channel)
        return found.queued if found is not None else 0

    def credit(self, channel: int) -> int:
        """How many more bytes the guest lets be sent to ``channel``."""
        found = self._channels.get(channel)
        return found.credit if found is not None else 0

    @property
    def has_outgoing(self) -> bool:
        """Whether ``outgoing`` would return something now."""
        return bool(self._control or self._ready)

    def outgoing(self, limit: int | None = None) -> bytes:
        """As :meth:`outgoing_parts`, in one piece."""
        return b"".join(self.outgoing_parts(limit))

    def outgoing_parts(self, limit: int | None = None) -> list[bytes | memoryview]:
        """Return what may go out now; the caller owns it and has to write it.

        Channels take turns, a frame each.  With ``limit``, stop once that many bytes are
        gathered (the last frame may exceed it), so that what is sent later to another
        channel waits behind no more than that.
        """
        self._require_alive()
        parts: list[bytes | memoryview] = [*self._control]
        self._control.clear()
        room = 1 << 62 if limit is None else limit - sum(map(len, parts))
        ready = self._ready
        while ready and room > 0:
            channel = ready.popleft()
            if channel.queue:
                piece = channel.queue.popleft()
                size = len(piece)
                channel.credit -= size
                channel.queued -= size
                parts.append(frames.encode_data_header(channel.number, size))
                parts.append(piece)
                room -= size
            if channel.closing and not channel.queue:
                parts.append(frames.encode_close(channel.number))
                channel.close_sent = True
            room -= 7
            if channel.sendable:
                ready.append(channel)
            else:
                channel.listed = False
        return parts

    # The state behind both.

    def _require_alive(self) -> None:
        if self._violation:
            raise WireViolation(self._violation)

    def _require_opened(self, number: int) -> None:
        if not 1 <= number <= self._highest:
            raise ValueError(f"channel {number} was never opened")

    def _find(self, number: int) -> _Channel | None:
        """The channel, if bytes can still be sent on it."""
        self._require_alive()
        self._require_opened(number)
        channel = self._channels.get(number)
        return None if channel is None or channel.resetting or channel.finished else channel

    def _free_block(self, span: int) -> int:
        if len(self._channels) + span > MOST_CHANNELS:
            raise CannotOpen(f"{len(self._channels)} channels are open; at most {MOST_CHANNELS}")
        first = number = self._lowest
        while number - first < span:
            if number > LAST_CHANNEL:
                raise CannotOpen(f"no {span} free channels stand side by side")
            if number in self._channels or number in self._retired:
                first = number + 1
            number += 1
        return first

    def _list(self, channel: _Channel) -> None:
        if not channel.listed and channel.sendable:
            channel.listed = True
            self._ready.append(channel)

    def _drop_queue(self, channel: _Channel) -> None:
        channel.queue.clear()
        channel.queued = 0
        channel.closing = channel.close_sent
        if channel.listed:
            channel.listed = False
            self._ready.remove(channel)

    def _finish(self, channel: _Channel) -> None:
        channel.finished = True
        channel.resetting = False
        if not channel.untaken:
            self._retire(channel)

    def _retire(self, channel: _Channel) -> None:
        del self._channels[channel.number]
        self._retired.add(channel.number)

    def _end(self, state: str) -> None:
        self._state = state
        self._channels.clear()
        self._ready.clear()
        self._control.clear()

    def _die(self, sentence: str) -> None:
        self._end(_DEAD)
        self._violation = sentence
        self._decoder = frames.FrameDecoder()


def _reason(payload: bytes) -> str:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        raise WireViolation("RESET with a reason that is not UTF-8") from None
