"""Output live, in order and complete; the guest held back; the result channel."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stockade.port import MIB, ExecutionEnvironment, Outcome, Stream
from stockade.port.fake import Call, Scripted

from .fixtures import Port
from .kit import Heard, command, explain, shell, small, soon, source, stdout_of

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def test_both_streams_each_by_itself(port: Port) -> None:
    heard = Heard()
    execution = await port(Scripted(stdout=b"out\n", stderr=b"err\n")).run(
        shell("echo out; echo err >&2"), on_output=heard
    )
    assert execution.stdout.content == heard.of(Stream.STDOUT) == b"out\n"
    assert execution.stderr.content == heard.of(Stream.STDERR) == b"err\n"


async def test_output_comes_while_the_program_runs(port: Port) -> None:
    heard = Heard()

    async def play(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b"first\n")
        async for piece in call.stdin:
            await call.write(Stream.STDOUT, piece)
        return Scripted()

    asked = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        await asked.wait()
        yield b"second\n"

    running = await port(play).start(shell("echo first; exec cat"), stdin=pieces(), on_output=heard)
    await heard.until(b"first\n")
    asked.set()
    assert (await running.wait()).ok
    assert heard.of(Stream.STDOUT) == b"first\nsecond\n"


@pytest.mark.parametrize("size", [100_000, 5_000_000])
async def test_all_output_was_heard_before_the_record(port: Port, size: int) -> None:
    heard = Heard()
    lines = b"".join(b"%d\n" % number for number in range(size // 7))

    async def sink(stream: Stream, data: bytes) -> None:
        await asyncio.sleep(0)
        await heard(stream, data)

    async def play(call: Call) -> Scripted:
        for start in range(0, len(lines), 65_536):
            await call.write(Stream.STDOUT, lines[start : start + 65_536])
        return Scripted()

    execution = await port(play).run(
        command("seq", "0", str(size // 7 - 1)), small(record_bytes=1000), on_output=sink
    )
    assert execution.ok, explain(execution)
    assert heard.of(Stream.STDOUT) == lines
    assert execution.stdout.total == len(lines)


async def test_the_record_keeps_the_beginning_and_the_end(port: Port) -> None:
    lines = b"".join(b"%06d\n" % number for number in range(100_000))
    execution = await port(Scripted(stdout=lines)).run(
        source("for n in range(100000): print(f'{n:06}')"),
        small(record_bytes=10_000),
    )
    captured = execution.stdout
    assert (captured.head, captured.tail) == (lines[:5000], lines[-5000:])
    assert (captured.total, captured.dropped) == (len(lines), len(lines) - 10_000)


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 9, 10, 11])
async def test_the_record_keeps_exactly_what_was_asked_for(port: Port, kept: int) -> None:
    execution = await port(Scripted(stdout=b"0123456789")).run(
        command("printf", "0123456789"), small(record_bytes=kept)
    )
    captured = execution.stdout
    assert captured.total == 10
    assert len(captured.head) + len(captured.tail) == min(10, kept)
    assert b"0123456789".startswith(captured.head)
    assert b"0123456789".endswith(captured.tail)
    assert len(captured.head) in (kept // 2, (kept + 1) // 2, 10)


async def test_a_slow_sink_holds_the_guest_back(real: ExecutionEnvironment) -> None:
    """The program cannot have written everything while nobody took it."""
    # More than the sockets between a client and an executor hold: the kernel gives each some MiB.
    size = 48 * MIB
    text = (
        "import os, time\n"
        "start = time.monotonic()\n"
        f"for _ in range({size} // 65536): os.write(1, b'x' * 65536)\n"
        "os.write(3, b'%.3f' % (time.monotonic() - start))"
    )
    writes, held = asyncio.Event(), asyncio.Event()

    async def sink(stream: Stream, data: bytes) -> None:
        writes.set()
        await held.wait()

    limits = small(output_bytes=2 * size, record_bytes=1000)
    running = await real.start(source(text), limits, on_output=sink)
    await writes.wait()
    await asyncio.sleep(0.5)
    held.set()
    execution = await running.wait()
    assert execution.ok, explain(execution)
    assert float(execution.result or b"0") > 0.4
    assert execution.stdout.total == size


async def test_a_fast_guest_and_a_slow_sink_need_no_memory(real: ExecutionEnvironment) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    highest, total, before = 0, 0, resident()

    async def sink(stream: Stream, data: bytes) -> None:
        nonlocal highest, total
        total += len(data)
        highest = max(highest, resident())
        if total % (4 * MIB) < len(data):
            await asyncio.sleep(0.005)

    limits = small(output_bytes=64 * MIB, record_bytes=1000)
    execution = await real.run(
        command("head", "-c", str(64 * MIB), "/dev/zero"), limits, on_output=sink
    )
    assert execution.ok, explain(execution)
    assert total == 64 * MIB
    assert highest - before < 16 * MIB


async def test_one_stalled_stream_does_not_stall_the_other(real: ExecutionEnvironment) -> None:
    """Standard input that nobody reads does not hold up output, nor the result."""
    text = "import os\nfor _ in range(100): os.write(1, b'y' * 10000)\nos.write(3, b'done')"
    execution = await real.run(source(text), stdin=b"z" * 2_000_000)
    assert execution.ok, explain(execution)
    assert (execution.stdout.total, execution.result) == (1_000_000, b"done")


async def test_an_error_of_the_sink_ends_the_execution(port: Port) -> None:
    """It comes out of ``wait`` soon, and not only when the wall-clock limit is hit."""

    async def sink(stream: Stream, data: bytes) -> None:
        raise RuntimeError("the sink is full")

    async def play(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b"x")
        await asyncio.sleep(60)
        return Scripted()

    running = await port(play).start(
        shell("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"),
        small(wall_seconds=20),
        on_output=sink,
    )
    with pytest.raises(RuntimeError, match="the sink is full"):
        await soon(running.wait())


async def test_an_error_of_the_input_ends_the_execution(port: Port) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise RuntimeError("the source is gone")

    async def play(call: Call) -> Scripted:
        async for _ in call.stdin:
            pass
        return Scripted()

    running = await port(play).start(command("cat"), small(wall_seconds=20), stdin=pieces())
    with pytest.raises(RuntimeError, match="the source is gone"):
        await soon(running.wait())


# --- the ceiling on output ---


@pytest.mark.parametrize("size", [9_999, 10_000, 10_001])
@pytest.mark.parametrize("sunk", [False, True])
async def test_the_ceiling_on_output_is_exact(port: Port, size: int, sunk: bool) -> None:
    heard = Heard()
    execution = await port(Scripted(stdout=b"x" * size)).run(
        source(f"print('x' * {size}, end='')"),
        small(output_bytes=10_000),
        on_output=heard if sunk else None,
    )
    assert execution.outcome is (Outcome.OUTPUT if size > 10_000 else Outcome.OK)
    assert execution.stdout.content == b"x" * min(size, 10_000)
    if sunk:
        assert heard.of(Stream.STDOUT) == execution.stdout.content
    if size > 10_000:
        assert execution.limit is not None
        assert (execution.limit.name, execution.limit.ceiling) == ("output_bytes", 10_000)


async def test_both_streams_count_together(port: Port) -> None:
    async def play(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b"o" * 6000)
        await call.write(Stream.STDERR, b"e" * 4001)
        return Scripted()

    text = "import os; os.write(1, b'o' * 6000); os.write(2, b'e' * {})"
    execution = await port(play).run(source(text.format(4001)), small(output_bytes=10_000))
    assert execution.outcome is Outcome.OUTPUT
    assert execution.stdout.total + execution.stderr.total == 10_000


async def test_no_output_at_all_may_be_allowed(port: Port) -> None:
    assert (await port().run(source(""), small(output_bytes=0))).ok
    execution = await port(Scripted(stdout=b"1")).run(
        source("print(end='1')"), small(output_bytes=0)
    )
    assert execution.outcome is Outcome.OUTPUT
    assert execution.stdout.content == b""


async def test_endless_output_is_ended_at_the_ceiling(real: ExecutionEnvironment) -> None:
    execution = await real.run(command("yes"), small(output_bytes=1_000_000))
    assert execution.outcome is Outcome.OUTPUT, explain(execution)
    assert execution.stdout.total == 1_000_000
    assert execution.usage.wall_seconds < 5


# --- the result channel ---


async def test_the_result_travels_on_its_own_channel(port: Port) -> None:
    text = "import os; os.write(3, b'{\"a\": 1}'); print('no result')"
    execution = await port(Scripted(result=b'{"a": 1}', stdout=b"no result\n")).run(source(text))
    assert execution.result == b'{"a": 1}'
    assert execution.stdout.content == b"no result\n"


async def test_a_command_has_the_result_channel_as_well(real: ExecutionEnvironment) -> None:
    execution = await real.run(shell("printf abc >&3"))
    assert (execution.result, execution.stdout.total) == (b"abc", 0)


@pytest.mark.parametrize("size", [0, 4_999, 5_000, 5_001])
async def test_the_ceiling_on_the_result_is_exact(real: ExecutionEnvironment, size: int) -> None:
    execution = await real.run(
        source(f"import os; os.write(3, b'r' * {size})"), small(result_bytes=5_000)
    )
    assert execution.outcome is (Outcome.OUTPUT if size > 5_000 else Outcome.OK)
    assert execution.result == (b"r" * min(size, 5_000) if size else None)
    if size > 5_000:
        assert execution.limit is not None
        assert execution.limit.name == "result_bytes"


async def test_a_large_result_arrives_whole(real: ExecutionEnvironment) -> None:
    text = "import os\nwith open(3, 'wb', closefd=False) as f: f.write(bytes(range(256)) * 4000)"
    execution = await real.run(source(text))
    assert execution.result == bytes(range(256)) * 4000, explain(execution)


async def test_output_of_every_kind_of_writer(real: ExecutionEnvironment) -> None:
    """Threads, children and the parent interleave; nothing is lost."""
    text = (
        "import os, subprocess, threading\n"
        "def write(n):\n"
        "    for _ in range(200): os.write(1, (str(n) * 50 + '\\n').encode())\n"
        "threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]\n"
        "subprocess.run(['sh', '-c', 'for i in $(seq 200); do printf \"%050d\\n\" 4; done'])\n"
        "[t.join() for t in threads]\n"
    )
    lines = stdout_of(await real.run(source(text))).splitlines()
    expected = {str(n) * 50: 200 for n in range(4)} | {"4".rjust(50, "0"): 200}
    assert Counter(lines) == expected


async def test_a_closed_stream_is_no_end(real: ExecutionEnvironment) -> None:
    execution = await real.run(shell("exec >&-; sleep 0.1; echo late >&2; exit 4"))
    assert (execution.exit_code, execution.stderr.content) == (4, b"late\n"), explain(execution)


async def test_binary_output_is_not_touched(real: ExecutionEnvironment) -> None:
    text = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)"
    execution = await real.run(source(text))
    assert execution.stdout.content == bytes(range(256)) * 100
    assert "\ufffd" in execution.stdout.text()
