"""What is answered, as JSON, beside records and problems."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from stockade.api.content import Name
from stockade.api.records import RecordMessage
from stockade.port import Outcome, Tier


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


class ExecutionList(Answer):
    """A page, newest first."""

    executions: tuple[ExecutionSummary, ...]
    next: str | None = None
    """The ``cursor`` of the page that follows; none at the end."""


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
