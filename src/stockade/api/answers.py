"""What is answered, as JSON, beside records and problems."""

from datetime import date, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stockade.api.content import Content, Name
from stockade.api.records import RecordMessage
from stockade.port import Outcome, Stream, Tier


class Answer(BaseModel):
    """A later version may say more: a client keeps what it knows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ExecutionState(StrEnum):
    """Where an execution is. There is no third: what was begun ends in a record."""

    RUNNING = "running"
    ENDED = "ended"


class ExecutionMessage(Answer):
    """One execution, with its record when it has ended."""

    id: str
    state: ExecutionState
    record: RecordMessage | None = None


class ExecutionSummary(Answer):
    """One execution in a list: without what it printed."""

    id: str
    state: ExecutionState
    sandbox: str | None = None
    """The session it ran in."""
    begun: datetime
    ended: datetime | None = None
    outcome: Outcome | None = None
    tier: Tier | None = None
    tool: str | None = None
    """The tool that it was for."""
    tool_version: int | None = None
    purpose: str | None = None
    """Of what is for a tool: ``call``, ``example`` or ``check``."""


class ExecutionList(Answer):
    """A page, newest first."""

    executions: tuple[ExecutionSummary, ...]
    next: str | None = None
    """The ``cursor`` of the page that follows; none at the end."""


class StartedMessage(Answer):
    """Of ``started``: the program may have begun."""

    id: str


class OutputMessage(Answer):
    """Of ``output``: what was printed. The event's id says where to go on after a cut."""

    stream: Stream
    data: Content


class OmittedMessage(Answer):
    """Of ``omitted``: output that was not kept for a reader that came late."""

    bytes: int = Field(ge=0)


class SandboxState(StrEnum):
    """Where a session is."""

    OPEN = "open"
    PAUSED = "paused"
    ENDED = "ended"


class SandboxStateMessage(Answer):
    """A session."""

    id: str
    state: SandboxState = SandboxState.OPEN
    tier: Tier | None = None
    lease_seconds: float = Field(default=0.0, ge=0)
    """What is left of its lease."""
    execution: str | None = None
    """What runs in it."""
    workspace: str | None = None
    """The kept workspace that was put in, and is saved when the session ends."""
    generation: int | None = Field(default=None, ge=0)
    """Of an executor: what ``Stockade-Generation`` may say, so that no other sandbox is meant."""


class SandboxList(Answer):
    """The open sessions of the tenant."""

    sandboxes: tuple[SandboxStateMessage, ...]


class EntryMessage(Answer):
    """One entry of a folder of the workspace."""

    name: Name
    kind: str
    """``file``, ``folder``, ``link`` or ``other``."""
    size: int = Field(ge=0)


class FolderMessage(Answer):
    """A folder of the workspace, sorted by name."""

    entries: tuple[EntryMessage, ...]


class ReadyMessage(Answer):
    """Of an executor that takes calls."""

    status: str
    max_lease_seconds: float | None = Field(default=None, gt=0)
    """The longest lease that it gives."""


class ArtefactSummary(Answer):
    """A file that came out and is kept, by its digest."""

    digest: str
    size: int = Field(ge=0)
    created: datetime
    expires: datetime


class ArtefactList(Answer):
    """A page, newest first."""

    artefacts: tuple[ArtefactSummary, ...]
    next: str | None = None


class WorkspaceSummary(Answer):
    """A workspace that is kept between sessions."""

    name: str
    size: int = Field(ge=0)
    """Packed."""
    generation: int = Field(ge=0)
    """How often it was saved."""
    saved: datetime
    expires: datetime


class WorkspaceList(Answer):
    """A page, last saved first."""

    workspaces: tuple[WorkspaceSummary, ...]
    next: str | None = None


class DayUsage(Answer):
    """What was used in one day, UTC."""

    day: date
    executions: int = 0
    sandboxes: int = 0
    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    wall_seconds: float = 0.0


class BudgetMessage(Answer):
    """What a tenant may use."""

    concurrency: int
    sandboxes: int
    executions_per_minute: int
    cpu_seconds_per_day: int
    memory_seconds_per_day: int
    """GiB-seconds."""
    workspace_bytes: int
    artefact_bytes: int


class UsageReport(Answer):
    """What a tenant used, and what it may. A day that is not there was without any use."""

    days: tuple[DayUsage, ...]
    running: int
    open_sandboxes: int
    begun_last_minute: int
    budget: BudgetMessage


class AuditRecordMessage(Answer):
    """One thing that was done. ``facts`` are what goes with ``action``."""

    digest: str
    time: datetime
    key_id: str | None = None
    action: str
    subject: str
    facts: dict[str, Any] = Field(default_factory=dict)


class AuditList(Answer):
    """A page, latest first."""

    records: tuple[AuditRecordMessage, ...]
    next: str | None = None


class HealthMessage(Answer):
    """Whether a service lives, or takes calls."""

    status: str
