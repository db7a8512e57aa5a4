"""Driving one program in one sandbox, whatever the tier."""

import asyncio
import hashlib
import signal
import struct
import time
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Final

from stockade.executor.boundary import BoundaryUsage
from stockade.executor.egress.opening import SandboxEgress
from stockade.executor.files import fetch, put
from stockade.executor.outcome import Evidence, Stopped, judge
from stockade.executor.sandbox import Sandbox
from stockade.executor.wire import (
    WINDOW,
    Closed,
    Data,
    Event,
    Granted,
    Reset,
    dump_object,
    load_object,
)
from stockade.port import (
    MIB,
    Artefact,
    Command,
    EgressEvent,
    EgressSink,
    EgressUse,
    Enforcement,
    Execution,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    JavaScriptSource,
    Limits,
    MissingArtefact,
    OutputSink,
    Program,
    PythonScript,
    PythonSource,
    SandboxLost,
    StandardInput,
    Stream,
    TerminalSize,
    Tier,
    Timings,
    Usage,
    WasmModule,
)
from stockade.port.capture import Capture

CONTROL, STDIN, STDOUT, STDERR, RESULT, SOURCE = range(6)
SPAN: Final = 6
# Flags of a program: docs/wire.md.
_LAST: Final = 1
_BRISK: Final = 2
_CEILINGS: Final = 4
_REHEARSAL: Final = 8
DETERMINISTIC_VARIABLE: Final = "STOCKADE_DETERMINISTIC"
"""``1`` in a program's environment asks the wasm tier for a clock and randomness that are fixed."""
STOP_SECONDS: Final = 0.5
"""How long the agent may take to end a program before the whole sandbox is killed."""
_CPU_CHECK_SECONDS: Final = 0.05
SINK_SECONDS: Final = 0.5
"""How long a sink may still take output after the execution was cancelled."""
_SHORT_SECONDS: Final = 0.05
_OOM_CHECK_SECONDS: Final = 0.01
_MESSAGE_BYTES: Final = 65_536
_MOST_EGRESS_EVENTS: Final = 1024
"""That wait for a sink."""


def check_signal(number: int) -> None:
    """Raises :class:`InvalidRequest` for what is none."""
    if type(number) not in (int, signal.Signals) or not 1 <= number <= 64:
        raise InvalidRequest("signal", f"{number!r} is not a signal (1 to 64)")


class ProgramExecution:
    """One program in one sandbox: a :class:`~stockade.port.RunningExecution`.

    ``single``: the sandbox serves this execution alone and is destroyed at its end. The
    record is made when nothing of the execution lives. ``rehearsal``: it is nobody's, and
    another comes after it as if it had not been.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        request: ExecutionRequest,
        limits: Limits,
        *,
        single: bool,
        waited: float,
        stdin: StandardInput,
        on_output: OutputSink | None,
        egress: SandboxEgress | None = None,
        on_egress: EgressSink | None = None,
        rehearsal: bool = False,
    ) -> None:
        self._sandbox = sandbox
        self._link = sandbox.link
        self._request = request
        self._limits = limits
        self._inner = sandbox.boundary.inner_ceilings(limits)
        self._single = single
        self._rehearsal = rehearsal
        self._stdin = stdin
        self._on_output = on_output
        self._egress = egress
        self._on_egress = on_egress
        self._egress_use: EgressUse | None = None
        self._loop = asyncio.get_running_loop()
        self._captures = {
            STDOUT: Capture(limits.record_bytes),
            STDERR: Capture(limits.record_bytes),
        }
        self._result = bytearray()
        self._result_total = 0
        self._output_total = 0
        self._evidence = Evidence(wall_seconds=0.0)
        self._channel = 0
        # A sandbox that serves once has counted for nobody else.
        self._before = BoundaryUsage(cpu_seconds=0.0)
        self._timings = [waited, 0.0, 0.0]
        self._started_at = 0.0
        self._end_report: asyncio.Future[None] = self._loop.create_future()
        self._open_inputs = {STDIN}
        # Made only where they are needed: a call that needs neither is the common one.
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] | None = None
        self._input_credit: asyncio.Event | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._copying: asyncio.Task[None] | None = None
        self._egress_events: asyncio.Queue[EgressEvent | None] | None = None
        self._telling: asyncio.Task[None] | None = None
        # Bytes that the sink has and the guest has no new credit for, per stream.
        self._owed = {STDOUT: 0, STDERR: 0}
        self._stopped_after: float | None = None
        self._caller_error: BaseException | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._given_up = False
        self._timers: list[asyncio.TimerHandle] = []
        self._began = time.monotonic()
        self._files = self._files_first()
        self._task = asyncio.create_task(self._run())
        if single and egress is None and not self._files:
            # Nothing has to be waited for: the program starts before this call returns.
            self._try_to_start()

    def __repr__(self) -> str:
        return f"<ProgramExecution {self._sandbox!r} {self._evidence.stopped or 'running'}>"

    @property
    def done(self) -> bool:
        """Whether its record was made."""
        return self._task.done()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when its record was made, or could not be."""
        self._task.add_done_callback(lambda _task: callback())

    async def ended(self) -> None:
        """Wait until nothing of it lives, without the record."""
        await asyncio.wait({self._task})

    # --- the port ---

    async def signal(self, number: int) -> None:
        """Send a signal to the program's process group. Raises :class:`InvalidRequest`."""
        check_signal(number)
        self._command(struct.pack("!cB", b"s", number))

    async def resize(self, size: TerminalSize) -> None:
        """Set the terminal's size."""
        self._command(struct.pack("!cHH", b"r", size.rows, size.columns))

    async def cancel(self) -> None:
        """End it with outcome ``cancelled``; one that has ended waits no longer for its sink."""
        self._stop(Stopped.CANCELLED)
        self._given_up = True
        if self._end_report.done() and self._copying is not None:
            self._copying.cancel()

    def kill(self) -> None:
        """Its sandbox, at once: nobody waits for what the program has still to say."""
        self._sandbox.boundary.kill()

    async def wait(self) -> Execution:
        """The record. A cancelled waiter kills the execution and waits for its end."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.cancelled():
                raise
            await self.cancel()
            self.kill()
            await asyncio.shield(self._task)
            raise

    # --- the run ---

    async def _run(self) -> Execution:
        if not self._started_at and self._evidence.stopped is None and not self._evidence.refused:
            try:
                await self._put_files()
            except SandboxLost as error:
                self._lost(str(error))
            self._try_to_start()
        if self._started_at:
            await self._end_report
            self._link.broken.remove_done_callback(self._on_broken)
        if self._egress is not None:
            self._egress_use = await self._egress.finish()
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        for timer in self._timers:
            timer.cancel()
        artefacts, missing = await self._take_artefacts()
        if self._single or not self._sandbox.alive:
            # Of a program that ended by itself the agent has sent all, and its end last.
            by_itself = self._evidence.ended and self._evidence.stopped is None
            if not (by_itself and self._stop_whole()):
                await self._sandbox.end()
        usage = self._sandbox.boundary.usage()
        if self._started_at:
            self._timings[2] = time.monotonic() - self._started_at
        await self._finish_output()
        if self._caller_error is not None:
            raise self._caller_error
        stopped_after = self._stopped_after
        self._evidence.wall_seconds = self._timings[2] if stopped_after is None else stopped_after
        self._read_counters(usage)
        return self._record(artefacts, missing)

    def _stop_whole(self) -> bool:
        """Whether nothing of it runs on, without waiting; it takes descriptors to know that."""
        boundary = self._sandbox.boundary
        if not boundary.stops_whole:
            return False
        try:
            boundary.stop()
        except OSError:
            return False
        return True

    def _try_to_start(self) -> None:
        if self._evidence.stopped is not None or self._evidence.refused:
            return
        try:
            self._sandbox.boundary.set_ceilings(self._limits)
            if not self._single:
                self._before = self._sandbox.boundary.usage()
            self._start()
        except SandboxLost as error:
            self._lost(str(error))
        self._timings[1] = (self._started_at or time.monotonic()) - self._began

    def _files_first(self) -> dict[str, bytes]:
        """What has to be in the workspace before there is a program."""
        files = dict(self._request.files)
        program = self._request.program
        if isinstance(program, PythonScript):
            files[program.name] = program.source
        return files

    async def _put_files(self) -> None:
        temporary = {} if self._egress is None else self._egress.files
        wanted = [(path, content, True) for path, content in temporary.items()]
        wanted += [(path, content, False) for path, content in self._files.items()]
        for path, content, is_temporary in wanted:
            try:
                await put(self._link, path, content, temporary=is_temporary)
            except FileRefused as refusal:
                self._evidence.refused = (
                    f"the file {refusal.path!r} cannot be put in: {refusal.reason}"
                )
                return

    def _start(self) -> None:
        source = _source(self._request.program)
        specification = self._specification()
        arguments = self._arguments(len(specification), len(source))
        if self._egress is not None:
            self._begin_egress(self._egress)
        self._channel = self._link.open("program", arguments, self._on_event, SPAN)
        self._started_at = time.monotonic()
        # Not with the arguments, whose frame is bounded: a request may have more.
        self._link.send(self._channel + SOURCE, specification + source)
        self._link.close_channel(self._channel + SOURCE)
        if isinstance(self._stdin, bytes):
            if self._stdin:
                self._link.send(self._channel + STDIN, self._stdin)
            self._close_input()
        if not isinstance(self._stdin, bytes):
            self._input_credit = asyncio.Event()
            self._feeding = asyncio.create_task(self._feed(self._stdin, self._input_credit))
            self._feeding.add_done_callback(self._on_callers_part)
        if self._on_output is not None:
            self._pieces = asyncio.Queue()
            self._copying = asyncio.create_task(self._copy_output(self._on_output, self._pieces))
            self._copying.add_done_callback(self._on_callers_part)
        self._link.broken.add_done_callback(self._on_broken)
        self._timers.append(
            self._loop.call_later(self._limits.wall_seconds, self._stop, Stopped.WALL_CLOCK)
        )
        self._timers.append(self._loop.call_later(_SHORT_SECONDS, self._watch_memory))
        if self._limits.cpu_seconds < self._limits.wall_seconds * max(1.0, self._limits.cpus):
            self._check_cpu()
        # Last: the agent often wakes on this very CPU, and waits for what is done after it.
        self._link.flush()

    def _begin_egress(self, egress: SandboxEgress) -> None:
        if self._on_egress is not None:
            self._egress_events = asyncio.Queue(_MOST_EGRESS_EVENTS)
            self._telling = asyncio.create_task(
                self._tell_egress(self._on_egress, self._egress_events)
            )
            self._telling.add_done_callback(self._on_callers_part)
        egress.begin(self._on_egress_event)

    def _arguments(self, specification_length: int, source_length: int) -> bytes:
        """What the agent needs to know, then what the program's process does: docs/wire.md."""
        last = self._single and not self._request.artefacts
        flags = (_LAST if last else 0) | (
            _BRISK if last and self._sandbox.boundary.stops_whole else 0
        )
        if self._rehearsal:
            flags = _BRISK | _REHEARSAL
        ceilings = b""
        if self._inner is not None:
            flags |= _CEILINGS
            ceilings = struct.pack("!QI", *self._inner)
        terminal = self._request.terminal
        size = (terminal.rows, terminal.columns) if terminal else (0, 0)
        lengths = specification_length, source_length
        return struct.pack("!BHHII", flags, *size, *lengths) + ceilings

    def _specification(self) -> bytes:
        """What the program's process makes itself into: docs/wire.md."""
        request, limits = self._request, self._limits
        program = request.program
        python: dict[str, object] | None = None
        if isinstance(program, PythonSource | PythonScript):
            python = {
                "name": program.name if isinstance(program, PythonScript) else None,
                "arguments": list(program.arguments),
                "fresh": program.fresh,
            }
        kept = self._sandbox.boundary.enforcement
        per_process = kept.get("memory_bytes") is not Enforcement.ENFORCED
        wasm = None
        if self._sandbox.boundary.tier is Tier.WASM:
            python, wasm = None, _wasm(request, limits)
        specification: dict[str, object] = {
            **({} if wasm is None else {"wasm": wasm}),
            "python": python,
            "argv": list(program.argv) if isinstance(program, Command) else None,
            "environment": {
                **({} if self._egress is None else self._egress.environment),
                **request.environment,
            },
            "working_directory": request.working_directory,
            "rlimits": {
                "open_files": limits.open_files,
                # Above the workspace's size, so that a full disk is seen as one; it bounds
                # what has no other bound without cgroups, such as memfd_create(2).
                "file_bytes": limits.disk_bytes + MIB,
                "data_bytes": limits.memory_bytes if per_process else None,
                "cpu_seconds": self._sandbox.boundary.cpu_rlimit(limits),
                "processes": self._sandbox.boundary.process_rlimit(limits),
            },
        }
        return dump_object(specification)

    async def _take_artefacts(self) -> tuple[list[Artefact], list[MissingArtefact]]:
        taken: list[Artefact] = []
        missing: list[MissingArtefact] = []
        room = self._limits.artefact_bytes
        deadline = self._loop.time() + self._limits.wall_seconds + 5
        for name in self._request.artefacts:
            content = bytearray()
            try:
                async with asyncio.timeout_at(deadline):
                    async for piece in fetch(self._link, name, room):
                        content += piece
            except FileRefused as refusal:
                missing.append(MissingArtefact(name, refusal.reason))
                continue
            except (SandboxLost, TimeoutError):
                missing.append(MissingArtefact(name, "the sandbox ended before it was read"))
                continue
            room -= len(content)
            digest = hashlib.sha256(content).hexdigest()
            taken.append(Artefact(name, bytes(content), f"sha256:{digest}"))
        return taken, missing

    def _on_callers_part(self, task: "asyncio.Task[None]") -> None:
        """What the caller's sink or input raises ends the execution, and is raised by wait."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._caller_error is None:
            self._caller_error = error
            self._stop(Stopped.CANCELLED)

    async def _finish_output(self) -> None:
        """All output is at the consumer before the outcome is told."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait({self._feeding})
        if self._copying is not None and self._pieces is not None:
            self._pieces.put_nowait(None)
            if self._given_up or self._evidence.stopped is Stopped.CANCELLED:
                # Nobody waits for the output any more: a sink that hangs is left behind.
                await asyncio.wait({self._copying}, timeout=SINK_SECONDS)
                self._copying.cancel()
            await asyncio.wait({self._copying})
        if self._telling is not None and self._egress_events is not None:
            # What is told of connections holds nobody up.
            if self._egress_events.full():
                self._egress_events.get_nowait()
            self._egress_events.put_nowait(None)
            await asyncio.wait({self._telling}, timeout=SINK_SECONDS)
            self._telling.cancel()
            await asyncio.wait({self._telling})

    # --- events of the wire ---

    def _on_event(self, event: Event) -> None:
        offset = event.channel - self._channel  # type: ignore[union-attr]
        match event:
            case Data(channel, data):
                if offset in (STDOUT, STDERR):
                    self._on_program_output(offset, channel, data)
                elif offset == RESULT:
                    self._on_result(data)
                    self._link.consumed(channel, len(data))
                elif offset == CONTROL:
                    self._link.consumed(channel, len(data))
                    self._on_message(data)
                else:
                    self._link.reset_channel(channel, "nothing is expected here")
            case Granted() | Closed() | Reset() if offset == STDIN and self._input_credit:
                self._input_credit.set()

    def _on_program_output(self, offset: int, channel: int, data: bytes) -> None:
        room = self._limits.output_bytes - self._output_total
        self._output_total += len(data)
        if len(data) > room:
            # The record says exactly what the ceiling let through.
            self._link.consumed(channel, len(data) - max(0, room))
            data = data[: max(0, room)]
            self._stop(Stopped.OUTPUT)
            if not data:
                return
        self._captures[offset].add(data)
        if self._pieces is None or self._evidence.stopped is not None:
            self._link.consumed(channel, len(data))
        else:
            self._owed[offset] += len(data)
        if self._pieces is not None:
            self._pieces.put_nowait((offset, data))

    def _on_result(self, data: bytes) -> None:
        self._result_total += len(data)
        room = self._limits.result_bytes - len(self._result)
        self._result += data[: max(0, room)]
        if len(data) > room:
            self._stop(Stopped.RESULT)

    def _on_message(self, data: bytes) -> None:
        message = load_object(data, "a message of the agent", _MESSAGE_BYTES)
        if "refused" in message:
            refused = message["refused"]
            if isinstance(refused, Mapping):
                reason, what = str(refused.get("reason")), str(refused.get("what"))
                self._evidence.refused = f"{reason}: {what!r}"[:1000]
        elif "ended" in message:
            ended = message["ended"]
            if isinstance(ended, Mapping) and not self._end_report.done():
                self._read_end(ended)
                self._end_report.set_result(None)
                if not self._single:
                    self._give_up_channels()

    def _give_up_channels(self) -> None:
        """So that their numbers can serve again; standard input may still be under way."""
        for offset in (CONTROL, STDOUT, STDERR, RESULT):
            self._link.close_channel(self._channel + offset)
        if STDIN in self._open_inputs:
            self._link.reset_channel(self._channel + STDIN, "the program has ended")

    def _read_end(self, ended: Mapping[str, object]) -> None:
        evidence = self._evidence
        if not evidence.refused:  # else it is the end of our own process before the program
            evidence.exit_code = _whole(ended.get("code"))
            evidence.signal = _whole(ended.get("signal"))
        evidence.cpu_seconds = _number(ended.get("cpu_seconds"))
        evidence.peak_memory_bytes = _whole(ended.get("peak_memory_bytes"))
        evidence.peak_processes = _whole(ended.get("peak_processes"))
        evidence.open_files = _whole(ended.get("open_files")) or 0
        evidence.disk_used, evidence.disk_size = _pair(ended.get("disk"))
        evidence.inodes_used, evidence.inodes_size = _pair(ended.get("inodes"))
        if self._inner is not None:
            evidence.oom_kills = _whole(ended.get("oom_kills")) or 0
            evidence.processes_refused = _whole(ended.get("processes_refused")) or 0

    # --- stopping ---

    def _stop(self, why: Stopped) -> None:
        """End the program; the first reason counts. The sandbox dies if the agent tarries."""
        if self._end_report.done() or self._evidence.stopped is not None:
            return
        self._evidence.stopped = why
        self._stopped_after = time.monotonic() - self._started_at if self._started_at else 0.0
        self._sandbox.thaw_to_end()
        if self._egress is not None:
            self._egress.cut()
        self._command(b"k")
        # What is still in the pipes is little, and a slow sink must not hold up the end.
        for offset, owed in self._owed.items():
            if owed:
                self._link.consumed(self._channel + offset, owed)
                self._owed[offset] = 0
        self._stop_timer = self._loop.call_later(STOP_SECONDS, self._sandbox.boundary.kill)

    def _lost(self, because: str) -> None:
        if self._evidence.stopped is None:
            self._evidence.stopped = Stopped.LOST
            self._evidence.lost_because = because

    def _on_broken(self, reason: "asyncio.Future[str]") -> None:
        if not self._end_report.done():
            self._lost(reason.result())
            self._end_report.set_result(None)

    def _watch_memory(self) -> None:
        """From now on: what a shorter execution did its counters tell at the end."""
        self._sandbox.boundary.watch_memory(self._on_memory)
        self._on_memory_again()

    def _on_memory(self) -> None:
        """The ceiling was hit. The kernel kills one process; the execution ends as a whole."""
        if self._sandbox.boundary.usage().oom_kills > self._before.oom_kills:
            self._stop(Stopped.MEMORY)
        elif self._evidence.stopped is None and not self._end_report.done():
            # Told before the kill (v1) or of memory found in time: look again.
            self._timers.append(self._loop.call_later(_OOM_CHECK_SECONDS, self._on_memory_again))

    def _on_memory_again(self) -> None:
        if self._sandbox.boundary.usage().oom_kills > self._before.oom_kills:
            self._stop(Stopped.MEMORY)

    def _check_cpu(self) -> None:
        used = self._cpu_seconds()
        if used is None:
            return
        left = self._limits.cpu_seconds - used
        if left <= 0:
            self._stop(Stopped.CPU_TIME)
            return
        pause = max(_CPU_CHECK_SECONDS, left / max(1.0, self._limits.cpus))
        self._timers = [timer for timer in self._timers if not timer.cancelled()]
        self._timers.append(self._loop.call_later(pause, self._check_cpu))

    def _command(self, message: bytes) -> None:
        if self._channel and not self._end_report.done() and self._sandbox.alive:
            self._link.send(self._channel + CONTROL, message)
            self._link.flush()

    # --- standard input and output ---

    async def _feed(self, pieces: AsyncIterable[bytes], credit: asyncio.Event) -> None:
        channel = self._channel + STDIN
        async for piece in pieces:
            if self._end_report.done() or not self._sandbox.alive:
                return
            self._link.send(channel, piece)
            # Beyond a whole window, so that a grant has to come.
            while self._link.queued(channel) > WINDOW:
                credit.clear()
                await credit.wait()
        self._close_input()

    def _close_input(self) -> None:
        self._open_inputs.discard(STDIN)
        self._link.close_channel(self._channel + STDIN)

    async def _copy_output(
        self, sink: OutputSink, pieces: "asyncio.Queue[tuple[int, bytes] | None]"
    ) -> None:
        while (piece := await pieces.get()) is not None:
            offset, data = piece
            await sink(Stream.STDOUT if offset == STDOUT else Stream.STDERR, data)
            if self._owed[offset]:
                self._owed[offset] -= len(data)
                self._link.consumed(self._channel + offset, len(data))

    # --- egress ---

    def _on_egress_event(self, event: EgressEvent) -> None:
        # A sink that does not keep up misses some: the record has them all.
        if self._egress_events is not None and not self._egress_events.full():
            self._egress_events.put_nowait(event)

    async def _tell_egress(
        self, sink: EgressSink, events: "asyncio.Queue[EgressEvent | None]"
    ) -> None:
        while (event := await events.get()) is not None:
            await sink(event)

    # --- the record ---

    def _cpu_seconds(self) -> float | None:
        now, before = self._sandbox.boundary.usage().cpu_seconds, self._before.cpu_seconds
        return None if now is None or before is None else now - before

    def _read_counters(self, now: BoundaryUsage) -> None:
        evidence, before = self._evidence, self._before
        evidence.oom_kills += now.oom_kills - before.oom_kills
        evidence.processes_counted = self._sandbox.boundary.counts_processes
        evidence.processes_refused += now.processes_refused - before.processes_refused
        if now.cpu_seconds is not None and before.cpu_seconds is not None:
            evidence.cpu_seconds = now.cpu_seconds - before.cpu_seconds
        if now.peak_memory_bytes is not None:
            evidence.peak_memory_bytes = now.peak_memory_bytes
        if now.peak_processes is not None:
            evidence.peak_processes = now.peak_processes
        evidence.output_bytes = self._output_total
        evidence.result_bytes = self._result_total
        if self._egress_use is not None:
            evidence.denied = self._egress_use.denied

    def _record(self, artefacts: list[Artefact], missing: list[MissingArtefact]) -> Execution:
        evidence = self._evidence
        judgement = judge(evidence, self._limits)
        return Execution(
            outcome=judgement.outcome,
            detail=judgement.detail,
            exit_code=evidence.exit_code,
            signal=evidence.signal,
            limit=judgement.limit,
            stdout=self._captures[STDOUT].captured(),
            stderr=self._captures[STDERR].captured(),
            result=bytes(self._result) if self._result_total else None,
            artefacts=tuple(artefacts),
            missing_artefacts=tuple(missing),
            usage=Usage(
                wall_seconds=evidence.wall_seconds,
                cpu_seconds=evidence.cpu_seconds,
                peak_memory_bytes=evidence.peak_memory_bytes,
                peak_processes=evidence.peak_processes,
                disk_bytes=evidence.disk_used if evidence.disk_size else None,
                inodes=evidence.inodes_used if evidence.inodes_size else None,
                written_bytes=self._output_total + self._result_total,
            ),
            timings=Timings(*self._timings),
            tier=self._sandbox.boundary.tier,
            image=self._sandbox.boundary.image,
            enforcement=self._sandbox.boundary.enforcement,
            egress=self._egress_use,
            attestation=self._sandbox.boundary.attestation,
        )


def _wasm(request: ExecutionRequest, limits: Limits) -> dict[str, object]:
    """What the wasm tier's worker needs to know: docs/wasm.md."""
    program = request.program
    kind = {JavaScriptSource: "javascript", WasmModule: "module"}.get(type(program), "python")
    return {
        "kind": kind,
        "name": program.name if isinstance(program, PythonScript) else None,
        "arguments": list(getattr(program, "arguments", ())),
        "memory_bytes": limits.memory_bytes,
        "wall_seconds": limits.wall_seconds,
        "steady": request.environment.get(DETERMINISTIC_VARIABLE) == "1",
    }


def _source(program: Program) -> bytes:
    if isinstance(program, WasmModule):
        return program.module
    if not isinstance(program, PythonSource | PythonScript | JavaScriptSource):
        return b""  # it has its own way in, or none: `placed` says which tier runs what
    source = program.source
    return source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _pair(value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        used, size = _whole(value[0]), _whole(value[1])
        if used is not None and size is not None:
            return used, size
    return 0, 0
