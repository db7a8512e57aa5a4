"""An execution environment that runs nothing: it plays a script, in memory.

For the tests of whatever calls the port, ours and other people's::

    environment = FakeEnvironment([Scripted(stdout=b"hello\\n"), Scripted(exit_code=3)])
    async with environment:
        assert (await environment.run(request)).stdout.content == b"hello\\n"
        assert (await environment.run(request)).outcome is Outcome.NONZERO_EXIT
    assert environment.calls[0].request == request

A script entry may be an async function instead, which plays the program: it reads
``call.stdin``, writes with ``await call.write(...)`` and returns a :class:`Scripted`.
"""

import asyncio
import base64
import hashlib
import json
import math
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Self

from stockade.port.egress import EgressEvent, EgressSink, EgressUse
from stockade.port.environment import OutputSink, StandardInput, WorkspaceEntry
from stockade.port.errors import FileRefused, InvalidRequest, SandboxLost, Unavailable
from stockade.port.execution import (
    Artefact,
    Captured,
    Enforcement,
    Execution,
    LimitHit,
    MissingArtefact,
    Stream,
    Timings,
    Usage,
)
from stockade.port.limits import Limits
from stockade.port.outcome import Outcome
from stockade.port.policy import candidates, named_by_offer, refusal
from stockade.port.program import (
    ExecutionRequest,
    PythonScript,
    SandboxRequest,
    TerminalSize,
    check_workspace_path,
    placed,
)
from stockade.port.tier import Tier

# A program that installed no handler is not ended by these: SIGCHLD, SIGCONT, SIGURG, SIGWINCH.
_HARMLESS_SIGNALS = frozenset({17, 18, 23, 28})

_LIMIT_OF_OUTCOME = {
    Outcome.WALL_CLOCK: "wall_seconds",
    Outcome.CPU_TIME: "cpu_seconds",
    Outcome.MEMORY: "memory_bytes",
    Outcome.PROCESSES: "processes",
    Outcome.OPEN_FILES: "open_files",
    Outcome.DISK: "disk_bytes",
    Outcome.INODES: "inodes",
    Outcome.OUTPUT: "output_bytes",
}


@dataclass(frozen=True, slots=True)
class Scripted:
    """What one execution does. Left alone, it prints nothing and ends well."""

    outcome: Outcome | None = None
    """``None`` for what ``exit_code`` says: ``ok`` or ``nonzero_exit``."""
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    """``None`` for 0 where the program came to its end by itself, and for no code otherwise."""
    signal: int | None = None
    result: bytes | None = None
    delay: float = 0.0
    """Seconds between the output and the end; beyond ``wall_seconds`` the limit is hit."""
    artefacts: Mapping[str, bytes] = field(default_factory=dict)
    """Files it leaves in the workspace."""
    detail: str = ""
    """Empty for a sentence made from the outcome."""
    limit: LimitHit | None = None
    """``None`` for the ceiling that belongs to the outcome."""
    usage: Usage | None = None
    egress: EgressUse | None = None
    """``None`` for none, of a sandbox whose policy has any."""


class Call:
    """One execution that was asked for, and what was done to it since."""

    def __init__(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        stdin: StandardInput,
        on_output: OutputSink | None,
        workspace: dict[str, bytes],
        tier: Tier,
        on_egress: EgressSink | None = None,
    ) -> None:
        self.request = request
        self.sandbox = sandbox
        self.tier = tier
        """The one that was chosen for it."""
        self.workspace = workspace
        """The files of the sandbox, by path; kept between the calls of a session."""
        self.stdin: AsyncIterator[bytes] = _pieces(stdin)
        """Standard input, in pieces as they come."""
        self.signals: list[int] = []
        self.sizes: list[TerminalSize] = []
        self.cancelled = False
        self.going = asyncio.Event()
        """Not set while its session is paused: it then neither writes nor comes to its end."""
        self.going.set()
        self.execution: Execution | None = None
        """The record, once there is one."""
        self._on_output = on_output
        self._on_egress = on_egress
        self._written = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}

    def __repr__(self) -> str:
        state = self.execution.outcome if self.execution else "running"
        return f"<Call {type(self.request.program).__name__}: {state}>"

    async def write(self, stream: Stream, data: bytes) -> None:
        """Let the program write. Returns when the output sink has taken it."""
        await self.going.wait()
        if not data:
            return
        if self.request.terminal is not None:
            stream = Stream.STDOUT
        room = self.sandbox.limits.output_bytes - sum(map(len, self._written.values()))
        taken = data[: max(room, 0)]
        self._written[stream] += taken
        if taken and self._on_output is not None:
            await self._on_output(stream, taken)
        if len(taken) < len(data):
            raise _TooMuchOutput

    async def tell(self, event: EgressEvent) -> None:
        """Let whoever watches the network hear of a connection."""
        if self._on_egress is not None:
            await self._on_egress(event)

    def captured(self, stream: Stream) -> Captured:
        """What it has written so far, as a record keeps it."""
        data = bytes(self._written[stream])
        kept = self.sandbox.limits.record_bytes
        if len(data) <= kept:
            return Captured(data, b"", len(data))
        head = kept // 2
        return Captured(data[:head], data[len(data) - (kept - head) :], len(data))


Program = Callable[[Call], Awaitable[Scripted]]
Script = Iterable[Scripted | Program] | Callable[[Call], Scripted | Awaitable[Scripted]]


class _TooMuchOutput(Exception):
    """The fake program wrote beyond ``output_bytes``."""


async def cat(call: Call) -> Scripted:
    """A program that copies standard input to standard output; an entry of a script."""
    async for piece in call.stdin:
        await call.write(Stream.STDOUT, piece)
    return Scripted()


async def _pieces(stdin: StandardInput) -> AsyncIterator[bytes]:
    if isinstance(stdin, bytes):
        if stdin:
            yield stdin
        return
    async for piece in stdin:
        yield piece


class FakeRunningExecution:
    """An execution of a script entry."""

    def __init__(
        self, call: Call, play: Callable[[Call], Awaitable[Scripted]], ignored: frozenset[int]
    ) -> None:
        self.call = self._call = call
        self._ignored = ignored
        self._ended: asyncio.Future[Scripted] = asyncio.get_running_loop().create_future()
        self.life = asyncio.create_task(self._live(play))
        """Done when nothing of it lives."""

    @property
    def done(self) -> bool:
        return self.life.done()

    async def signal(self, number: int) -> None:
        self._call.signals.append(number)
        if number not in self._ignored:
            self._end(Scripted(Outcome.SIGNAL, signal=number))

    async def resize(self, size: TerminalSize) -> None:
        self._call.sizes.append(size)

    async def cancel(self) -> None:
        self._call.cancelled = True
        self._end(Scripted(Outcome.CANCELLED))

    async def wait(self) -> Execution:
        try:
            return await asyncio.shield(self.life)
        except asyncio.CancelledError:
            await self.cancel()
            await asyncio.wait([self.life])
            raise

    def _end(self, how: Scripted) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    async def _live(self, play: Callable[[Call], Awaitable[Scripted]]) -> Execution:
        call = self._call
        loop = asyncio.get_running_loop()
        started = loop.time()
        program = asyncio.ensure_future(_play(play, call))
        ceiling = call.sandbox.limits.wall_seconds
        await asyncio.wait(
            [program, self._ended], timeout=ceiling, return_when=asyncio.FIRST_COMPLETED
        )
        # The end from outside counts only for a program that still ran, as with a real process.
        if program.done():
            try:
                scripted = program.result()
            except _TooMuchOutput:
                scripted = Scripted(Outcome.OUTPUT)
        else:
            program.cancel()
            await asyncio.wait([program])
            ended = self._ended.done()
            scripted = self._ended.result() if ended else Scripted(Outcome.WALL_CLOCK)
        self._end(scripted)
        execution = _record(call, scripted, loop.time() - started)
        call.execution = execution
        return execution


async def _play(play: Callable[[Call], Awaitable[Scripted]], call: Call) -> Scripted:
    scripted = await play(call)
    await call.write(Stream.STDOUT, scripted.stdout)
    await call.write(Stream.STDERR, scripted.stderr)
    if math.isinf(scripted.delay):
        await asyncio.get_running_loop().create_future()
    if scripted.delay:
        await asyncio.sleep(scripted.delay)
    await call.going.wait()
    call.workspace.update(scripted.artefacts)
    return scripted


def _record(call: Call, scripted: Scripted, seconds: float) -> Execution:
    outcome = scripted.outcome
    if outcome is None:
        outcome = Outcome.NONZERO_EXIT if scripted.exit_code else Outcome.OK
    exit_code = scripted.exit_code
    if exit_code is None and outcome is Outcome.OK:
        exit_code = 0
    if exit_code is None and outcome is Outcome.NONZERO_EXIT:
        exit_code = 1
    stdout, stderr = call.captured(Stream.STDOUT), call.captured(Stream.STDERR)
    written = stdout.total + stderr.total + len(scripted.result or b"")
    artefacts, missing = _collect(call.workspace, call.request.artefacts)
    return Execution(
        outcome,
        scripted.detail or _sentence(outcome, exit_code, scripted.signal),
        exit_code=exit_code,
        signal=scripted.signal,
        limit=scripted.limit or _limit(outcome, call.sandbox.limits),
        stdout=stdout,
        stderr=stderr,
        result=scripted.result,
        artefacts=artefacts,
        missing_artefacts=missing,
        usage=scripted.usage or Usage(wall_seconds=seconds, written_bytes=written),
        timings=Timings(ran=seconds),
        tier=call.tier,
        enforcement={limit.name: Enforcement.ENFORCED for limit in fields(Limits)},
        egress=scripted.egress or (EgressUse() if call.sandbox.egress.listens else None),
    )


def _sentence(outcome: Outcome, exit_code: int | None, signal: int | None) -> str:
    if outcome is Outcome.NONZERO_EXIT:
        return f"the program exited with {exit_code}"
    if outcome is Outcome.SIGNAL:
        return f"the program was ended by signal {signal}"
    return f"the script says {outcome}"


def _limit(outcome: Outcome, limits: Limits) -> LimitHit | None:
    name = _LIMIT_OF_OUTCOME.get(outcome)
    return LimitHit(name, getattr(limits, name), None) if name else None


def _collect(
    workspace: Mapping[str, bytes], names: tuple[str, ...]
) -> tuple[tuple[Artefact, ...], tuple[MissingArtefact, ...]]:
    there = [
        Artefact(name, workspace[name], "sha256:" + hashlib.sha256(workspace[name]).hexdigest())
        for name in names
        if name in workspace
    ]
    missing = [MissingArtefact(name, "no such file") for name in names if name not in workspace]
    return tuple(there), tuple(missing)


_Begin = Callable[
    [
        ExecutionRequest,
        SandboxRequest,
        StandardInput,
        OutputSink | None,
        dict[str, bytes],
        EgressSink | None,
    ],
    FakeRunningExecution,
]


class FakeSession:
    """A sandbox that lives across several executions, with its workspace in a dictionary."""

    def __init__(self, sandbox: SandboxRequest, begin: _Begin, tier: Tier = Tier.NAMESPACE) -> None:
        self.sandbox = sandbox
        self.tier = tier
        self.workspace: dict[str, bytes] = {}
        self.closed = False
        self.paused = False
        self._begin = begin
        self._running: FakeRunningExecution | None = None

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> FakeRunningExecution:
        self._check_idle()
        self._running = self._begin(
            request, self.sandbox, stdin, on_output, self.workspace, on_egress
        )
        return self._running

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        running = await self.start(request, stdin=stdin, on_output=on_output, on_egress=on_egress)
        return await running.wait()

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        self._check_at_work()
        _check_path(path)
        data = b"".join([piece async for piece in _pieces(content)])
        folders = path.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            if "/".join(folders[:depth]) in self.workspace:
                raise FileRefused(path, f"{'/'.join(folders[:depth])!r} is not a folder")
        if self._is_folder(path):
            raise FileRefused(path, "is a folder")
        others = sum(len(held) for name, held in self.workspace.items() if name != path)
        if others + len(data) > self.sandbox.limits.disk_bytes:
            raise FileRefused(path, f"exceeds limits.disk_bytes ({self.sandbox.limits.disk_bytes})")
        self.workspace[path] = data

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        self._check_at_work()
        _check_path(path)
        if path not in self.workspace:
            raise FileRefused(path, "is a folder" if self._is_folder(path) else "no such file")
        data = self.workspace[path]
        for start in range(0, len(data), 65_536):
            yield data[start : start + 65_536]

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        self._check_at_work()
        if path:
            _check_path(path)
            if not self._is_folder(path):
                reason = "is not a folder" if path in self.workspace else "no such folder"
                raise FileRefused(path, reason)
        start = f"{path}/" if path else ""
        entries: dict[str, WorkspaceEntry] = {}
        for name, data in self.workspace.items():
            if name.startswith(start):
                first, deeper, _ = name[len(start) :].partition("/")
                kind, size = ("folder", 0) if deeper else ("file", len(data))
                entries[first] = WorkspaceEntry(first, kind, size)
        return [entries[name] for name in sorted(entries)]

    async def pause(self) -> None:
        self._check_open()
        self.paused = True
        if self._running is not None and not self._running.life.done():
            self._running.call.going.clear()
            # Its end ends the pause.
            self._running.life.add_done_callback(lambda _: self._go_on())

    async def resume(self) -> None:
        self._check_open()
        self._go_on()

    async def save(self) -> AsyncIterator[bytes]:
        self._check_idle()
        saved = {
            base64.b64encode(os.fsencode(name)).decode(): base64.b64encode(data).decode()
            for name, data in self.workspace.items()
        }
        yield json.dumps(saved).encode()

    async def restore(self, content: bytes | AsyncIterable[bytes]) -> None:
        self._check_idle()
        data = b"".join([piece async for piece in _pieces(content)])
        try:
            restored = {
                os.fsdecode(base64.b64decode(name)): base64.b64decode(held)
                for name, held in json.loads(data).items()
            }
        except (ValueError, AttributeError, TypeError):
            raise FileRefused("", "the workspace cannot be restored: none was saved so") from None
        restored = self.workspace | restored
        if sum(map(len, restored.values())) > self.sandbox.limits.disk_bytes:
            raise FileRefused("", f"exceeds limits.disk_bytes ({self.sandbox.limits.disk_bytes})")
        self.workspace.update(restored)

    async def close(self) -> None:
        self.closed = True
        if self._running is not None:
            await self._running.cancel()
            await asyncio.wait([self._running.life])
        self.workspace.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        running = self._running is not None and not self._running.life.done()
        state = "paused" if self.paused else "running" if running else "idle"
        if self.closed:
            state = "closed"
        return f"<FakeSession {self.sandbox.tenant}: {state}, {len(self.workspace)} files>"

    def _is_folder(self, path: str) -> bool:
        return any(name.startswith(f"{path}/") for name in self.workspace)

    def _go_on(self) -> None:
        self.paused = False
        if self._running is not None:
            self._running.call.going.set()

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxLost("the session is closed")

    def _check_at_work(self) -> None:
        self._check_open()
        if self.paused:
            raise InvalidRequest("session", "it is paused; resume it first")

    def _check_idle(self) -> None:
        self._check_at_work()
        if self._running is not None and not self._running.life.done():
            raise InvalidRequest("session", "an execution still runs in it; wait for its end")


def _check_path(path: str) -> None:
    try:
        check_workspace_path("path", path)
    except InvalidRequest as error:
        raise FileRefused(path, str(error)) from None


class FakeEnvironment:
    """An :class:`~stockade.port.environment.ExecutionEnvironment` that plays a script.

    ``script`` is a list, one entry for each execution in turn, or a callable that is given
    each :class:`Call`. Without a script every execution is ``Scripted()``.
    ``tiers`` are those that it pretends to have; it chooses and refuses as an executor does.
    ``ignored_signals`` do not end a program; they are still recorded in ``call.signals``.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        tiers: Iterable[Tier] = tuple(Tier),
        ignored_signals: Iterable[int] = _HARMLESS_SIGNALS,
    ) -> None:
        self.calls: list[Call] = []
        """Every execution that was asked for, sessions' included, in order."""
        self.sessions: list[FakeSession] = []
        self.closed = False
        self._script = script if callable(script) or script is None else iter(script)
        self._tiers = frozenset(tiers)
        self._ignored = frozenset(ignored_signals)
        self._alive: set[FakeRunningExecution] = set()

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> FakeRunningExecution:
        self._check_open()
        return self._begin(request, sandbox or SandboxRequest(), stdin, on_output, {}, on_egress)

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        running = await self.start(
            request, sandbox, stdin=stdin, on_output=on_output, on_egress=on_egress
        )
        return await running.wait()

    async def open_session(self, sandbox: SandboxRequest | None = None) -> FakeSession:
        self._check_open()
        wanted = sandbox or SandboxRequest()
        session = FakeSession(wanted, self._begin, self._choose(wanted))
        self.sessions.append(session)
        return session

    async def close(self) -> None:
        self.closed = True
        for session in self.sessions:
            await session.close()
        running = list(self._alive)
        for execution in running:
            await execution.cancel()
        if running:
            await asyncio.wait([execution.life for execution in running])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<FakeEnvironment {state}: {len(self._alive)} running, {len(self.calls)} calls>"

    def _begin(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        stdin: StandardInput,
        on_output: OutputSink | None,
        workspace: dict[str, bytes],
        on_egress: EgressSink | None,
    ) -> FakeRunningExecution:
        tier = self._choose(placed(request.program, sandbox))
        play = self._next()
        workspace.update(request.files)
        if isinstance(request.program, PythonScript):
            workspace[request.program.name] = request.program.source
        call = Call(request, sandbox, stdin, on_output, workspace, tier, on_egress)
        self.calls.append(call)
        running = FakeRunningExecution(call, play, self._ignored)
        self._alive.add(running)
        running.life.add_done_callback(lambda _: self._alive.discard(running))
        return running

    def _choose(self, sandbox: SandboxRequest) -> Tier:
        strong_enough = candidates(sandbox.trust, sandbox.tier or named_by_offer(self._tiers))
        for tier in strong_enough:
            if tier in self._tiers:
                return tier
        missing = dict.fromkeys(strong_enough, "this fake was made without it")
        raise Unavailable(refusal(sandbox.trust, sandbox.tier, missing), missing)

    def _next(self) -> Callable[[Call], Awaitable[Scripted]]:
        script = self._script
        if script is None:
            return _always(Scripted())
        if not callable(script):
            try:
                entry = next(script)
            except StopIteration:
                number = len(self.calls) + 1
                raise LookupError(f"execution {number} was not scripted") from None
            if isinstance(entry, Scripted):
                return _always(entry)
            return entry

        async def ask(call: Call) -> Scripted:
            answer = script(call)
            return answer if isinstance(answer, Scripted) else await answer

        return ask

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable("the environment is closed")


def _always(scripted: Scripted) -> Callable[[Call], Awaitable[Scripted]]:
    async def play(_: Call) -> Scripted:
        return scripted

    return play
