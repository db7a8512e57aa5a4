"""The record of an execution as JSON, whole or with its bytes beside it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from stockade.api.content import Content, Name
from stockade.port import (
    Artefact,
    Attestation,
    Captured,
    CredentialUse,
    DeniedDestination,
    EgressEvent,
    EgressUse,
    Enforcement,
    Execution,
    LimitHit,
    MissingArtefact,
    Outcome,
    Tier,
    Timings,
    Usage,
)
from stockade.port.egress import MAX_CREDENTIALS, MAX_DENIED


class _Part(BaseModel):
    """A later version may say more: a reader keeps what it knows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Size = Annotated[int, Field(ge=0, le=2**40)]


class CapturedMessage(_Part):
    """What was kept of one output stream: its beginning, its end, and how much there was."""

    head: Content = b""
    tail: Content = b""
    total: Size = 0


class LimitHitMessage(_Part):
    """The limit that ended an execution."""

    name: str
    ceiling: float
    used: float | None


class ArtefactMessage(_Part):
    """A file that left the workspace by being asked for. Its bytes are fetched by its digest."""

    name: Name
    size: Size
    digest: str


class MissingArtefactMessage(_Part):
    """A file that was asked for and did not come out, and why."""

    name: Name
    reason: str


class UsageMessage(_Part):
    """What an execution used. ``null`` where the machine cannot tell."""

    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_processes: int | None = None
    disk_bytes: int | None = None
    inodes: int | None = None
    written_bytes: int = 0


class TimingsMessage(_Part):
    """Seconds spent before and during the run."""

    waited: float = 0.0
    set_up: float = 0.0
    ran: float = 0.0


class AttestationMessage(_Part):
    """What ran it, of a dedicated machine; digests are ``sha256:`` and hexadecimal."""

    image: str
    kernel: str
    initramfs: str
    disk: str
    kernel_version: str
    vmm: str
    vmm_version: str
    accelerator: str
    command_line: tuple[str, ...]
    command_line_digest: str
    vmm_files: Mapping[str, str] = Field(default_factory=dict)
    firmware: Mapping[str, str] = Field(default_factory=dict)


Count = Annotated[int, Field(ge=0, lt=2**63)]
Sentence = Annotated[str, Field(max_length=4096)]
Destination = Annotated[str, Field(max_length=300)]


class DeniedMessage(_Part):
    """A destination that was reached for in vain, and which rule would allow it."""

    destination: Destination
    reason: Annotated[str, Field(max_length=64)]
    detail: Sentence
    count: Count = 1


class CredentialUseMessage(_Part):
    """That a credential was put into requests. Never its value."""

    credential: Annotated[str, Field(max_length=64)]
    destination: Destination
    count: Count = 1


class EgressUseMessage(_Part):
    """What an execution did on the network."""

    connections: Count = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    denied: Annotated[tuple[DeniedMessage, ...], Field(max_length=MAX_DENIED)] = ()
    denied_others: Count = 0
    credentials: Annotated[
        tuple[CredentialUseMessage, ...], Field(max_length=MAX_CREDENTIALS * MAX_DENIED)
    ] = ()

    @classmethod
    def of(cls, use: EgressUse) -> Self:
        """The message for the port's."""
        return cls(
            connections=use.connections,
            sent_bytes=use.sent_bytes,
            received_bytes=use.received_bytes,
            denied=tuple(DeniedMessage(**_plain(each)) for each in use.denied),
            denied_others=use.denied_others,
            credentials=tuple(CredentialUseMessage(**_plain(each)) for each in use.credentials),
        )

    def to_port(self) -> EgressUse:
        """The port's."""
        return EgressUse(
            connections=self.connections,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            denied=tuple(DeniedDestination(**vars(each)) for each in self.denied),
            denied_others=self.denied_others,
            credentials=tuple(CredentialUse(**vars(each)) for each in self.credentials),
        )


class EgressEventMessage(_Part):
    """One connection, as it was decided on or ended."""

    verdict: Annotated[str, Field(max_length=16)]
    destination: Destination
    reason: Annotated[str, Field(max_length=64)] = ""
    detail: Sentence = ""
    sent_bytes: Count = 0
    received_bytes: Count = 0

    @classmethod
    def of(cls, event: EgressEvent) -> Self:
        """The message for the port's."""
        return cls(**_plain(event))

    def to_port(self) -> EgressEvent:
        """The port's."""
        return EgressEvent(**vars(self))


class _EndMessage(_Part):
    outcome: Outcome
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitHitMessage | None = None
    artefacts: tuple[ArtefactMessage, ...] = ()
    missing_artefacts: tuple[MissingArtefactMessage, ...] = ()
    usage: UsageMessage = UsageMessage()
    timings: TimingsMessage = TimingsMessage()
    tier: Tier | None = None
    image: str | None = None
    enforcement: Mapping[str, Enforcement] = Field(default_factory=dict)
    egress: EgressUseMessage | None = None
    """What it did on the network; ``null`` where it had none."""
    attestation: AttestationMessage | None = None

    def execution(
        self,
        *,
        stdout: Captured,
        stderr: Captured,
        result: bytes | None,
        artefacts: tuple[Artefact, ...],
        missing: tuple[MissingArtefact, ...],
    ) -> Execution:
        """The port's record, with its bytes. ``missing``: artefacts, beside those that were."""
        return Execution(
            outcome=self.outcome,
            detail=self.detail,
            exit_code=self.exit_code,
            signal=self.signal,
            limit=None if self.limit is None else LimitHit(**vars(self.limit)),
            stdout=stdout,
            stderr=stderr,
            result=result,
            artefacts=artefacts,
            missing_artefacts=(
                *(MissingArtefact(one.name, one.reason) for one in self.missing_artefacts),
                *missing,
            ),
            usage=Usage(**vars(self.usage)),
            timings=Timings(**vars(self.timings)),
            tier=self.tier,
            image=self.image,
            enforcement=dict(self.enforcement),
            egress=None if self.egress is None else self.egress.to_port(),
            attestation=None if self.attestation is None else Attestation(**vars(self.attestation)),
        )


class RecordMessage(_EndMessage):
    """The record of one execution."""

    stdout: CapturedMessage = CapturedMessage()
    stderr: CapturedMessage = CapturedMessage()
    result: Content | None = None

    @classmethod
    def of(cls, execution: Execution) -> Self:
        """The message for a record of the port's; artefacts without their bytes."""
        return cls(
            **_end(execution),
            stdout=CapturedMessage(**_plain(execution.stdout)),
            stderr=CapturedMessage(**_plain(execution.stderr)),
            result=execution.result,
        )


class CapturedSizes(_Part):
    """Sizes of the two parts that were kept, which follow as blobs."""

    head: Size
    tail: Size
    total: Size


class DetachedRecord(_EndMessage):
    """A record whose bytes follow it as blobs, in the order of :meth:`sizes`."""

    stdout: CapturedSizes
    stderr: CapturedSizes
    result: Size | None

    @classmethod
    def of(cls, execution: Execution) -> Self:
        """The message for a record of the port's."""
        return cls(
            **_end(execution),
            stdout=_sizes(execution.stdout),
            stderr=_sizes(execution.stderr),
            result=None if execution.result is None else len(execution.result),
        )

    def sizes(self) -> Iterator[int]:
        """Of the blobs that follow. An empty one does not follow."""
        yield from (self.stdout.head, self.stdout.tail, self.stderr.head, self.stderr.tail)
        yield self.result or 0
        yield from (artefact.size for artefact in self.artefacts)

    def to_port(self, blobs: Sequence[bytes]) -> Execution:
        """The port's record. ``blobs``: as :meth:`sizes` has them, the empty ones too."""
        head, tail, error_head, error_tail, result, *artefacts = blobs
        return self.execution(
            stdout=Captured(head, tail, self.stdout.total),
            stderr=Captured(error_head, error_tail, self.stderr.total),
            result=None if self.result is None else result,
            artefacts=tuple(
                Artefact(message.name, data, message.digest)
                for message, data in zip(self.artefacts, artefacts, strict=True)
            ),
            missing=(),
        )


def blobs_of(execution: Execution) -> Iterator[bytes]:
    """The bytes of a record, in the order of :meth:`DetachedRecord.sizes`."""
    for captured in (execution.stdout, execution.stderr):
        yield captured.head
        yield captured.tail
    yield execution.result or b""
    for artefact in execution.artefacts:
        yield artefact.data


def _sizes(captured: Captured) -> CapturedSizes:
    return CapturedSizes(head=len(captured.head), tail=len(captured.tail), total=captured.total)


def _end(execution: Execution) -> dict[str, Any]:
    hit, told = execution.limit, execution.attestation
    return {
        "outcome": execution.outcome,
        "detail": execution.detail,
        "exit_code": execution.exit_code,
        "signal": execution.signal,
        "limit": None if hit is None else LimitHitMessage(**_plain(hit)),
        "artefacts": tuple(
            ArtefactMessage(name=file.name, size=len(file.data), digest=file.digest)
            for file in execution.artefacts
        ),
        "missing_artefacts": tuple(
            MissingArtefactMessage(name=file.name, reason=file.reason)
            for file in execution.missing_artefacts
        ),
        "usage": UsageMessage(**_plain(execution.usage)),
        "timings": TimingsMessage(**_plain(execution.timings)),
        "tier": execution.tier,
        "image": execution.image,
        "enforcement": dict(execution.enforcement),
        "egress": None if execution.egress is None else EgressUseMessage.of(execution.egress),
        "attestation": None if told is None else AttestationMessage(**_plain(told)),
    }


def _plain(part: Any) -> dict[str, Any]:
    """The fields of a dataclass without another in it: a tenth of what asdict() costs."""
    return {name: getattr(part, name) for name in part.__dataclass_fields__}
