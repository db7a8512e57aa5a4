"""Short ways to ask for an execution, and the host's own view of what lives."""

import asyncio
import itertools
import os
import signal
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
    RunningExecution,
    SandboxRequest,
    Stream,
)

from .traits import TRAITS, Traits

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
    """Processes of the host whose command line contains the mark, zombies left out.

    A guest with a kernel of its own has none: there, ``Watch`` tells.
    """
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


def _status(pid: int) -> dict[str, str]:
    """``/proc/PID/status``; empty when there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


_PF_EXITING = 0x4


def dead_or_dying(pid: int) -> bool:
    """Whether none of its threads can run another instruction of its own.

    It is gone, or a zombie, or has begun to exit, or is to be killed before it returns from
    the kernel. Killed as a whole, a process has SIGKILL pending for each of its threads.
    """
    status = _status(pid)
    if not status or status["State"][0] in "ZX":
        return True
    pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    if pending >> (signal.SIGKILL - 1) & 1:
        return True
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def held(running: Any) -> Any:
    """The executor's own, of an execution or a session that is reached over HTTP."""
    service = vars(getattr(running, "_transport", object)).get("service")
    if service is None:
        return running
    # A gateway hands its own ids on; its tenant the executor knows by another word.
    for (_, identity), leased in service.sessions._leased.items():
        if identity == running.id:
            return leased.session
    (served,) = (
        served
        for (_, identity), served in service.executions._living.items()
        if identity == running.id
    )
    return served.running


class Watch:
    """One sandbox's processes on the host, whatever they are there."""

    def __init__(self, running: Any) -> None:
        """``running``: an execution or a session, which lives."""
        # The port tells no pid: what the executor holds is asked.
        running = held(running)
        pidfd = running._sandbox.boundary._pidfd
        information = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
        self.init = int(information[information.index("Pid:") + 1])
        """Pid 1 of the pid namespace that all of them are in."""
        assert self.init > 0
        self._seen = {self.init, *descendants(self.init)}
        hosts = TRAITS[running._sandbox.boundary.tier].shows_guests
        self._agents = {self.init} if hosts else self._seen - {self.init}

    def stand_still(self) -> None:
        """SIGSTOP to the agent, wherever it is."""
        for pid in self._agents:
            os.kill(pid, signal.SIGSTOP)

    def cpu_seconds(self) -> dict[int, float]:
        """What each took so far, of those that are still to be seen."""
        times = {}
        for pid in self._seen:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            times[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return times

    def living(self) -> list[int]:
        """Those that may run again. Where pid 1 is gone, the kernel has killed all others."""
        self._seen |= set(descendants(self.init))
        return [pid for pid in self._seen if not dead_or_dying(pid)]


async def watched(running: Any) -> Watch:
    """A sandbox's, once there is one: a dedicated machine boots after its execution was started."""
    await until(lambda: getattr(running, "program", running) is not None, 120)
    return Watch(getattr(running, "program", running))


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


async def settled() -> set[int]:
    """What is below this process once nothing changes: other pools have filled up."""
    before, since = set(descendants()), time.monotonic()
    while time.monotonic() - since < 0.4:
        await asyncio.sleep(0.02)
        now = set(descendants())
        if now != before:
            before, since = now, time.monotonic()
    return before


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


async def until_up(heard: Heard, mark: str, traits: Traits, count: int = 1) -> None:
    """Wait until that many processes have said ``up``, and are programs with the mark."""
    await until(lambda: heard.of(Stream.STDOUT).count(b"up\n") >= count, traits.seconds(10))
    if traits.shows_guests:
        await until_living(mark, count)


async def started(
    environment: ExecutionEnvironment, mark: str, traits: Traits
) -> tuple[RunningExecution, Watch]:
    """A running ``sleep``, and its sandbox in the host's eyes."""
    heard = Heard()
    running = await environment.start(sleeper(mark), on_output=heard)
    await until_up(heard, mark, traits)
    return running, await watched(running)


def sleeper(mark: str) -> ExecutionRequest:
    """Says ``up``, and becomes a ``sleep`` that ``living`` finds where it is the host's."""
    return shell(f"echo up; exec sleep {mark}")
