"""Cancelling, signals, terminals, many at once, closing."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator

import pytest

from stockade.port import (
    Execution,
    ExecutionEnvironment,
    Outcome,
    RunningExecution,
    SandboxRequest,
    StockadeError,
    Stream,
    TerminalSize,
    Tier,
    Unavailable,
)
from stockade.port.fake import Call, FakeEnvironment, Scripted
from stockade.port.policy import STRENGTH

from .fixtures import Port, open_tier
from .kit import (
    Heard,
    command,
    descendants,
    explain,
    living,
    marker,
    settled,
    shell,
    small,
    soon,
    source,
    stdout_of,
    until,
    until_up,
    watched,
)
from .traits import TRAITS, Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]

HARD_TO_KILL = (
    "import os, signal, sys, time\n"
    "for n in signal.valid_signals() - {9, 19, 17}: signal.signal(n, signal.SIG_IGN)\n"
    "for _ in range(3):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0: break\n"
    "        os._exit(0)\n"
    "os.write(1, b'up\\n')\n"
    "os.execvp('sleep', ['sleep', sys.argv[1]])"
)


# --- cancelling ---


async def test_cancelling_leaves_nothing_alive(real: ExecutionEnvironment, traits: Traits) -> None:
    mark, heard = marker(), Heard()
    running = await real.start(source(HARD_TO_KILL, mark), on_output=heard)
    await until_up(heard, mark, traits, 4)
    watch = await watched(running)
    await running.cancel()
    execution = await soon(running.wait())
    assert execution.outcome is Outcome.CANCELLED, explain(execution)
    assert living(mark) == watch.living() == []


async def test_cancelling_the_waiter_leaves_nothing_alive(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    mark, heard = marker(), Heard()
    running = await real.start(source(HARD_TO_KILL, mark), on_output=heard)
    task = asyncio.ensure_future(running.wait())
    await until_up(heard, mark, traits, 4)
    watch = await watched(running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert living(mark) == watch.living() == []


async def test_a_time_out_of_the_caller(port: Port) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await port(Scripted(delay=60)).run(command("sleep", "60"))


async def test_cancelling_at_once(port: Port) -> None:
    running = await port(Scripted(delay=60)).start(command("sleep", "60"))
    await running.cancel()
    assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_cancelling_twice_and_after_the_end(port: Port) -> None:
    running = await port(Scripted(delay=60)).start(command("sleep", "60"))
    await running.cancel()
    await running.cancel()
    record = await soon(running.wait())
    await running.cancel()
    await running.signal(signal.SIGTERM)
    assert await running.wait() == record


async def test_cancelling_after_the_end_changes_nothing(port: Port) -> None:
    running = await port(Scripted(stdout=b"x")).start(command("printf", "x"))
    record = await running.wait()
    await running.cancel()
    assert await running.wait() == record
    assert record.ok


async def test_several_wait_for_one(port: Port) -> None:
    running = await port(Scripted(stdout=b"x")).start(command("printf", "x"))
    records = await asyncio.gather(*(running.wait() for _ in range(3)))
    assert records[0] == records[1] == records[2]


async def test_partial_output_of_a_cancelled_program_is_kept(port: Port) -> None:
    heard = Heard()
    running = await port(Scripted(stdout=b"some\n", delay=60)).start(
        shell("echo some; exec sleep 60"), on_output=heard
    )
    await heard.until(b"some\n")
    await running.cancel()
    assert (await soon(running.wait())).stdout.content == b"some\n"


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
async def test_a_signal_ends_a_program(port: Port, number: int) -> None:
    heard = Heard()
    running = await port(Scripted(stdout=b"up\n", delay=60)).start(
        shell("echo up; exec sleep 60"), on_output=heard
    )
    await heard.until(b"up\n")
    await running.signal(number)
    execution = await soon(running.wait())
    assert (execution.outcome, execution.signal) == (Outcome.SIGNAL, number), explain(execution)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["warm", "command"])
async def test_a_signal_sent_at_once_is_not_lost(port: Port, number: int, kind: str) -> None:
    request = command("sleep", "60") if kind == "command" else source("import time; time.sleep(60)")
    running = await port(Scripted(delay=60)).start(request)
    await running.signal(number)
    execution = await soon(running.wait())
    assert (execution.outcome, execution.signal) == (Outcome.SIGNAL, number), explain(execution)


async def test_a_signal_that_the_program_handles(real: ExecutionEnvironment) -> None:
    text = (
        "import os, signal, sys, time\n"
        # Not print: the handler may run inside the one below, which is not reentrant.
        "signal.signal(signal.SIGUSR2, lambda n, f: (os.write(1, b'got it\\n'), sys.exit(5)))\n"
        # In steps: a signal that comes just before a sleep begins waits for its end.
        "print('up', flush=True)\nwhile True: time.sleep(0.05)"
    )
    heard = Heard()
    running = await real.start(source(text), on_output=heard)
    await heard.until(b"up\n")
    await running.signal(signal.SIGUSR2)
    execution = await soon(running.wait())
    assert (execution.exit_code, execution.stdout.content) == (5, b"up\ngot it\n")


async def test_a_signal_reaches_the_process_group(real: ExecutionEnvironment) -> None:
    heard = Heard()
    running = await real.start(
        shell(
            "trap 'exit 9' INT; (trap 'echo child; exit' INT; echo up; sleep 60 & wait) & wait; wait"
        ),
        on_output=heard,
    )
    await heard.until(b"up\n")
    await running.signal(signal.SIGINT)
    execution = await soon(running.wait())
    assert execution.exit_code == 9, explain(execution)


async def test_interrupting_python(real: ExecutionEnvironment) -> None:
    heard = Heard()
    running = await real.start(
        source("import time; print('up', flush=True)\nwhile True: time.sleep(0.05)"),
        on_output=heard,
    )
    await heard.until(b"up\n")
    await running.signal(signal.SIGINT)
    execution = await soon(running.wait())
    assert (execution.outcome, execution.signal) == (Outcome.SIGNAL, signal.SIGINT)
    assert execution.stderr.content.endswith(b"KeyboardInterrupt\n"), explain(execution)


@pytest.mark.parametrize("number", [0, 65, -1, 1000])
async def test_a_number_that_is_no_signal_harms_nothing(
    real: ExecutionEnvironment, number: int
) -> None:
    running = await real.start(shell("sleep 0.3; echo survived"))
    await asyncio.sleep(0.1)
    try:
        await running.signal(number)
    except ValueError:  # InvalidRequest is one: refused with a sentence is fine, too
        pass
    assert stdout_of(await running.wait()) == "survived\n"


# --- terminals ---

SIZE = TerminalSize(33, 117)


async def test_a_terminal(real: ExecutionEnvironment, traits: Traits) -> None:
    terminal = "/dev/tty" if traits.opens_own_terminal else "/dev/pts/0"
    text = (
        "import os, sys\n"
        "print([os.isatty(n) for n in range(4)], os.get_terminal_size(), os.ttyname(0))\n"
        f"print(open('{terminal}', 'w').isatty(), os.tcgetpgrp(0) == os.getpgrp())\n"
        "print('err', file=sys.stderr)"
    )
    for fresh in (False, True):
        execution = await real.run(source(text, terminal=SIZE, fresh=fresh))
        assert stdout_of(execution).splitlines() == [
            "[True, True, True, False] os.terminal_size(columns=117, lines=33) /dev/pts/0",
            "True True",
            "err",
        ]
        assert execution.stderr.total == 0
    execution = await real.run(command("stty", "size", terminal=SIZE))
    assert stdout_of(execution) == "33 117\r\n"


async def test_no_terminal_without_being_asked(real: ExecutionEnvironment, traits: Traits) -> None:
    refusal = "No such device or address" if traits.opens_own_terminal else "Input/output error"
    text = (
        "import os\nprint([os.isatty(n) for n in range(4)])\n"
        "try: os.open('/dev/tty', os.O_RDWR)\nexcept OSError as e: print(e.strerror)"
    )
    assert stdout_of(await real.run(source(text))) == f"[False, False, False, False]\n{refusal}\n"


async def test_resizing_a_terminal(real: ExecutionEnvironment) -> None:
    text = (
        "import os, signal\n"
        "signal.signal(signal.SIGWINCH, lambda n, f: None)\n"
        "print('up', flush=True)\n"
        "while (size := os.get_terminal_size()).lines == 33: signal.sigtimedwait({28}, 0.05)\n"
        "print(size.columns, size.lines)"
    )
    heard = Heard()
    running = await real.start(source(text, terminal=SIZE), on_output=heard, stdin=waiting())
    await heard.until(b"up")
    await running.resize(TerminalSize(50, 200))
    assert "200 50" in stdout_of(await soon(running.wait()))


async def waiting() -> AsyncIterator[bytes]:
    await asyncio.sleep(60)
    yield b""


async def test_control_c_is_a_byte(real: ExecutionEnvironment) -> None:
    heard = Heard()
    typed: asyncio.Queue[bytes] = asyncio.Queue()

    async def keys() -> AsyncIterator[bytes]:
        while True:
            yield await typed.get()

    running = await real.start(
        # exec: a shell that is about to fork may lose the signal, on any terminal.
        shell("echo up; exec sleep 60", terminal=SIZE),
        stdin=keys(),
        on_output=heard,
    )
    await heard.until(b"up")
    await typed.put(b"\x03")
    execution = await soon(running.wait())
    assert execution.signal == signal.SIGINT, explain(execution)


async def test_a_terminals_input_is_echoed_and_read(real: ExecutionEnvironment) -> None:
    execution = await real.run(
        source("print('<' + input() + '>')", terminal=SIZE), stdin=b"typed\n"
    )
    assert stdout_of(execution).replace("\r", "") == "typed\n<typed>\n"


async def test_the_end_of_a_terminals_input(real: ExecutionEnvironment) -> None:
    execution = await soon(real.run(command("cat", terminal=SIZE), stdin=b"a line\n"))
    assert execution.ok, explain(execution)
    execution = await soon(real.run(command("cat", terminal=SIZE), stdin=b"no newline"))
    assert execution.ok, explain(execution)


async def test_a_terminals_output_is_whole(real: ExecutionEnvironment) -> None:
    execution = await real.run(command("seq", "1", "50000", terminal=SIZE))
    assert stdout_of(execution) == "".join(f"{n}\r\n" for n in range(1, 50_001))


async def test_wall_clock_on_a_terminal(real: ExecutionEnvironment, traits: Traits) -> None:
    async def run(seconds: float) -> Execution:
        limits = small(wall_seconds=traits.seconds(seconds))
        return await real.run(shell("echo a; trap '' HUP; exec sleep 60", terminal=SIZE), limits)

    execution = await run(0.3)
    if not execution.stdout.total:
        execution = await run(8.0)  # on a busy host the limit may come before the first word
    assert (execution.outcome, execution.stdout.content) == (Outcome.WALL_CLOCK, b"a\r\n")


# --- many at once ---


async def test_twenty_at_once(port: Port) -> None:
    async def play(call: Call) -> Scripted:
        await asyncio.sleep(0.01)
        program = call.request.program
        return Scripted(stdout=program.arguments[0].encode())  # type: ignore[union-attr]

    environment = port(play)
    text = "import sys, time; time.sleep(0.05); print(end=sys.argv[1])"
    records = await asyncio.gather(
        *(environment.run(source(text, str(number))) for number in range(20))
    )
    assert [record.stdout.text() for record in records] == [str(number) for number in range(20)]


async def test_two_tenants_at_once(real: ExecutionEnvironment) -> None:
    """They see neither each other's files, nor processes, nor share a warm interpreter."""
    text = (
        "import os, pathlib, sys, time\n"
        "pathlib.Path('/tmp/mine').write_text(sys.argv[1])\n"
        "time.sleep(0.2)\n"
        "seen = pathlib.Path('/tmp/mine').read_text()\n"
        "print(seen, os.getuid(), len([n for n in os.listdir('/proc') if n.isdigit()]), os.listdir('/tmp'))"
    )
    records: list[Execution] = await asyncio.gather(
        *(
            real.run(source(text, tenant), SandboxRequest(tenant=tenant))
            for tenant in ("alpha", "beta") * 3
        )
    )
    for tenant, record in zip(("alpha", "beta") * 3, records, strict=True):
        assert stdout_of(record) == f"{tenant} 1000 2 ['mine']\n"


async def test_different_limits_at_once(real: ExecutionEnvironment) -> None:
    records = await asyncio.gather(
        *(
            real.run(command("seq", "100"), small(output_bytes=size))
            for size in (100, 292, 291, 1000)
        )
    )
    assert [record.outcome is Outcome.OK for record in records] == [False, True, False, True]


async def test_an_execution_does_not_wait_for_another(port: Port) -> None:
    plays = itertools.chain([Scripted(delay=60)], itertools.repeat(Scripted()))

    async def play(call: Call) -> Scripted:
        return next(plays)

    environment = port(play)
    slow = await environment.start(command("sleep", "60"))
    for _ in range(10):
        assert (await soon(environment.run(command("true")))).ok
    await slow.cancel()
    await soon(slow.wait())


# --- closing ---


@contextlib.asynccontextmanager
async def opened(kind: str) -> AsyncIterator[ExecutionEnvironment]:
    if kind == "fake":
        yield FakeEnvironment(lambda call: Scripted(delay=60))
        return
    async with open_tier(Tier(kind), 2) as environment:
        yield environment


KINDS = [
    "fake",
    *(pytest.param(tier.value, marks=pytest.mark.tier(tier.value)) for tier in STRENGTH),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_ends_everything(kind: str) -> None:
    before = await settled()
    mark, heard = marker(), Heard()
    async with opened(kind) as environment:
        running: list[RunningExecution] = [
            await environment.start(source(HARD_TO_KILL, mark), on_output=heard) for _ in range(3)
        ]
        session = await environment.open_session()
        running.append(await session.start(source(HARD_TO_KILL, mark), on_output=heard))
        if kind != "fake":
            await until_up(heard, mark, TRAITS[Tier(kind)], 16)
        waiters = [asyncio.ensure_future(one.wait()) for one in running]
        await soon(environment.close(), 10)
        assert living(mark) == []
        assert set(descendants()) - before == set()
        outcomes = [(await soon(waiter)).outcome for waiter in waiters]
        assert outcomes == [Outcome.CANCELLED] * 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_environment_refuses(kind: str) -> None:
    async with opened(kind) as environment:
        await environment.close()
        await environment.close()
        with pytest.raises(Unavailable):
            await environment.run(command("true"))
        with pytest.raises(Unavailable):
            await environment.start(command("true"))
        with pytest.raises(Unavailable):
            await environment.open_session()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turns", [0, 1, 5, 50])
async def test_closing_while_calls_come(kind: str, turns: int) -> None:
    """Each call ends soon: cancelled, lost, or with an error of ours."""
    before = await settled()
    mark = marker()
    async with opened(kind) as environment:
        calls = [asyncio.ensure_future(environment.run(command("sleep", mark))) for _ in range(6)]
        for _ in range(turns):
            await asyncio.sleep(0.005)
        try:
            await soon(environment.close(), 10)
            for one in calls:
                try:
                    outcome = (await soon(one)).outcome
                except StockadeError:
                    continue
                assert outcome in (Outcome.CANCELLED, Outcome.LOST)
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await environment.close()
        await until(lambda: not set(descendants()) - before, 2)
        assert living(mark) == []


async def test_the_sink_sees_nothing_after_the_record(real: ExecutionEnvironment) -> None:
    heard: list[Stream] = []

    async def sink(stream: Stream, data: bytes) -> None:
        heard.append(stream)

    running = await real.start(shell("(while :; do echo x; done) & sleep 0.1"), on_output=sink)
    await running.wait()
    count = len(heard)
    await asyncio.sleep(0.05)
    assert len(heard) == count
