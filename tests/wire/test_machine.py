"""The agent of real machines: what it does there that it does in no other kernel."""

import json
import struct
import time
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from stockade.executor import PoolPolicy, open_local
from stockade.executor.sandbox import Profile
from stockade.executor.tiers import TierDriver
from stockade.port import MIB, Tier

from . import agent_peer
from .agent_peer import CONTROL, STDERR, STDIN, STDOUT, Peer, Stream, open_peer, program

pytestmark = [pytest.mark.tier("microvm"), pytest.mark.asyncio(loop_scope="module")]

CEILINGS = (256 * MIB, 32)
PROFILE = Profile(
    Tier.MICROVM, "test", 64 * MIB, 20_000, 1.0, 384 * MIB, memory_bytes=256 * MIB, processes=32
)
TOUCH = "bytearray(b'x') * 300_000_000"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that software plays starts an interpreter in seconds."""
    monkeypatch.setattr(agent_peer, "PATIENCE", 60.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tier() -> AsyncIterator[TierDriver]:
    # Nothing is parked; and yet each machine is a copy of one.
    async with open_local(
        pool=PoolPolicy.fixed(0), tiers={Tier.MICROVM}, allow_emulation=True
    ) as environment:
        yield environment._tiers.opened(Tier.MICROVM)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peer(tier: TierDriver) -> AsyncIterator[Peer]:
    """One machine for all tests that leave it as it was."""
    async with open_peer(tier, PROFILE) as peer:
        yield peer


def ended_of(
    peer: Peer, source: str, ceilings: tuple[int, int] | None = CEILINGS
) -> tuple[dict[str, object], list[Stream]]:
    streams = peer.start(source, ceilings=ceilings)
    peer.close(streams[STDIN])
    return peer.end_of(streams), streams


def values(ended: dict[str, object], names: Iterable[str]) -> list[object]:
    return [ended[name] for name in names]


ENDS = ("code", "signal", "processes_refused")


async def test_two_copies_have_no_randomness_in_common(tier: TierDriver) -> None:
    # They were one machine until their go-ahead.
    source = "import os, random, uuid; print(os.urandom(16).hex(), random.random(), uuid.uuid4())"
    told = []
    for _ in range(2):
        async with open_peer(tier, PROFILE) as peer:
            told.append(peer.run(source).split(b" "))
    assert len(told[0]) == len(told[1]) > 2
    assert all(one != other for one, other in zip(*told, strict=True))


async def test_the_clock_is_the_hosts(peer: Peer) -> None:
    # Not that of the moment when the machine was saved.
    before = time.time()
    told = float(peer.run("import time; print(time.time())"))
    assert before - 1 <= told <= time.time() + 1


async def test_what_is_told_of_an_end(peer: Peer) -> None:
    # The kernel's own counters, of all that the program was.
    ended, streams = ended_of(peer, "x = bytearray(b'x') * 40_000_000; print(len(x))")
    assert streams[STDOUT].content == b"40000000\n"
    assert set(ended) == {
        *("code", "signal", "cpu_seconds", "peak_memory_bytes", "disk", "inodes"),
        *("open_files", "peak_processes", "stragglers", "oom_kills", "processes_refused"),
    }
    assert (ended["code"], ended["oom_kills"], ended["processes_refused"]) == (0, 0, 0)
    assert isinstance(ended["peak_memory_bytes"], int)
    assert 40_000_000 < ended["peak_memory_bytes"] <= CEILINGS[0]


@pytest.mark.parametrize(
    "source",
    [
        f"x = {TOUCH}",
        f"import os\nif os.fork() == 0:\n    x = {TOUCH}\nos.wait(); print('alive')",
    ],
)
async def test_memory_beyond_the_ceiling_ends_the_program_as_a_whole(
    peer: Peer, source: str
) -> None:
    # Not one of its processes, whichever the kernel likes least.
    ended, streams = ended_of(peer, source, (64 * MIB, 32))
    assert values(ended, ENDS) == [None, 9, 0]
    assert isinstance(ended["oom_kills"], int)
    assert ended["oom_kills"] > 0
    assert streams[STDOUT].content == b""
    # Nor does it count for the next.
    ended, _ = ended_of(peer, "pass")
    assert (ended["code"], ended["oom_kills"]) == (0, 0)


async def test_as_many_processes_as_the_ceiling_says(peer: Peer) -> None:
    source = (
        "import os, time\nmade = 1\ntry:\n    while made < 50:\n        if os.fork() == 0:\n"
        "            time.sleep(60)\n            os._exit(0)\n        made += 1\n"
        "except OSError: pass\nprint(made)"
    )
    ended, streams = ended_of(peer, source, (256 * MIB, 20))
    assert streams[STDOUT].content == b"20\n"
    assert values(ended, ENDS) == [0, None, 1]
    assert values(ended, ("peak_processes", "stragglers")) == [20, 19]
    ended, _ = ended_of(peer, "pass")
    assert values(ended, ("peak_processes", "processes_refused")) == [1, 0]


async def test_a_fork_bomb_is_killed(peer: Peer) -> None:
    # The agent gets to run, whatever the programs do.
    streams = peer.start(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ceilings=CEILINGS
    )
    peer.close(streams[STDIN])
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        peer.step()
    peer.send(streams[CONTROL], b"k")
    assert values(peer.end_of(streams), ("code", "signal")) == [None, 9]
    peer.check_usable()


@pytest.mark.parametrize("length", [13, 14, 24, 26])
async def test_ceilings_that_are_incomplete_are_refused(peer: Peer, length: int) -> None:
    arguments, _ = program(b"", ceilings=CEILINGS)
    streams = peer.open("program", (arguments + b"\0")[:length], 6)
    peer.until_over(*streams)
    assert all(stream.reset for stream in streams)
    peer.check_usable()


async def test_the_guest_sees_itself_and_nothing_of_the_machine(peer: Peer) -> None:
    source = (
        "import json, os\n"
        "print(json.dumps([sorted(os.listdir('/dev')), os.listdir('/sys'),\n"
        "    sorted(n for n in os.listdir('/proc') if n not in ('1', str(os.getpid())))]))"
    )
    devices, system, processes = json.loads(peer.run(source))
    assert " ".join(devices) == (
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    )
    assert system == []
    assert processes == ["self", "thread-self"]


@pytest.mark.parametrize(
    "attempt",
    [
        *(f"os.kill(1, {number})" for number in (9, 15, 19)),
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
        *(f"open('/proc/1/{name}')" for name in ("mem", "environ", "maps")),
        "os.listdir('/proc/1/fd')",
        "os.mknod('/tmp/port', 0o20600, os.makedev(247, 1))",
        "open('/dev/new', 'w')",
        "time.clock_settime(time.CLOCK_REALTIME, 1.0)",
        "fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), 0x5207)",
    ],
)
async def test_no_right_is_left_to_a_program(peer: Peer, attempt: str) -> None:
    # RNDRESEEDCRNG is the last, which the agent itself may no more.
    source = (
        "import fcntl, os, resource, time\n"
        f"try: {attempt}\nexcept OSError as error: print(error.errno)"
    )
    assert peer.run(source) in (b"1\n", b"13\n", b"30\n")


async def test_many_pages_go_through_the_port(peer: Peer) -> None:
    # It takes and gives one at a time.
    content = bytes(range(256)) * 8_000
    assert peer.put("pages", content) == {"written": len(content)}
    assert peer.get("pages") == content
    streams = peer.start("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
    peer.send(streams[STDIN], content)
    peer.close(streams[STDIN])
    assert peer.end_of(streams)["code"] == 0
    assert (streams[STDOUT].content, streams[STDERR].content) == (content, b"")


async def test_the_last_word_is_heard_before_the_machine_ends(tier: TierDriver) -> None:
    # What the host has not taken of a port is lost with its machine.
    async with open_peer(tier, PROFILE) as peer:
        peer.take_at_once = False
        streams = peer.start("print('x' * 100_000)", last=True, ceilings=CEILINGS)
        peer.close(streams[STDIN])
        peer.until(lambda: len(streams[CONTROL].frames) > 0)
        assert streams[CONTROL].message()["ended"]
        assert len(streams[STDOUT].content) == 100_001


@pytest.mark.parametrize("frame", [struct.pack("!IHB", 0, 1, 1), struct.pack("!IHB", 1, 0, 6)])
async def test_what_breaks_the_protocol_ends_the_machine(tier: TierDriver, frame: bytes) -> None:
    async with open_peer(tier, PROFILE) as peer:
        peer.raw(frame + b"x")
        peer.until_ended()
