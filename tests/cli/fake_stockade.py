"""The command with a fake executor: ``python fake_stockade.py SCENARIO run ...``.

Started by the tests as a process of its own, for what needs one: signals, closed
descriptors, terminals. What the executor was asked is appended to ``$FAKE_LOG``.
"""

import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from stockade.cli.host import Host
from stockade.cli.main import main as stockade
from stockade.port import Outcome, Stream, Tier
from stockade.port.fake import Call, FakeEnvironment, Scripted, cat


async def nothing(call: Call) -> Scripted:
    return Scripted()


async def sleep(call: Call) -> Scripted:
    await call.write(Stream.STDOUT, b"ready\r\n")
    return Scripted(delay=math.inf)


async def yes(call: Call) -> Scripted:
    while True:
        await call.write(Stream.STDOUT, b"y\n" * 4096)


async def partial_line(call: Call) -> Scripted:
    return Scripted(exit_code=3, stdout=b"no newline")


async def first_line(call: Call) -> Scripted:
    """Read one line and leave the rest of the input alone."""
    async for piece in call.stdin:
        return Scripted(stdout=piece)
    return Scripted(stdout=b"end of input\n")


async def both(call: Call) -> Scripted:
    return Scripted(stdout=b"out\n", stderr=b"err\n")


async def crash(call: Call) -> Scripted:
    await call.write(Stream.STDOUT, b"ready\r\n")
    raise ZeroDivisionError


async def memory(call: Call) -> Scripted:
    return Scripted(Outcome.MEMORY, detail="\x1b[31mred\u202e")


SCENARIOS: dict[str, Callable[[Call], Awaitable[Scripted]]] = {
    program.__name__: program
    for program in (cat, nothing, sleep, yes, partial_line, first_line, both, crash, memory)
}


def main() -> None:
    scenario = sys.argv.pop(1)
    ignored = {signal.SIGWINCH, signal.SIGINT} if scenario == "deaf" else {signal.SIGWINCH}
    play = sleep if scenario == "deaf" else SCENARIOS.get(scenario, nothing)

    @asynccontextmanager
    async def open_environment(_: Collection[Tier]) -> AsyncIterator[FakeEnvironment]:
        if scenario == "slow_to_open":
            import asyncio

            os.write(1, b"opening\n")
            await asyncio.sleep(60)
        fake = FakeEnvironment(play, ignored_signals=ignored)
        try:
            yield fake
        finally:
            await fake.close()
            log(fake)

    stockade(Host(open_environment))


def log(fake: FakeEnvironment) -> None:
    if "FAKE_LOG" in os.environ:
        calls = [
            {
                "program": repr(call.request.program),
                "terminal": repr(call.request.terminal),
                "environment": dict(call.request.environment),
                "signals": call.signals,
                "sizes": [[size.rows, size.columns] for size in call.sizes],
                "cancelled": call.cancelled,
                "outcome": call.execution.outcome if call.execution else None,
            }
            for call in fake.calls
        ]
        Path(os.environ["FAKE_LOG"]).write_text(json.dumps(calls))


if __name__ == "__main__":
    main()
