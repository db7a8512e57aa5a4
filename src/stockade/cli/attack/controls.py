"""The same attacks without the boundary: proof that what the judge looks at can fail.

The program runs as a plain process in a throw-away folder: as nobody where that can be had,
bounded by rlimits and by a clock, so that the host survives what the program does.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from stockade.cli.attack.host_checks import HostWatch
from stockade.cli.attack.judge import breaches
from stockade.cli.attack.model import Attack, Scene
from stockade.cli.attack.watchdog import MARK_VARIABLE, marked
from stockade.port import (
    GIB,
    MIB,
    Artefact,
    Captured,
    Command,
    EgressSink,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    MissingArtefact,
    Outcome,
    OutputSink,
    PythonScript,
    SandboxRequest,
    StandardInput,
    Stream,
    TerminalSize,
    WorkspaceEntry,
)

_NOBODY = 65_534
_MOST_OUTPUT = 64 * MIB
_KEPT = MIB
_LONGEST_SECONDS = 8.0
_AFTER_SIGNAL_SECONDS = 0.3
_BURIAL_SECONDS = 10.0
# Above what any attack is allowed, so that it can show that it goes beyond; and yet bounds.
_RLIMITS = (
    f"--as={2 * GIB}",
    "--cpu=5",
    "--nproc=400",
    f"--fsize={256 * MIB}",
    "--nofile=1024",
    "--core=unlimited",
)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control showed."""

    attack: Attack
    works: bool
    """Whether the attack works without the boundary, and the judge sees it."""
    shown: str


async def control(attack: Attack, watch: HostWatch) -> Control:
    """Run the attack without the boundary."""
    if attack.no_control:
        raise ValueError(f"{attack.name}: {attack.no_control}")
    watch.arm()
    async with PlainEnvironment() as plain:
        scene = Scene(plain, {**watch.facts, **plain.facts}, control=True, files=plain.files)
        observed = await attack.drive(scene, attack)
        observed.breaches += watch.look(observed.executions)
        if attack.watched == "processes":
            observed.breaches += plain.survivors
    found = breaches(attack, observed)
    return Control(attack, bool(found), found[0] if found else _why_not(observed.executions))


def _why_not(executions: list[Execution]) -> str:
    last = executions[-1]
    return f"nothing got through: {last.outcome}, {last.detail}; {last.stderr.text()[-300:]}"


class PlainEnvironment:
    """An :class:`~stockade.port.ExecutionEnvironment` with no boundary at all."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._folder = Path()
        self._watchdog: asyncio.subprocess.Process | None = None
        self._sessions: set[int] = set()
        self.survivors: list[str] = []
        self._stand_in: asyncio.subprocess.Process | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What a program is told here instead."""
        assert self._stand_in is not None
        pid = self._stand_in.pid
        return {"control": True, "victim": pid, "host_pids": [pid], "agent_folder": "agent"}

    files = {"agent/agent.py": b"# stands in for the agent's files\n"}  # noqa: RUF012

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> "PlainExecution":
        """Start the program as a plain process."""
        folder = self._make_folder(request)
        wall = (sandbox or SandboxRequest()).limits.wall_seconds
        execution = PlainExecution(
            request, folder, min(wall + 3, _LONGEST_SECONDS), on_output, self._survive
        )
        self._sessions.add(await execution.launch(self._prefix(), self._variables()))
        return execution

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start it and wait for its end."""
        running = await self.start(request, sandbox, stdin=stdin, on_output=on_output)
        return await running.wait()

    async def open_session(self, sandbox: SandboxRequest | None = None) -> "PlainSession":
        """A folder in which programs run."""
        return PlainSession(self, sandbox or SandboxRequest())

    async def close(self) -> None:
        """Have the watchdog kill what was started here, and remove the folder."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            await self._watchdog.wait()
        if self._stand_in is not None:
            await self._stand_in.wait()
        # The dead count until they are buried, against the next control.
        end = asyncio.get_running_loop().time() + _BURIAL_SECONDS
        while asyncio.get_running_loop().time() < end and _has_members(self._sessions):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="stockade-control-"))
        self._folder.chmod(0o711)
        temporary = self._folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        self._watchdog = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stockade.cli.attack.watchdog", self._mark, self._folder),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._stand_in = await asyncio.create_subprocess_exec(
            *self._prefix(), "/bin/sleep", "60", env=self._variables()
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _prefix(self) -> list[str]:
        limits = ["prlimit", *_RLIMITS[: None if os.geteuid() == 0 else -1]]
        if os.geteuid() != 0:
            return limits
        return [*limits, "setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]

    def _variables(self) -> dict[str, str]:
        # What an attack's tools leave in a folder for temporary files goes with the control's.
        return {**os.environ, MARK_VARIABLE: self._mark, "TMPDIR": str(self._folder / "tmp")}

    def _make_folder(self, request: ExecutionRequest) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        files = dict(request.files)
        if isinstance(request.program, PythonScript):
            files[request.program.name] = request.program.source
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, _NOBODY, _NOBODY)
        return folder

    def _survive(self) -> None:
        alive = marked(self._mark) - {self._stand_in.pid if self._stand_in else 0}
        if alive:
            self.survivors.append(f"{len(alive)} processes live on")


class PlainExecution:
    """A plain process; asked politely to end, as there is nothing else to ask."""

    def __init__(
        self,
        request: ExecutionRequest,
        folder: Path,
        seconds: float,
        on_output: OutputSink | None,
        at_end: Callable[[], None],
    ) -> None:
        self.folder = folder
        self._request = request
        self._seconds = seconds
        self._on_output = on_output
        self._at_end = at_end
        self._process: asyncio.subprocess.Process | None = None
        self._result = -1
        self._reading: list[asyncio.Task[Captured]] = []
        self._asked = False

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._process is not None and self._process.returncode is not None

    async def launch(self, prefix: list[str], variables: dict[str, str]) -> int:
        """Start it, as the leader of a session; returns the session's number."""
        program = self._request.program
        match program:
            case Command():
                argv = list(program.argv)
            case PythonScript():
                argv = ["/usr/bin/python3", "attack.py", *program.arguments]
            case _:
                raise InvalidRequest("program", f"{type(program).__name__} is no attack")
        self._result, report = os.pipe()
        # A second descriptor leaks in, as it would from a careless launcher.
        told = json.loads(self._request.environment.get("STOCKADE_ATTACK", "{}"))
        environment = {
            **variables,
            **self._request.environment,
            "STOCKADE_ATTACK": json.dumps({**told, "report": report}),
        }
        leaked = os.open(self.folder, os.O_RDONLY)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *prefix,
                *argv,
                cwd=self.folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(report, leaked),
                start_new_session=True,
            )
        finally:
            os.close(report)
            os.close(leaked)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._result, "rb", 0)
        )
        self._reading = [
            asyncio.create_task(self._read(stream, number))
            for number, stream in enumerate((self._process.stdout, self._process.stderr, reader))
        ]
        return self._process.pid

    async def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def resize(self, size: TerminalSize) -> None:
        """There is no terminal."""

    async def cancel(self) -> None:
        """Ask it to end."""
        self._asked = True
        await self.signal(signal.SIGTERM)

    async def wait(self) -> Execution:
        """Wait for its end, or for the end of patience."""
        assert self._process is not None
        timeout = _AFTER_SIGNAL_SECONDS if self._asked else self._seconds
        outcome, detail = Outcome.OK, "it ran to its end"
        try:
            async with asyncio.timeout(timeout):
                # Not wait(): that waits for the pipes, too, which a daemon holds open.
                while (code := self._process.returncode) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            if code:
                outcome, detail = Outcome.NONZERO_EXIT, f"exit code {code}"
        except TimeoutError:
            outcome, detail = Outcome.CANCELLED, f"stopped by hand after {timeout:g} s"
        self._at_end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.wait(self._reading, timeout=_AFTER_SIGNAL_SECONDS)
        for task in self._reading:
            task.cancel()
        done = await asyncio.gather(*self._reading, return_exceptions=True)
        streams = [stream if isinstance(stream, Captured) else Captured() for stream in done]
        stdout, stderr, result = streams
        artefacts, missing = await asyncio.to_thread(self._copy_out)
        return Execution(
            outcome,
            detail,
            exit_code=self._process.returncode,
            stdout=stdout,
            stderr=stderr,
            result=result.head,
            artefacts=tuple(artefacts),
            missing_artefacts=tuple(missing),
        )

    async def _read(self, stream: asyncio.StreamReader, number: int) -> Captured:
        head, total = bytearray(), 0
        try:
            while total < _MOST_OUTPUT and (data := await stream.read(65_536)):
                head += data[: max(0, 2 * _KEPT - len(head))]
                total += len(data)
                if number < 2 and self._on_output is not None:
                    await self._on_output((Stream.STDOUT, Stream.STDERR)[number], data)
            if total >= _MOST_OUTPUT and self._process is not None:
                self._process.kill()
        except asyncio.CancelledError:
            pass  # the rest comes from a process that lives on
        return Captured(bytes(head), b"", total)

    def _copy_out(self) -> tuple[list[Artefact], list[MissingArtefact]]:
        """As one would who thinks of nothing."""
        taken, missing = [], []
        for name in self._request.artefacts:
            try:
                taken.append(Artefact(name, read_naively(self.folder / name), ""))
            except OSError as error:
                missing.append(MissingArtefact(name, str(error)))
        return taken, missing


class PlainSession:
    """Enough of a :class:`~stockade.port.Session` for the attacks on files."""

    def __init__(self, environment: PlainEnvironment, sandbox: SandboxRequest) -> None:
        self._environment = environment
        self._sandbox = sandbox
        self._running: PlainExecution | None = None

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> PlainExecution:
        """Start a program."""
        self._running = await self._environment.start(request, self._sandbox, on_output=on_output)
        return self._running

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start a program and wait for its end."""
        return await (await self.start(request, on_output=on_output)).wait()

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        """Not needed here."""
        raise NotImplementedError

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Read a file, following whatever it is."""
        assert self._running is not None
        for _ in range(20):
            try:
                yield await asyncio.to_thread(read_naively, self._running.folder / path)
            except OSError:
                continue
            break

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """Not needed here."""
        raise NotImplementedError

    async def pause(self) -> None:
        """Not needed here."""
        raise NotImplementedError

    async def resume(self) -> None:
        """Not needed here."""
        raise NotImplementedError

    def save(self) -> AsyncIterator[bytes]:
        """Not needed here."""
        raise NotImplementedError

    async def restore(self, content: bytes | AsyncIterable[bytes]) -> None:
        """Not needed here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Its environment cleans up."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def read_naively(path: Path) -> bytes:
    """Open and read, bounded so that this machine survives it."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        return file.read(64 * MIB)


def _has_members(sessions: set[int]) -> bool:
    """Whether a process of one of the sessions is left, even a dead one."""
    return any(
        int(field) in sessions
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and (field := _session(path))
    )


def _session(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[3]
    except OSError:
        return ""
