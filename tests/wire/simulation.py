"""Both ends joined by two pipes of bounded size, and a ledger of what each channel carried."""

from dataclasses import dataclass, field

from stockade.executor.wire import Closed, Connection, Data, Reset

from .reference_guest import Wire

WINDOW = 262_144
PIPE = 65_536
_PATTERN = bytes((i * 7 + i // 251) % 251 for i in range(251 * 251))


def content(key: int, position: int, size: int) -> bytes:
    """The bytes that one direction carries at ``position``; other keys carry others."""
    start = (key * 977 + position) % len(_PATTERN)
    return (_PATTERN * (2 + size // len(_PATTERN)))[start : start + size]


@dataclass
class Direction:
    """One direction of one channel: how much was sent, came, and was consumed."""

    key: int
    sent: int = 0
    came: int = 0
    consumed: int = 0
    closing: bool = False
    closed: bool = False

    @property
    def untaken(self) -> int:
        return self.came - self.consumed

    def next(self, size: int) -> bytes:
        piece = content(self.key, self.sent, size)
        self.sent += size
        return piece

    def arrived(self, piece: bytes) -> None:
        assert not self.closed
        assert piece == content(self.key, self.came, len(piece)), "lost, reordered or foreign bytes"
        self.came += len(piece)
        assert self.came <= self.sent
        assert self.untaken <= WINDOW, "a buffer beyond the window"


@dataclass
class Talk:
    """One life of one channel number."""

    number: int
    to_guest: Direction
    to_host: Direction
    was_reset: bool = False


@dataclass
class Pipe:
    """Bytes under way, never more than a pipe holds, and what waits to be written into it."""

    unwritten: bytes = b""
    content: bytearray = field(default_factory=bytearray)

    def fill(self) -> None:
        room = PIPE - len(self.content)
        self.content += self.unwritten[:room]
        self.unwritten = self.unwritten[room:]

    def read(self, size: int) -> bytes:
        piece = bytes(self.content[:size])
        del self.content[:size]
        return piece


class Simulation:
    """Drives both ends; every step checks that each byte came in order, to the right channel."""

    def __init__(self) -> None:
        self.host = Connection()
        self.guest = Wire()
        self.down = Pipe()
        self.up = Pipe()
        self.talks: list[Talk] = []
        self.at_host: dict[int, Talk] = {}  # by number, as each end knows it
        self.at_guest: dict[int, Talk] = {}
        self.guest.hello({"uid": 0})
        self.deliver_up(1 << 20)

    # What the consumers on both sides do.

    def open(self, span: int) -> list[Talk]:
        first = self.host.open("talk", b"%d" % len(self.talks), span)
        opened = []
        for number in range(first, first + span):
            key = len(self.talks)
            talk = Talk(number, Direction(2 * key), Direction(2 * key + 1))
            self.talks.append(talk)
            self.at_host[number] = talk
            opened.append(talk)
        return opened

    def host_send(self, talk: Talk, size: int) -> None:
        if self.at_host.get(talk.number) is talk and not talk.to_guest.closing:
            self.host.send(talk.number, talk.to_guest.next(size))

    def guest_send(self, talk: Talk, size: int) -> None:
        if self.at_guest.get(talk.number) is talk and not talk.to_host.closing:
            self.guest.send(talk.number, talk.to_host.next(size))

    def host_close(self, talk: Talk) -> None:
        if self.at_host.get(talk.number) is talk:
            self.host.close(talk.number)
            talk.to_guest.closing = True

    def guest_close(self, talk: Talk) -> None:
        if self.at_guest.get(talk.number) is talk:
            self.guest.close(talk.number)
            talk.to_host.closing = True

    def host_reset(self, talk: Talk) -> None:
        if self.at_host.get(talk.number) is talk:
            self.host.reset(talk.number, "host")
            talk.was_reset = True
            del self.at_host[talk.number]

    def guest_reset(self, talk: Talk) -> None:
        if self.at_guest.get(talk.number) is talk:
            self.guest.reset(talk.number, "guest")
            talk.was_reset = True
            del self.at_guest[talk.number]

    def host_consume(self, talk: Talk, size: int) -> None:
        # Also after the channel has ended: a consumer may be slow.
        if self.at_host.get(talk.number) is talk:
            size = min(size, talk.to_host.untaken)
            talk.to_host.consumed += size
            self.host.consumed(talk.number, size)

    def guest_consume(self, talk: Talk, size: int) -> None:
        if self.at_guest.get(talk.number) is talk:
            size = min(size, talk.to_guest.untaken)
            talk.to_guest.consumed += size
            self.guest.consumed(talk.number, size)

    # The pipes.

    def deliver_down(self, size: int) -> int:
        """Write what the host has if the pipe has room; let the guest read up to ``size``."""
        if not self.down.unwritten:
            self.down.unwritten = self.host.outgoing()
        self.down.fill()
        piece = self.down.read(size)
        for event in self.guest.receive(piece):
            kind, number = event[0], event[1]
            if kind == "open":
                first = int(event[4])
                for talk in self.talks[first : first + event[2]]:
                    self.at_guest[talk.number] = talk
            elif kind == "data":
                self.at_guest[number].to_guest.arrived(event[2])
            elif kind == "close":
                direction = self.at_guest[number].to_guest
                assert direction.came == direction.sent
                direction.closed = True
            elif kind == "reset":
                self.at_guest.pop(number).was_reset = True
            else:
                assert kind == "granted"
        return len(piece)

    def deliver_up(self, size: int) -> int:
        """The other way."""
        if not self.up.unwritten:
            self.up.unwritten = self.guest.outgoing()
        self.up.fill()
        piece = self.up.read(size)
        for event in self.host.receive(piece):
            if isinstance(event, Data):
                self.at_host[event.channel].to_host.arrived(event.data)
            elif isinstance(event, Closed):
                direction = self.at_host[event.channel].to_host
                assert direction.came == direction.sent
                direction.closed = True
            elif isinstance(event, Reset):
                self.at_host[event.channel].was_reset = True
        return len(piece)

    # The end.

    def settle(self) -> None:
        """Let everything arrive and be consumed; afterwards nothing may be left under way."""
        for _ in range(10_000):
            moved = self.deliver_down(PIPE) + self.deliver_up(PIPE)
            taken = 0
            for talk in self.talks:
                taken += talk.to_host.untaken if self.at_host.get(talk.number) is talk else 0
                taken += talk.to_guest.untaken if self.at_guest.get(talk.number) is talk else 0
                self.host_consume(talk, WINDOW)
                self.guest_consume(talk, WINDOW)
            if not moved and not taken and not self.host.has_outgoing:
                break
        else:
            raise AssertionError(f"no end of it: {self.host!r} {self.guest!r}")
        for talk in self.talks:
            if not talk.was_reset:
                for direction in (talk.to_guest, talk.to_host):
                    assert direction.came == direction.sent, f"stuck: {self.host!r} {self.guest!r}"
                    assert direction.closed == direction.closing

    def finish(self) -> None:
        """Close everything; afterwards neither end may remember any channel."""
        self.settle()
        for talk in self.talks:
            self.host_close(talk)
            self.guest_close(talk)
        self.settle()
        for talk in self.talks:
            # Bytes that a reset left with a consumer are let go of by reset.
            self.host_reset(talk)
        self.settle()
        idle = "[Channels: 0 open, 0 resetting, 0 finished | Bytes: 0 queued, 0 untaken, "
        assert idle in repr(self.host)
        assert "[Channels: 0 open | Bytes: 0 queued, 0 untaken]" in repr(self.guest)
        assert self.host.open("test") == 1
