"""Short ways to ask for an execution, and the host's own view of what lives."""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from stockade.port import (
    Command,
    Enforcement,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    PythonScript,
    PythonSource,
    SandboxRequest,
    Stream,
)

_numbers = itertools.count(1)
T = TypeVar("T")


def source(
    text: str | bytes, *arguments: str, fresh: bool = False, **request: Any
) -> ExecutionRequest:
    """A request to run Python source."""
    return ExecutionRequest(PythonSource(text, arguments, fresh), **request)


def script(
    name: str, text: str | bytes, *arguments: str, fresh: bool = False, **request: Any
) -> ExecutionRequest:
    """A request to run a Python file of the workspace."""
    content = text.encode() if isinstance(text, str) else text
    return ExecutionRequest(PythonScript(name, content, arguments, fresh), **request)


def command(*argv: str, **request: Any) -> ExecutionRequest:
    """A request to run a program of the image."""
    return ExecutionRequest(Command(argv), **request)


def shell(line: str, **request: Any) -> ExecutionRequest:
    """A request to run a line of shell."""
    return command("sh", "-c", line, **request)


def small(**ceilings: float) -> SandboxRequest:
    """A sandbox with these limits, the others as they are by default."""
    return SandboxRequest(limits=Limits(**ceilings))  # type: ignore[arg-type]


def explain(execution: Execution) -> str:
    """What to show when an assertion about the record fails."""
    return (
        f"{execution.outcome} {execution.detail!r} code={execution.exit_code} "
        f"signal={execution.signal} stdout={execution.stdout.content[-300:]!r} "
        f"stderr={execution.stderr.content[-800:]!r}"
    )


def stdout_of(execution: Execution) -> str:
    """Standard output of an execution that must have ended well."""
    assert execution.ok, explain(execution)
    return execution.stdout.text()


def enforced(execution: Execution, limit: str) -> bool:
    """Whether the limit was kept for all processes of the sandbox together."""
    return execution.enforcement[limit] is Enforcement.ENFORCED


class Heard:
    """An output sink that remembers."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Stream, bytes]] = []
        self._news = asyncio.Event()

    async def __call__(self, stream: Stream, data: bytes) -> None:
        self.pieces.append((stream, data))
        self._news.set()

    def of(self, stream: Stream) -> bytes:
        """Everything that came on the stream."""
        return b"".join(data for heard, data in self.pieces if heard is stream)

    async def until(self, text: bytes, seconds: float = 10.0) -> None:
        """Wait until standard output contains the text."""
        async with asyncio.timeout(seconds):
            while text not in self.of(Stream.STDOUT):
                self._news.clear()
                await self._news.wait()


# --- what the host sees ---


def marker() -> str:
    """A number of seconds that no other program on this host sleeps for."""
    return f"{3000 + os.getpid() % 1000}.{next(_numbers):06d}{time.monotonic_ns() % 10**6:06d}"


def living(mark: str) -> list[int]:
    """Processes of the host whose command line contains the mark, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


async def soon(awaitable: Awaitable[T], seconds: float = 5.0) -> T:
    """Its result, which must come by itself: a time-out that cancels would hide a hang."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise AssertionError(f"it did not end by itself within {seconds:g} s")
    return task.result()


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        await asyncio.sleep(0.005)


async def until_living(mark: str, count: int = 1) -> list[int]:
    """Wait until that many processes have the mark."""
    await until(lambda: len(living(mark)) >= count)
    return living(mark)


def _status(pid: int, name: str) -> list[str]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1:]
    return []


def sandbox_init(pid: int) -> int:
    """The host's pid of pid 1 of the sandbox that a process is in."""
    depth = len(_status(pid, "NSpid"))
    while _status(pid, "NSpid")[depth - 1 :] != ["1"]:
        pid = int(_status(pid, "PPid")[0])
        assert len(_status(pid, "NSpid")) == depth, "left the sandbox without meeting its pid 1"
    return pid


def descendants(of: int | None = None) -> dict[int, str]:
    """Everything below a process, by pid, with the state; zombies included."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = text.rpartition(")")[2].split()[:2]
            parents[int(entry.name)] = (int(parent), state)
    found: dict[int, str] = {}
    wanted = {os.getpid() if of is None else of}
    while wanted:
        level = {pid for pid, (parent, _) in parents.items() if parent in wanted}
        found |= {pid: parents[pid][1] for pid in level}
        wanted = level
    return found


def zombies() -> list[int]:
    """Dead processes below this one that nobody reaped."""
    return [pid for pid, state in descendants().items() if state == "Z"]


def descriptors() -> dict[str, str]:
    """Open descriptors of this process and what they are."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue  # the one that lists
    return found


async def started(
    environment: ExecutionEnvironment, mark: str, *, limits: SandboxRequest | None = None
) -> tuple[Any, int]:
    """A running ``sleep`` and its pid on the host."""
    running = await environment.start(command("sleep", mark), limits)
    return running, (await until_living(mark))[0]
