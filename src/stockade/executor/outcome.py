"""Deciding how an execution ended, from the host's evidence alone.

The one place where an outcome is chosen. Nothing here is read from what a program
printed: counters of its cgroup, the host's clock, what the host itself did, and the
agent's report, which is believed only about the program that it watched.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from stockade.port import GIB, KIB, MIB, DeniedDestination, LimitHit, Limits, Outcome

SIGXFSZ = 25
_NAMED_DENIALS = 3
_SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}


class Stopped(StrEnum):
    """Why the host ended an execution itself; the first reason counts."""

    WALL_CLOCK = "wall_clock"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    OUTPUT = "output"
    RESULT = "result"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(slots=True)
class Evidence:
    """What the host knows when nothing of an execution lives any more."""

    wall_seconds: float
    stopped: Stopped | None = None
    lost_because: str = ""
    refused: str = ""
    """What the agent said when the program could not be started."""
    exit_code: int | None = None
    signal: int | None = None
    output_bytes: int = 0
    result_bytes: int = 0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_processes: int | None = None
    oom_kills: int = 0
    processes_refused: int = 0
    processes_counted: bool = False
    """Whether ``processes_refused`` can be known on this machine."""
    open_files: int = 0
    disk_used: int = 0
    disk_size: int = 0
    inodes_used: int = 0
    inodes_size: int = 0
    denied: tuple[DeniedDestination, ...] = ()
    """What the egress proxy refused: a finding of the host's own, not a word of the guest's."""

    @property
    def ended(self) -> bool:
        """Whether the agent reported the program's end."""
        return self.exit_code is not None or self.signal is not None

    @property
    def failed(self) -> bool:
        """Whether the program ended otherwise than by exit code 0."""
        return self.ended and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """An outcome with the sentence and the limit that go with it."""

    outcome: Outcome
    detail: str
    limit: LimitHit | None = None


def judge(evidence: Evidence, limits: Limits) -> Judgement:
    """The outcome. What the host did itself comes first, then counters, then the exit."""
    if evidence.oom_kills or evidence.stopped is Stopped.MEMORY:
        return _limit(
            Outcome.MEMORY, "memory_bytes", limits, evidence.peak_memory_bytes, "of memory"
        )
    if evidence.stopped is not None:
        return _judge_stop(evidence.stopped, evidence, limits)
    if evidence.refused:
        return Judgement(Outcome.INVALID, evidence.refused)
    if not evidence.ended:
        return _lost(evidence)
    return _judge_end(evidence, limits)


def _judge_stop(stopped: Stopped, evidence: Evidence, limits: Limits) -> Judgement:
    match stopped:
        case Stopped.WALL_CLOCK:
            judgement = _limit(
                Outcome.WALL_CLOCK, "wall_seconds", limits, evidence.wall_seconds, "of time"
            )
            if evidence.processes_refused:
                # Such as a fork bomb: the clock ended it, but the reader should know why.
                also = f"; {evidence.processes_refused} starts of processes were refused as well"
                return replace(judgement, detail=judgement.detail + also)
            return judgement
        case Stopped.CPU_TIME:
            return _limit(
                Outcome.CPU_TIME, "cpu_seconds", limits, evidence.cpu_seconds, "of CPU time"
            )
        case Stopped.OUTPUT:
            return _limit(
                Outcome.OUTPUT, "output_bytes", limits, evidence.output_bytes, "of output"
            )
        case Stopped.RESULT:
            return _limit(
                Outcome.OUTPUT, "result_bytes", limits, evidence.result_bytes, "of result"
            )
        case Stopped.CANCELLED:
            return Judgement(
                Outcome.CANCELLED, f"it was cancelled after {evidence.wall_seconds:.1f} s"
            )
        case _:
            return _lost(evidence)


def _judge_end(evidence: Evidence, limits: Limits) -> Judgement:
    """The program ended by itself. A limit explains a failure, never a success."""
    if (
        evidence.failed
        and evidence.cpu_seconds is not None
        and evidence.cpu_seconds >= limits.cpu_seconds
    ):
        return _limit(Outcome.CPU_TIME, "cpu_seconds", limits, evidence.cpu_seconds, "of CPU time")
    if evidence.failed:
        hit = _limit_behind_failure(evidence, limits)
        if hit is not None:
            return hit
        if evidence.denied:
            return _egress_denied(evidence)
    if evidence.signal is not None:
        return Judgement(Outcome.SIGNAL, f"the program {_exit(evidence)}")
    if evidence.exit_code:
        return Judgement(Outcome.NONZERO_EXIT, f"the program {_exit(evidence)}")
    return Judgement(Outcome.OK, "the program ran to its end")


def _exit(evidence: Evidence) -> str:
    if evidence.signal is not None:
        name = _SIGNAL_NAMES.get(evidence.signal, f"signal {evidence.signal}")
        return f"was ended by {name}"
    return f"exited with code {evidence.exit_code}"


def _egress_denied(evidence: Evidence) -> Judgement:
    """A failure that was denied something failed for that, as far as anybody can tell."""
    named = evidence.denied[:_NAMED_DENIALS]
    others = len(evidence.denied) - len(named)
    more = f"; {others} more destinations were denied" if others else ""
    return Judgement(
        Outcome.EGRESS_DENIED,
        f"the program {_exit(evidence)} after it was denied "
        + "; ".join(f"{each.destination} ({each.detail})" for each in named)
        + more,
    )


def _limit_behind_failure(evidence: Evidence, limits: Limits) -> Judgement | None:
    if evidence.processes_refused or (
        not evidence.processes_counted and (evidence.peak_processes or 0) >= limits.processes - 1
    ):
        return _limit(Outcome.PROCESSES, "processes", limits, evidence.peak_processes, "processes")
    # Less than a page is free: a write was refused, or would have been.
    if evidence.disk_size and evidence.disk_size - evidence.disk_used < 4096:
        return _limit(
            Outcome.DISK, "disk_bytes", limits, evidence.disk_used, "in /workspace and /tmp"
        )
    if evidence.signal == SIGXFSZ:
        # Of a file alone, such as a sparse one. A program can send it to itself, and gains nothing.
        return _limit(Outcome.DISK, "disk_bytes", limits, None, "in one file")
    if evidence.inodes_size and evidence.inodes_used >= evidence.inodes_size:
        return _limit(
            Outcome.INODES,
            "inodes",
            limits,
            evidence.inodes_used,
            "files and folders in /workspace and /tmp",
        )
    # One descriptor was given up so that the agent could look: guest/program.py.
    if evidence.open_files >= limits.open_files - 1:
        return _limit(
            Outcome.OPEN_FILES, "open_files", limits, evidence.open_files + 1, "open files"
        )
    return None


def _lost(evidence: Evidence) -> Judgement:
    because = evidence.lost_because or "its wire ended before the program did"
    return Judgement(Outcome.LOST, f"the sandbox was lost: {because}")


def _limit(outcome: Outcome, name: str, limits: Limits, used: float | None, what: str) -> Judgement:
    ceiling: float = getattr(limits, name)
    use = "" if used is None else f" ({_shown(name, used)} used)"
    return Judgement(
        outcome,
        f"the limit of {_shown(name, ceiling)} {what} was reached{use}",
        LimitHit(name, ceiling, used),
    )


def _shown(name: str, value: float) -> str:
    """A value for a person: sizes in the largest unit that keeps them above 1."""
    if name.endswith("_seconds"):
        return f"{value:.4g} s"
    if not name.endswith("_bytes"):
        return f"{value:g}"
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:g} bytes"
