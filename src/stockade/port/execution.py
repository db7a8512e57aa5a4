"""The record of one execution."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stockade.port.attestation import Attestation
from stockade.port.egress import EgressUse
from stockade.port.outcome import Outcome
from stockade.port.tier import Tier


class Stream(StrEnum):
    """An output stream of a program."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Enforcement(StrEnum):
    """How a limit is kept on this machine."""

    ENFORCED = "enforced"
    """For all processes of the sandbox together."""
    PER_PROCESS = "per-process"
    """For each process alone: several together may use a multiple."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Captured:
    """What was kept of one output stream: its beginning, its end, and how much there was."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0
    """Bytes the program wrote."""

    @property
    def dropped(self) -> int:
        """Bytes between ``head`` and ``tail`` that were not kept."""
        return self.total - len(self.head) - len(self.tail)

    @property
    def content(self) -> bytes:
        """What was kept, with the cut marked where something was dropped."""
        if not self.dropped:
            return self.head + self.tail
        return self.head + f"\n[... {self.dropped} bytes dropped ...]\n".encode() + self.tail

    def text(self) -> str:
        """``content`` as UTF-8, undecodable bytes replaced."""
        return self.content.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The limit that ended an execution."""

    name: str
    """The field of :class:`~stockade.port.limits.Limits`."""
    ceiling: float
    used: float | None
    """The use at that moment, where it could be read."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file that left the workspace by being asked for."""

    name: str
    data: bytes
    digest: str
    """``sha256:`` and the digest of ``data`` in hexadecimal."""


@dataclass(frozen=True, slots=True)
class MissingArtefact:
    """A file that was asked for and did not come out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What an execution used. ``None`` where this machine cannot tell."""

    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_processes: int | None = None
    disk_bytes: int | None = None
    """Bytes held in ``/workspace`` and ``/tmp``: the most that was seen, at the end at least."""
    inodes: int | None = None
    written_bytes: int = 0
    """Bytes written on standard output, standard error, the result channel."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent before and during the run."""

    waited: float = 0.0
    """For a sandbox: from the call until one was at hand, a dedicated machine's boot included."""
    set_up: float = 0.0
    """For files and the program's start."""
    ran: float = 0.0
    """From the program's start until nothing of it lived."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of one program in one sandbox, as the host saw it.

    It is made only when nothing of the execution lives any more.
    """

    outcome: Outcome
    detail: str
    """One sentence for a person: what happened, the limit, the use."""
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitHit | None = None
    stdout: Captured = Captured()
    stderr: Captured = Captured()
    result: bytes | None = None
    """What the program wrote on descriptor 3; ``None`` where it wrote nothing."""
    artefacts: tuple[Artefact, ...] = ()
    missing_artefacts: tuple[MissingArtefact, ...] = ()
    usage: Usage = Usage()
    timings: Timings = Timings()
    tier: Tier | None = None
    image: str | None = None
    """The image's digest."""
    enforcement: Mapping[str, Enforcement] = field(default_factory=dict)
    """Field of ``Limits`` to how it was kept."""
    egress: EgressUse | None = None
    """What it did on the network; ``None`` where it had none."""
    attestation: Attestation | None = None
    """What ran it, of the tier ``vm``; the other tiers have none."""

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and exited with 0."""
        return self.outcome is Outcome.OK
