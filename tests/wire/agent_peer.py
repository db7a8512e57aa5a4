"""The host's side of a raw conversation with the agent of a real sandbox."""

import asyncio
import json
import os
import select
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.tiers import TierDriver
from stockade.executor.wire import Closed, Data, Reset
from stockade.port import Tier

PATIENCE = 10.0
PROFILE = Profile(
    Tier.NAMESPACE, "test", 64 << 20, 20_000, 2.0, 0, memory_bytes=512 << 20, processes=64
)
CONTROL, STDIN, STDOUT, STDERR, RESULT, SOURCE = range(6)


@dataclass
class Stream:
    """What came on one channel, and how it ended."""

    number: int
    frames: list[bytes] = field(default_factory=list)
    untaken: int = 0
    closed: bool = False
    reset: str | None = None

    @property
    def content(self) -> bytes:
        return b"".join(self.frames)

    @property
    def over(self) -> bool:
        return self.closed or self.reset is not None

    def message(self, place: int = 0) -> dict[str, object]:
        """A frame that is a message of the agent."""
        message = json.loads(self.frames[place])
        assert isinstance(message, dict)
        return message


class Peer:
    """Drives one agent step by step; every wait is bounded.

    The host's own Connection reads what the agent says, so whatever breaks the rules, credit
    included, raises. ``raw`` goes past it.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        link = sandbox.link
        self._loop = asyncio.get_running_loop()
        self._loop.remove_reader(link._read_from)
        self.connection = link._connection
        self._read_from, self._write_to = link._read_from, os.dup(link._write_to)
        os.close(link._write_to)
        # The link closes what it holds; this one ends the agent's reading when we say so.
        link._write_to = os.open(os.devnull, os.O_WRONLY)
        self._unsent = b""
        self.streams: dict[int, Stream] = {}
        self.received = bytearray()  # instead of the connection, once something raw was said
        self.is_raw = False
        self.ended = False
        self.take_at_once = True

    def open(self, service: str, arguments: bytes = b"", span: int = 1) -> list[Stream]:
        first = self.connection.open(service, arguments, span)
        streams = [Stream(number) for number in range(first, first + span)]
        self.streams |= {stream.number: stream for stream in streams}
        return streams

    def send(self, stream: Stream, content: bytes) -> None:
        self.connection.send(stream.number, content)

    def close(self, *streams: Stream) -> None:
        for stream in streams:
            self.connection.close(stream.number)

    def reset(self, stream: Stream) -> None:
        self.connection.reset(stream.number, "test")
        stream.reset = stream.reset or "by us"

    def take(self, stream: Stream, most: int = 1 << 30) -> None:
        count = min(stream.untaken, most)
        stream.untaken -= count
        self.connection.consumed(stream.number, count)

    def raw(self, content: bytes) -> None:
        """Say what no host would say. From now on, what comes is only gathered."""
        self.until(lambda: not self._unsent and not self.connection.has_outgoing)
        self.is_raw = True
        self._unsent = content

    def hang_up(self) -> None:
        """Write what is left, as far as the agent takes it, and close our end."""
        deadline = time.monotonic() + PATIENCE
        while self._unsent and not self.ended and time.monotonic() < deadline:
            self.step()
        os.close(self._write_to)
        self._write_to = -1

    def step(self, seconds: float = 0.1) -> bool:
        """Write and read what is possible now; whether anything was."""
        if not self._unsent and not self.is_raw:
            self._unsent = self.connection.outgoing(65_536)
        poll = select.poll()
        poll.register(self._read_from, select.POLLIN)
        if self._unsent and self._write_to >= 0:
            poll.register(self._write_to, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self._write_to in ready:
            try:
                self._unsent = self._unsent[os.write(self._write_to, self._unsent) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._unsent = b""
        if self._read_from in ready:
            with suppress(BlockingIOError):
                self._receive(os.read(self._read_from, 65_536))
        return bool(ready)

    def _receive(self, content: bytes) -> None:
        if not content:
            self.ended = True
        elif self.is_raw:
            self.received += content
        else:
            for event in self.connection.receive(content):
                self._on_event(event)

    def _on_event(self, event: object) -> None:
        match event:
            case Data(number, content):
                stream = self.streams[number]
                assert not stream.over
                stream.frames.append(content)
                stream.untaken += len(content)
                if self.take_at_once:
                    self.take(stream)
            case Closed(number):
                assert not self.streams[number].over
                self.streams[number].closed = True
            case Reset(0, reason):
                raise AssertionError(f"the agent gave up: {reason}")
            case Reset(number, reason):
                self.streams[number].reset = reason

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert not self.ended, f"the agent is gone; {what} {self.connection!r}"
            assert time.monotonic() < deadline, f"nothing more comes; {what} {self.connection!r}"
            self.step()

    def until_over(self, *streams: Stream) -> None:
        self.until(lambda: all(stream.over for stream in streams))

    def until_ended(self) -> None:
        """The sandbox has ended itself."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended:
            assert time.monotonic() < deadline, "the agent lives on"
            self.step()

    def until_idle(self) -> None:
        """Nothing is under way, and the agent has said its last frame on every channel."""
        self.until(lambda: not self.connection._channels and not self.connection.has_outgoing)
        self.until(lambda: not self._unsent)
        self.connection.receive(b"")  # only what ended in an earlier one is free

    # Whole exchanges.

    def put(self, path: str, content: bytes) -> dict[str, object]:
        (stream,) = self.open("put", path.encode())
        self.send(stream, content)
        self.close(stream)
        self.until_over(stream)
        assert stream.reset is None, stream.reset
        return stream.message()

    def get(self, path: str) -> bytes:
        (stream,) = self.open("get", path.encode())
        self.close(stream)
        self.until_over(stream)
        assert stream.reset is None, stream.reset
        assert stream.message() == {"size": len(stream.content) - len(stream.frames[0])}
        return b"".join(stream.frames[1:])

    def list_folder(self, path: str = "") -> dict[str, tuple[str, int]]:
        (stream,) = self.open("list", path.encode())
        self.close(stream)
        self.until_over(stream)
        assert stream.reset is None, stream.reset
        entries: dict[str, tuple[str, int]] = {}
        for place in range(len(stream.frames)):
            page = stream.message(place)
            assert page["more"] is (place < len(stream.frames) - 1)
            assert isinstance(page["entries"], list)
            entries |= {name: (kind, size) for name, kind, size in page["entries"]}
        return entries

    def start(
        self,
        source: str | bytes = b"",
        *argv: str,
        terminal: bool = False,
        last: bool = False,
        ceilings: tuple[int, int] | None = None,
    ) -> list[Stream]:
        """A program whose source is sent, and whose standard input is still open."""
        source = source.encode() if isinstance(source, str) else source
        arguments, specification = program(
            source, *argv, last=last, terminal=terminal, ceilings=ceilings
        )
        streams = self.open("program", arguments, 6)
        self.send(streams[SOURCE], specification + source)
        self.close(streams[SOURCE])
        return streams

    def end_of(self, streams: list[Stream]) -> dict[str, object]:
        """What the agent reports of a program's end; gives back its channels."""
        self.until_over(*streams)
        *before, last = [streams[CONTROL].message(i) for i in range(len(streams[CONTROL].frames))]
        assert not before, before
        self.close(*streams)
        ended = last["ended"]
        assert isinstance(ended, dict)
        return ended

    def run(self, source: str | bytes, stdin: bytes = b"") -> bytes:
        """A program's standard output; it must succeed."""
        streams = self.start(source)
        self.send(streams[STDIN], stdin)
        self.close(streams[STDIN])
        ended = self.end_of(streams)
        assert (ended["code"], streams[STDERR].content) == (0, b"")
        return streams[STDOUT].content

    def check_usable(self) -> None:
        """Every service still works, with as many channels as they need."""
        self.until_idle()
        self.take_at_once = True
        assert self.put("usable", b"x" * 70_000) == {"written": 70_000}
        assert self.get("usable") == b"x" * 70_000
        assert self.list_folder()["usable"] == ("file", 70_000)
        assert self.run("print(input())", b"hello\n") == b"hello\n"
        self.until_idle()


def program(
    source: bytes = b"",
    *argv: str,
    last: bool = False,
    terminal: bool = False,
    ceilings: tuple[int, int] | None = None,
) -> tuple[bytes, bytes]:
    """The arguments of the service "program", and what comes on source before the source.

    ``ceilings``: bytes of memory and processes, for a kernel of the guest's own to keep.
    """
    specification: dict[str, object] = {
        "python": None if argv else {"name": None, "arguments": [], "fresh": False},
        "argv": list(argv) or None,
        "environment": {},
        "working_directory": "",
        "rlimits": {
            "open_files": 256,
            "file_bytes": 1 << 30,
            "data_bytes": None,
            "cpu_seconds": 30,
            "processes": 64,
        },
    }
    text = json.dumps(specification).encode()
    size = (24, 80) if terminal else (0, 0)
    arguments = struct.pack("!BHHII", last | (4 if ceilings else 0), *size, len(text), len(source))
    return arguments + (struct.pack("!QI", *ceilings) if ceilings else b""), text


@asynccontextmanager
async def open_peer(tier: TierDriver, profile: Profile = PROFILE) -> AsyncIterator[Peer]:
    """A fresh sandbox, and its wire in our hands."""
    sandbox = await tier.create(profile)
    peer = Peer(sandbox)
    try:
        yield peer
    finally:
        link = sandbox.link
        if peer._write_to >= 0:
            os.close(peer._write_to)
        sandbox.boundary.kill()
        await sandbox.boundary.gone()
        link._break("the test has ended")
        await sandbox.release()
