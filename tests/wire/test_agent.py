"""The agent of real sandboxes: what it carries, how channels end, and what it makes of nonsense."""

import hashlib
import json
import random
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.executor import open_local
from stockade.executor.namespace.tier import NamespaceTier
from stockade.port import Tier

from .agent_peer import (
    CONTROL,
    RESULT,
    SOURCE,
    STDERR,
    STDIN,
    STDOUT,
    Peer,
    Stream,
    open_peer,
    program,
)
from .guest_bytes import (
    CLOSE,
    CREDIT,
    DATA,
    END,
    FRAME,
    OPEN,
    RESET,
    WINDOW,
    close,
    credit,
    cut,
    data,
    end,
    frame,
    hello,
    reset,
)
from .model_agent import ModelAgent
from .reference_guest import WireError

pytestmark = [pytest.mark.tier("namespace"), pytest.mark.asyncio(loop_scope="module")]

ECHO = """
import hashlib, sys
digest = hashlib.sha256()
while piece := sys.stdin.buffer.read1(65536):
    digest.update(piece)
    sys.stdout.buffer.write(piece)
    sys.stdout.flush()
sys.stderr.write(digest.hexdigest())
"""
PATTERN = random.Random(0).randbytes(6_000_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tier() -> AsyncIterator[NamespaceTier]:
    async with open_local(warm=False, tiers={Tier.NAMESPACE}) as environment:
        driver = environment._tiers.opened(Tier.NAMESPACE)
        assert isinstance(driver, NamespaceTier)
        yield driver


@pytest_asyncio.fixture(loop_scope="module")
async def peer(tier: NamespaceTier) -> AsyncIterator[Peer]:
    async with open_peer(tier) as peer:
        yield peer


def opening(channel: int, service: bytes = b"list\0", span: int = 1) -> bytes:
    return frame(OPEN, channel, bytes([span]) + service)


# --- what is carried ---


@pytest.mark.parametrize(
    "size",
    [0, 1, FRAME - 1, FRAME, FRAME + 1, WINDOW - 1, WINDOW, WINDOW + 1, 5_000_000],
)
async def test_a_file_of_any_size_goes_both_ways(peer: Peer, size: int) -> None:
    # Around the sizes of a frame and of the window nothing is lost or added.
    content = PATTERN[:size]
    assert peer.put("folder/file", content) == {"written": size}
    assert peer.list_folder("folder") == {"file": ("file", size)}
    assert peer.get("folder/file") == content
    assert peer.run(ECHO.replace("sys.stderr.write", "len"), content) == content
    peer.until_idle()


class Traffic:
    """Random exchanges on one wire, side by side; each checks what it got."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer = peer
        self.chance = random.Random(seed)
        self.files: dict[str, bytes] = {}
        self.puts: dict[str, tuple[Stream, bytes, int]] = {}
        self.gets: list[tuple[str, Stream]] = []
        self.lists: list[tuple[Stream, set[str]]] = []
        self.echo: tuple[list[Stream], bytes, int] | None = None
        self.done = 0

    def size(self) -> int:
        return self.chance.choice([0, 1, 100, FRAME - 1, FRAME, FRAME + 1, 200_000, 600_000])

    def content(self) -> bytes:
        start = self.chance.randrange(1000)
        return PATTERN[start : start + self.size()]

    def begin(self) -> None:
        what = self.chance.randrange(5)
        if what == 0 and len(self.puts) < 10:
            path = f"file-{self.chance.randrange(40)}"
            if path not in self.puts and all(name != path for name, _ in self.gets):
                self.puts[path] = (self.peer.open("put", path.encode())[0], self.content(), 0)
        elif what in (1, 2) and self.files and len(self.gets) < 10:
            path = self.chance.choice(sorted(self.files))
            if path not in self.puts:
                (stream,) = self.peer.open("get", path.encode())
                self.peer.close(stream)
                self.gets.append((path, stream))
        elif what == 3 and len(self.lists) < 5:
            (stream,) = self.peer.open("list")
            self.peer.close(stream)
            self.lists.append((stream, set(self.files)))
        elif what == 4 and self.echo is None:
            self.echo = (self.peer.start(ECHO), self.content(), 0)

    def go_on(self) -> None:
        for path, (stream, content, sent) in list(self.puts.items()):
            if sent < len(content):
                more = self.chance.choice([1, 1000, FRAME, 300_000])
                self.peer.send(stream, content[sent : sent + more])
                self.puts[path] = (stream, content, sent + more)
            else:
                self.peer.close(stream)
        if self.echo is not None:
            streams, content, sent = self.echo
            if sent < len(content):
                more = self.chance.choice([1, 1000, FRAME, 300_000])
                self.peer.send(streams[STDIN], content[sent : sent + more])
                self.echo = (streams, content, sent + more)
            else:
                self.peer.close(streams[STDIN])
        for stream in list(self.peer.streams.values()):
            if stream.untaken and self.chance.random() < 0.7:
                self.peer.take(stream, self.chance.choice([1, 1000, FRAME, WINDOW]))

    def collect(self) -> None:
        for path, (stream, content, _) in list(self.puts.items()):
            if stream.over:
                assert stream.message() == {"written": len(content)}
                self.files[path] = content
                self.drop(stream)
                del self.puts[path]
        for path, stream in list(self.gets):
            if stream.over:
                assert stream.message() == {"size": len(self.files[path])}
                assert b"".join(stream.frames[1:]) == self.files[path]
                self.drop(stream)
                self.gets.remove((path, stream))
        for stream, there in list(self.lists):
            if stream.over:
                names = {name for name, _, _ in json.loads(stream.content)["entries"]}
                assert names >= there
                self.drop(stream)
                self.lists.remove((stream, there))
        if self.echo is not None and all(stream.over for stream in self.echo[0]):
            streams, content, _ = self.echo
            self.peer.end_of(streams)
            assert streams[STDOUT].content == content
            assert streams[STDERR].content.decode() == hashlib.sha256(content).hexdigest()
            for stream in streams:
                self.drop(stream)
            self.echo = None

    def drop(self, stream: Stream) -> None:
        self.peer.take(stream)
        assert stream.reset is None
        self.done += 1

    @property
    def idle(self) -> bool:
        return not (self.puts or self.gets or self.lists or self.echo)


@pytest.mark.parametrize("seed", range(4))
async def test_random_traffic_arrives_whole(peer: Peer, seed: int) -> None:
    # Files and programs side by side, taken by slow consumers, lose and mix up nothing.
    traffic = Traffic(peer, seed)
    peer.take_at_once = False
    for turn in range(2000):
        if turn < 400:
            traffic.begin()
        elif traffic.idle:
            break
        traffic.go_on()
        peer.step(0 if turn % 4 else 0.005)
        traffic.collect()
    assert traffic.idle
    assert traffic.done > 60
    peer.check_usable()


async def test_everything_at_once_comes_to_no_standstill(peer: Peer) -> None:
    # Megabytes both ways on many channels, while a program floods every output it has.
    peer.put("big", PATTERN)
    flood = peer.start(
        "import os, threading\n"
        "def write(number):\n"
        "    left = 2_000_000\n"
        "    while left: left -= os.write(number, b'x' * min(left, 50_000))\n"
        "threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(os.read(0, 9)) == 9\n"
    )
    peer.send(flood[STDIN], PATTERN[:2_000_000])
    gets = [peer.open("get", b"big")[0] for _ in range(8)]
    puts = [peer.open("put", b"copy-%d" % i)[0] for i in range(8)]
    for stream in puts:
        peer.send(stream, PATTERN[:1_000_000])
    peer.close(*gets, *puts, flood[STDIN])
    peer.until_over(*gets, *puts)
    assert peer.end_of(flood)["code"] == 0
    for number in (STDOUT, STDERR, RESULT):
        assert flood[number].content == b"x" * 2_000_000
    wanted = hashlib.sha256(PATTERN).digest()
    for stream in gets:
        assert hashlib.sha256(b"".join(stream.frames[1:])).digest() == wanted
    assert peer.get("copy-7") == PATTERN[:1_000_000]
    peer.check_usable()


async def test_a_long_source_arrives_whole(peer: Peer) -> None:
    # It is larger than the window and the pipe together.
    text = "x" * 3_000_000
    source = f"text = '{text}'\nimport hashlib; print(hashlib.sha256(text.encode()).hexdigest())"
    wanted = hashlib.sha256(text.encode()).hexdigest()
    assert peer.run(source).decode().strip() == wanted
    peer.check_usable()


async def test_any_bytes_are_a_name(peer: Peer) -> None:
    # Each byte of a name is spelled as the character of that number.
    name = bytes(byte for byte in range(1, 256) if byte != ord("/"))[:250]
    peer.run(f"open({name!r}, 'wb').write(b'abc')")
    assert peer.list_folder() == {name.decode("latin-1"): ("file", 3)}
    (stream,) = peer.open("get", name)
    peer.close(stream)
    peer.until_over(stream)
    assert stream.frames[1:] == [b"abc"]


# --- credit ---


async def test_what_nobody_takes_stops_at_the_window(peer: Peer) -> None:
    # A slow consumer holds up its own channel, to the byte, and no other.
    peer.put("big", PATTERN)
    peer.take_at_once = False
    (stuck,) = peer.open("get", b"big")
    endless = peer.start("while True: print('x' * 1000)")
    peer.until(lambda: stuck.untaken == WINDOW and endless[STDOUT].untaken == WINDOW)
    assert not peer.step(0.2)
    (lively,) = peer.open("get", b"big")
    while not lively.over:
        peer.step()
        peer.take(lively)
    assert len(lively.content) > len(PATTERN)
    peer.take(stuck, WINDOW // 2)
    peer.take(endless[STDOUT], WINDOW // 2 - 1)
    peer.until(lambda: stuck.untaken == WINDOW)
    assert endless[STDOUT].untaken == WINDOW // 2 + 1
    peer.send(endless[CONTROL], b"k")
    peer.until(lambda: endless[STDERR].closed)
    for stream in peer.streams.values():
        peer.reset(stream)
    peer.check_usable()


async def test_input_that_nobody_reads_stops_at_the_window(peer: Peer) -> None:
    # The host keeps the rest, and the agent serves others until the program is killed.
    streams = peer.start("import time; time.sleep(100)")
    peer.send(streams[STDIN], PATTERN)
    left = len(PATTERN) - WINDOW - 65_536  # what the pipe took was granted again, in part
    peer.until(lambda: peer.connection.queued(streams[STDIN].number) <= left + 65_536)
    assert peer.put("file", PATTERN[:300_000]) == {"written": 300_000}
    assert peer.get("file") == PATTERN[:300_000]
    assert peer.connection.queued(streams[STDIN].number) >= left - 65_536
    peer.send(streams[CONTROL], b"k")
    peer.until(lambda: bool(streams[CONTROL].frames))
    # Afterwards the rest is taken and thrown away.
    peer.close(streams[STDIN])
    ended = peer.end_of(streams)
    assert (ended["code"], ended["signal"]) == (None, 9)
    peer.check_usable()


async def test_input_beyond_the_end_of_its_reader_is_thrown_away(peer: Peer) -> None:
    # A program that closes its standard input does not hold up the host.
    streams = peer.start("import os, time\nos.close(0)\ntime.sleep(0.3)\nprint('done')")
    peer.send(streams[STDIN], PATTERN)
    peer.close(streams[STDIN])
    peer.until(lambda: peer.connection.queued(streams[STDIN].number) == 0)
    assert peer.end_of(streams)["code"] == 0
    assert streams[STDOUT].content == b"done\n"
    peer.check_usable()


# --- channels, their ends and their numbers ---


async def test_numbers_serve_again_and_again(peer: Peer) -> None:
    # Thousands of exchanges, however they end, get along with a few numbers.
    peer.put("small", b"abc")
    peer.until_idle()
    chance = random.Random(0)
    opened = 0
    highest = 0
    while opened < 3000:
        streams = []
        for _ in range(20):
            service, arguments = chance.choice(
                [
                    ("get", b"small"),
                    ("get", b"absent"),
                    ("list", b""),
                    ("put", b"other-%d" % chance.randrange(5)),
                    ("put", b"../x"),
                    ("nonsense", b"\0\xff"),
                ]
            )
            (stream,) = peer.open(service, arguments)
            streams.append(stream)
            if service == "put":
                peer.send(stream, b"x" * chance.randrange(1000))
            if chance.random() < 0.2:
                peer.reset(stream)
            else:
                peer.close(stream)
        opened += len(streams)
        highest = max(highest, *(stream.number for stream in streams))
        peer.until_over(*streams)
        peer.until_idle()
    assert highest == 20
    peer.check_usable()


async def test_programs_use_the_same_numbers(peer: Peer) -> None:
    # A session of many programs stays within one block of channels.
    for turn in range(12):
        streams = peer.start(f"print({turn})")
        assert streams[0].number == 1
        peer.close(streams[STDIN])
        peer.end_of(streams)
        assert streams[STDOUT].content == b"%d\n" % turn
        peer.until_idle()


async def test_a_channel_is_reset_in_the_middle_of_a_file(peer: Peer) -> None:
    # Whatever was under way is let go of, and its number serves again.
    peer.put("big", PATTERN)
    peer.until_idle()
    for turn in range(70):  # more than there is room for at once
        (stream,) = peer.open("put", b"half")
        peer.send(stream, PATTERN[:100_000])
        (other,) = peer.open("get", b"big")
        peer.until(lambda other=other: len(other.frames) > 1)  # type: ignore[misc]
        assert (stream.number, other.number) == (1, 2)
        peer.reset(stream)
        peer.reset(other)
        peer.until_idle()
        if turn % 20 == 0:
            peer.check_usable()
    peer.check_usable()


async def test_a_channel_is_reset_in_the_middle_of_a_listing(peer: Peer) -> None:
    # A folder that needs many pages, of which nobody takes any more than the window holds.
    peer.run("for i in range(3000): open(f'{i:0200d}', 'w')")
    peer.take_at_once = False
    (stream,) = peer.open("list")
    peer.until(lambda: stream.untaken > WINDOW - 2 * FRAME)
    while peer.step(0.1):
        pass
    assert not stream.over
    peer.reset(stream)
    peer.until_idle()
    peer.take_at_once = True
    assert len(peer.list_folder()) == 3000
    peer.check_usable()


@pytest.mark.parametrize("channel", [STDIN, STDOUT, STDERR, RESULT])
async def test_a_stream_of_a_program_is_reset(peer: Peer, channel: int) -> None:
    # The program sees a closed pipe; it is not ended, and its other streams go on.
    streams = peer.start(
        "import os, sys\n"
        "def ends(write):\n"
        "    try:\n"
        "        while write(): pass\n"
        "    except BrokenPipeError: pass\n"
        f"channel = {channel}\n"
        "if channel == 1:\n"
        "    ends(lambda: os.read(0, 65536))\n"
        "else:\n"
        "    ends(lambda: os.write(channel - 1, b'x' * 65536))\n"
        "os.write(2 if channel == 2 else 1, b'done')\n"
    )
    if channel == STDIN:
        peer.send(streams[STDIN], PATTERN)
        peer.until(lambda: peer.connection.queued(streams[STDIN].number) < 4_000_000)
    else:
        peer.until(lambda: len(streams[channel].content) > 2 * WINDOW)
    peer.reset(streams[channel])
    peer.close(streams[STDIN])
    assert peer.end_of(streams)["code"] == 0
    assert streams[STDERR if channel == STDOUT else STDOUT].content.endswith(b"done")
    peer.check_usable()


async def test_the_source_is_reset(peer: Peer) -> None:
    # A program whose source never comes whole does not run.
    source = b"print('ran')\n" + b"#" * 1_000_000
    arguments, specification = program(source)
    streams = peer.open("program", arguments, 6)
    peer.send(streams[SOURCE], specification + source[:500_000])
    peer.until(lambda: peer.connection.queued(streams[SOURCE].number) == 0)
    peer.reset(streams[SOURCE])
    peer.close(streams[STDIN])
    peer.end_of(streams)
    assert streams[STDOUT].content == b""
    peer.check_usable()


@pytest.mark.parametrize("channel", [CONTROL, STDIN, STDOUT, STDERR, RESULT])
async def test_a_number_serves_again_while_the_program_runs(peer: Peer, channel: int) -> None:
    # What is said on the new channel of a number is never taken for the old one.
    streams = peer.start("import sys, time\ntime.sleep(0.7)\nprint('done', file=sys.stderr)")
    if channel != STDIN:
        peer.close(streams[STDIN])
    peer.reset(streams[channel])
    peer.until(lambda: streams[channel].number not in peer.connection._channels)
    peer.connection.receive(b"")  # only what ended in an earlier one is free
    (upload,) = peer.open("put", b"file")
    assert upload.number == streams[channel].number
    for piece in (b"k", PATTERN[:100_000]):
        peer.send(upload, piece)
    peer.close(upload)
    peer.until_over(upload)
    assert upload.message() == {"written": 100_001}
    assert peer.get("file") == b"k" + PATTERN[:100_000]
    (late,) = peer.open("put", b"late")  # the program ends while it is under way
    peer.send(late, b"abc")
    rest = [stream for stream in streams if stream.number != upload.number]
    peer.until_over(*rest)
    peer.close(late, *rest)
    peer.until_over(late)
    assert late.message() == {"written": 3}
    if channel != STDERR:
        assert streams[STDERR].content == b"done\n"
    peer.check_usable()


async def test_more_files_than_there_is_room_for(peer: Peer) -> None:
    # The sixty-fifth is refused; the others go on, and there is room again.
    peer.put("big", PATTERN[:400_000])
    peer.take_at_once = False
    streams = [peer.open("get", b"big")[0] for _ in range(65)]
    peer.close(*streams)
    peer.until(lambda: streams[64].over)
    assert streams[64].reset == "too many files at once"
    peer.until(lambda: all(stream.untaken == WINDOW for stream in streams[:64]))
    peer.take_at_once = True
    for stream in streams[:64]:
        peer.take(stream)
    peer.until_over(*streams)
    assert all(b"".join(s.frames[1:]) == PATTERN[:400_000] for s in streams[:64])
    peer.check_usable()


async def test_more_channels_than_there_is_room_for(peer: Peer) -> None:
    # Requests that come faster than their channels end are refused one by one.
    peer.put("small", b"abc")
    streams = [peer.open("get", b"small")[0] for _ in range(300)]
    peer.until_over(*streams)
    served = [stream for stream in streams if stream.reset is None]
    assert len(served) >= 64
    assert all(stream.frames[1:] == [b"abc"] for stream in served)
    peer.close(*streams)
    peer.check_usable()


async def test_a_second_program_is_refused(peer: Peer) -> None:
    # The one that runs goes on; the other's channels end like all.
    first = peer.start("print(input())")
    second = peer.start("print('second')")
    peer.send(second[STDIN], b"x" * 300_000)
    peer.close(*second)
    peer.until_over(*second)
    assert second[CONTROL].message() == {"refused": {"what": "", "reason": "another program runs"}}
    assert all(not stream.frames for stream in second[1:])
    peer.send(first[STDIN], b"first\n")
    peer.close(first[STDIN])
    assert peer.end_of(first)["code"] == 0
    assert first[STDOUT].content == b"first\n"
    peer.check_usable()


async def test_the_last_program_ends_the_sandbox(peer: Peer) -> None:
    # Its report and all its output come before the wire's end.
    arguments, specification = program(last=True)
    streams = peer.open("program", arguments, 6)
    peer.send(streams[SOURCE], specification)
    peer.close(streams[SOURCE], streams[STDIN])
    peer.until_over(*streams)
    ended = streams[CONTROL].message()["ended"]
    assert isinstance(ended, dict)
    assert ended["code"] == 0
    peer.until_ended()


async def test_what_cannot_be_executed_is_refused(peer: Peer) -> None:
    # The reason comes as a message before the end, however long the name is.
    for name in ("absent", "x" * 3000, "x" * 10_000, "x" * 60_000):
        streams = peer.start(b"", name)
        peer.close(streams[STDIN])
        peer.until_over(*streams)
        refused, ended = (streams[CONTROL].message(i) for i in range(2))
        what = name[:1000]
        assert refused["refused"] == {"what": what, "reason": "no such program in the image"}
        assert "ended" in ended
        peer.close(*streams)
        peer.until_idle()
    peer.check_usable()


async def test_cpu_time_is_each_programs_own(peer: Peer) -> None:
    # The second program of a session is not charged for the first.
    burn = "import time\nstart = time.process_time()\nwhile time.process_time() < start + {}: pass"
    seconds = []
    for amount in (0.5, 0.0):
        streams = peer.start(burn.format(amount))
        peer.close(streams[STDIN])
        seconds.append(peer.end_of(streams)["cpu_seconds"])
    assert isinstance(seconds[0], float)
    assert isinstance(seconds[1], float)
    assert seconds[0] >= 0.5 > seconds[1]


@pytest.mark.parametrize("stdin", [b"", b"line\n", b"no end of line"])
async def test_a_terminal_ends_with_its_input(peer: Peer, stdin: bytes) -> None:
    # A program that reads until the end of its input sees it, wherever the last line ends.
    streams = peer.start("import sys; print(repr(sys.stdin.read()))", terminal=True)
    peer.send(streams[STDIN], stdin)
    peer.close(streams[STDIN])
    assert peer.end_of(streams)["code"] == 0
    assert repr(stdin.decode()).encode() in streams[STDOUT].content
    peer.check_usable()


async def test_a_terminal_ends_with_more_input_than_it_holds(peer: Peer) -> None:
    # The end waits for room like everything before it.
    for lines in range(40_000, 40_003):
        streams = peer.start(
            "import os, termios, time\n"
            "mode = termios.tcgetattr(0)\n"
            "mode[3] &= ~termios.ECHO\n"
            "termios.tcsetattr(0, termios.TCSANOW, mode)\n"
            "total = 0\n"
            "print('go', flush=True)\n"
            "time.sleep(0.05)\n"
            "while piece := os.read(0, 65536): total += len(piece)\n"
            "print(total)\n",
            terminal=True,
        )
        peer.until(lambda streams=streams: b"go" in streams[STDOUT].content)  # type: ignore[misc]
        peer.send(streams[STDIN], b"x\n" * lines)
        peer.close(streams[STDIN])
        assert peer.end_of(streams)["code"] == 0
        assert streams[STDOUT].content.split() == [b"go", b"%d" % (2 * lines)]
        peer.until_idle()


@pytest.mark.parametrize(
    "command", [b"", b"q", b"kk", b"s", b"s\x0f\x0f", b"r\0\x18", b"r" * 65_536]
)
async def test_an_unknown_command_changes_nothing(peer: Peer, command: bytes) -> None:
    # Only a command of the right length is one.
    streams = peer.start("print(input())")
    peer.send(streams[CONTROL], command)
    peer.send(streams[STDIN], b"hello\n")
    peer.close(streams[STDIN])
    assert peer.end_of(streams)["code"] == 0
    assert streams[STDOUT].content == b"hello\n"


# --- paths ---


@pytest.mark.parametrize("service", ["put", "get", "list"])
@pytest.mark.parametrize(
    "path",
    ["..", "../x", "a/../../x", "/etc/passwd", "/workspace/x", "link", "link/x", "up/x", "x" * 256],
)
async def test_a_path_that_leads_elsewhere_is_refused(peer: Peer, service: str, path: str) -> None:
    # Also where a program planted it; nothing is read or made outside.
    peer.run("import os; os.mkdir('a'); os.symlink('/etc/passwd', 'link'); os.symlink('..', 'up')")
    (stream,) = peer.open(service, path.encode())
    peer.send(stream, b"x")
    peer.close(stream)
    peer.until_over(stream)
    assert list(stream.message()) == ["error"]
    peer.check_usable()


@pytest.mark.parametrize("service", ["put", "get", "list"])
@pytest.mark.parametrize("path", [b"a\0b", b"\0", b"x" * 4096, b"x" * 60_000])
async def test_a_path_that_is_none_is_refused(peer: Peer, service: str, path: bytes) -> None:
    # No path of the kernel has a NUL, or so many bytes.
    (stream,) = peer.open(service, path)
    peer.send(stream, b"x" * 100_000)
    peer.close(stream)
    peer.until_over(stream)
    assert stream.reset == "a path that is too long, or has a NUL"
    peer.check_usable()


@pytest.mark.parametrize("arguments", [b"", b"\0" * 5, b"\0" * 12])
async def test_a_program_without_its_lengths_is_refused(peer: Peer, arguments: bytes) -> None:
    # The sandbox goes on.
    streams = peer.open("program", arguments, 6)
    peer.until_over(*streams)
    assert all(stream.reset is not None for stream in streams)
    peer.check_usable()


async def test_ceilings_that_nobody_keeps_are_refused(peer: Peer) -> None:
    # Those of this tier are the host's to keep: a program never runs without the ones it was given.
    streams = peer.start("print('ran')", ceilings=(64 << 20, 20))
    peer.until_over(*streams)
    assert {stream.reset for stream in streams} == {
        "ceilings that are incomplete, or that nobody here can keep"
    }
    assert not streams[STDOUT].content
    peer.check_usable()


async def test_what_is_no_plain_file_is_refused(peer: Peer) -> None:
    # A program can plant anything; the agent neither waits for it nor follows it.
    peer.run(
        "import os, socket\n"
        "os.mkfifo('fifo'); os.mkdir('folder'); open('one', 'w'); os.link('one', 'two')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
    )
    kinds = {name: kind for name, (kind, _) in peer.list_folder().items()}
    assert kinds == {
        "fifo": "other",
        "folder": "folder",
        "one": "file",
        "two": "file",
        "socket": "other",
    }
    for name in kinds:
        for service in ("get", "put"):
            (stream,) = peer.open(service, name.encode())
            peer.close(stream)
            peer.until_over(stream)
            assert list(stream.message()) == ["error"], (service, name)
    peer.check_usable()


# --- what breaks the rules ---

NOBODY = 40_000  # a number that is not open

ENDING = {
    "longer than a frame": struct.pack(">IHB", FRAME + 1, 1, DATA),
    "of any length": struct.pack(">IHB", 2**32 - 1, 1, DATA),
    "an unknown kind": frame(8, 1),
    "kind 0": frame(0, 1),
    "hello": frame(1, 1, b"{}"),
    "end": end(1),
    "an open channel": opening(1),
    "a span over an open channel": opening(65_534, b"list\0", 2) + opening(65_533, b"list\0", 2),
    "no payload": frame(OPEN, 2),
    "a span alone": frame(OPEN, 2, b"\1"),
    "no nul": opening(2, b"list"),
    "an empty credit": frame(CREDIT, 1),
    "a short credit": frame(CREDIT, 1, b"\0\0\1"),
    "a long credit": frame(CREDIT, 1, bytes(5)),
    "data after close": close(1) + data(1, b"x"),
    "empty data": frame(DATA, 1),
    "a payload in close": frame(CLOSE, 1, b"x"),
    "a second close": close(1) + close(1),
    "a long reason": frame(RESET, 1, b"x" * 1025),
    "an unknown kind for nobody": frame(8, NOBODY),
    "hello for nobody": hello(),
    "end for nobody": end(NOBODY),
    "data on channel 0": data(0, b"x"),
    "no channels": opening(2, b"list\0", 0),
    "too many channels": opening(2, b"list\0", 9),
    "channel 0": opening(0),
    "past the last channel": opening(65_535, b"list\0", 2),
}
# An open channel 1 on which the agent waits: a span of two, of which it uses the first.
HELD = opening(1, b"put\0held")


@pytest.mark.parametrize("name", ENDING)
async def test_what_breaks_the_protocol_ends_the_sandbox(peer: Peer, name: str) -> None:
    # At once, with a reason on channel 0; nothing that came later has any effect.
    if name in ("data after close", "a second close"):
        # A channel that stays open after CLOSE: an output of a program that runs.
        arguments, specification = program(b"#")
        before = opening(1, b"program\0" + arguments, 6) + data(6, specification)
    else:
        before = HELD
    peer.raw(before + ENDING[name] + opening(99))
    peer.hang_up()
    peer.until_ended()
    frames = cut(bytes(peer.received))
    kind, channel, reason = frames[-1]
    assert (kind, channel) == (RESET, 0)
    assert reason.isascii()
    assert all(number != 99 for _, number, _ in frames)


async def test_the_host_ends_the_connection(peer: Peer) -> None:
    # Nothing follows its RESET on channel 0.
    peer.raw(HELD + data(1, b"x") + reset(0, "enough") + opening(99))
    peer.hang_up()
    peer.until_ended()
    assert cut(bytes(peer.received)) == []


async def test_data_beyond_credit_ends_the_sandbox(peer: Peer) -> None:
    # A window that is exactly full is none too many; nobody reads this one.
    arguments, specification = program(b"", "sleep", "100")
    full = (
        opening(1, b"program\0" + arguments, 6)
        + data(6, specification)
        + data(2, bytes(FRAME)) * 4
        # Half a window is granted once the pipe has taken it, which it has no room for.
        + data(2, bytes(FRAME))
    )
    peer.raw(full + data(2, b"x") * 3)
    peer.until_ended()
    assert cut(bytes(peer.received))[-1][:2] == (RESET, 0)


@pytest.mark.parametrize("length", range(1, 12))
async def test_a_frame_that_is_cut_off_ends_with_the_wire(peer: Peer, length: int) -> None:
    # The agent waits for the rest, and ends when there is none.
    peer.raw((HELD + data(1, b"abcd"))[:-length])
    peer.hang_up()
    peer.until_ended()
    assert cut(bytes(peer.received)) == []


async def test_frames_about_channels_that_have_ended_are_ignored(peer: Peer) -> None:
    # The host may have sent them before it saw the end.
    late = data(7, b"x") + credit(7, 1) + close(7) + close(7) + reset(7, "late")
    peer.raw(opening(7, b"nonsense\0") + late * 3 + opening(7, b"get\0absent") + close(7) + late)
    peer.hang_up()
    peer.until_ended()
    assert cut(bytes(peer.received)) == [
        (RESET, 7, b"unknown service"),
        (DATA, 7, b'{"error":"No such file or directory"}'),
        (CLOSE, 7, b""),
        (END, 7, b""),
    ]


CHANNELS = st.integers(1, 4)
SERVICES = st.sampled_from([b"put\0a", b"put\0b", b"get\0a", b"get\0b", b"get\0c", b"nonsense\0x"])
GOOD = st.one_of(
    st.builds(opening, CHANNELS, SERVICES, st.integers(1, 2)),
    st.builds(data, CHANNELS, st.binary(min_size=1, max_size=20)),
    st.builds(data, CHANNELS, st.just(PATTERN[:FRAME])),
    st.builds(credit, CHANNELS, st.sampled_from([1, 131_072, 1_048_576])),
    st.builds(close, CHANNELS),
    st.builds(reset, CHANNELS, st.just("enough")),
)
BAD = st.one_of(
    st.builds(frame, st.sampled_from([CREDIT, OPEN]), CHANNELS, st.binary(max_size=6)),
    st.builds(opening, st.integers(0, 5), SERVICES, st.sampled_from([0, 1, 8, 9, 255])),
    st.builds(frame, st.integers(0, 9), st.integers(0, 5), st.binary(max_size=6)),
)


@settings(
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(GOOD, max_size=30), st.lists(BAD, max_size=1), st.lists(GOOD, max_size=5))
async def test_the_agent_says_what_the_model_says(
    tier: NamespaceTier, good: list[bytes], bad: list[bytes], more: list[bytes]
) -> None:
    # The same frames on each channel, and the same verdict, for sense and nonsense.
    model = ModelAgent()
    dies = False
    for each in good + bad + more:
        try:
            if not model.take(each):
                break
        except WireError:
            dies = True
            break
    async with open_peer(tier) as peer:
        peer.raw(b"".join(good + bad + more))
        peer.hang_up()
        peer.until_ended()
        said: dict[int, list[tuple[int, bytes]]] = {}
        for kind, channel, payload in cut(bytes(peer.received)):
            said.setdefault(channel, []).append((kind, payload))
        verdict = said.pop(0, None)
        assert said == model.frames
        assert (verdict is not None) == dies, verdict


@settings(
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(0, 2**32))
async def test_damaged_streams_end_in_bounded_time(tier: NamespaceTier, seed: int) -> None:
    # Whatever is changed, left out, doubled or swapped: whole frames come, and then an end.
    chance = random.Random(seed)
    source = b"import sys; sys.stdout.write(sys.stdin.read() * 1000)"
    arguments, specification = program(source)
    good = [
        opening(1, b"program\0" + arguments, 6),
        data(6, specification + source),
        close(6),
        data(2, b"abc" * 100),
        close(2),
        data(1, b"s\x0f"),
        data(1, b"k"),
        opening(9, b"put\0file"),
        data(9, b"content" * 100),
        close(9),
        opening(10, b"get\0file"),
        credit(10, 1000),
        opening(11),
        reset(11, "enough"),
        close(3),
        close(1),
    ]
    stream = bytearray(b"".join(good))
    for _ in range(chance.randint(1, 4)):
        place, other = chance.randrange(len(stream)), chance.randrange(len(stream))
        match chance.randrange(4):
            case 0:
                stream[place] = chance.randrange(256)
            case 1:
                del stream[place : place + chance.randint(1, 5)]
            case 2:
                stream[place:place] = stream[other : other + chance.randint(1, 40)]
            case _:
                stream[place], stream[other] = stream[other], stream[place]
    async with open_peer(tier) as peer:
        peer.raw(bytes(stream))
        peer.hang_up()
        peer.until_ended()
        for kind, _, payload in cut(bytes(peer.received)):
            assert kind in (DATA, CREDIT, CLOSE, RESET, END)
            assert len(payload) <= FRAME
