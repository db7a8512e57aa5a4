"""What an attack is, where it is staged, and what was seen of it. Data only."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from stockade.port import (
    MIB,
    Execution,
    ExecutionEnvironment,
    Limits,
    Outcome,
    TerminalSize,
    Tier,
)

SMALL = Limits(
    wall_seconds=10,
    cpu_seconds=9,
    cpus=1,
    memory_bytes=128 * MIB,
    processes=64,
    open_files=256,
    disk_bytes=32 * MIB,
    inodes=8192,
    output_bytes=4 * MIB,
    artefact_bytes=8 * MIB,
)
"""What a hostile program runs under, unless its attack says otherwise."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where an attack is staged: behind the boundary, or, for a control, without one."""

    environment: ExecutionEnvironment
    facts: Mapping[str, object]
    """What the program is told: ports, names, process numbers to try."""
    control: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Observed:
    """What the host saw of an attack."""

    executions: list[Execution]
    """The last one is the attacker's."""
    breaches: list[str] = field(default_factory=list)
    """Sentences about what got through, seen by the host."""
    seconds: float = 0.0


Drive = Callable[[Scene, "Attack"], Awaitable[Observed]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How an attack is made and judged in one tier, where that is not as in the others."""

    why: str
    """What stops it there. It is shown with the verdict."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the attack."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the battery, with all that its judge needs."""

    name: str
    items: tuple[int, ...]
    """Numbers of the list of demands in the security page."""
    tries: str
    outcomes: frozenset[Outcome]
    """How the execution may end."""
    drive: Drive
    program: str = ""
    """A file of ``programs/``; empty where no program runs."""
    arguments: tuple[str, ...] = ()
    fresh: bool = False
    terminal: TerminalSize | None = None
    limits: Limits = SMALL
    proxied: bool = False
    """Whether the sandbox has an egress proxy, which names that lead to the host are allowed by."""
    limit: str = ""
    """The field of ``Limits`` that must be named as the one that was hit."""
    attempts: int = 0
    """The fewest attempts that the program must report; each of them must have been refused."""
    most: float | None = None
    """The most that may be reached of what the program uses up."""
    most_used: float | None = None
    """The most of ``limit`` that the record may show as used."""
    exit_code: int | None = None
    artefacts: tuple[str, ...] = ()
    come_out: Mapping[str, bytes] = field(default_factory=dict)
    """The artefacts that must come out, with their content; no other one may."""
    watched: str = ""
    """What the host itself watches, where the program reports nothing."""
    enforced: str = ""
    """A limit that must be kept for all processes together, or the attack says nothing."""
    machines: tuple[str, ...] = ()
    """Where the attack exists at all; empty for every machine."""
    no_control: str = ""
    """Why the attack is not shown to work without the boundary."""
    differs: Mapping[Tier, Difference] = field(default_factory=dict)
    because: str = ""
    """The difference that was applied."""

    def __post_init__(self) -> None:
        judged = self.attempts, self.most is not None, self.limit, self.artefacts, self.watched
        if not self.outcomes or not any(judged):
            raise ValueError(f"the attack {self.name!r} has no judge")

    def in_tier(self, tier: Tier) -> "Attack":
        """The attack as it is made and judged there."""
        difference = self.differs.get(tier)
        if difference is None:
            return self
        return replace(self, **difference.changes, because=difference.why, differs={})


class Ruling(StrEnum):
    """What became of an attack."""

    HELD = "held"
    BROKEN = "broken"
    NOT_RUN = "not run"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ruling on one attack, and what it rests on."""

    attack: Attack
    ruling: Ruling
    stopped_by: str
    """What stopped it, as it was seen; or why it was not run."""
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
