"""What a tenant may ask for. Whatever is beyond it is refused in a sentence; nothing is clamped."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stockade.port import (
    GIB,
    KIB,
    MIB,
    NO_EGRESS,
    EgressPolicy,
    EgressRule,
    InvalidRequest,
    Limits,
    Refused,
    SandboxRequest,
    Scheme,
    Tier,
    TrustLevel,
)
from stockade.port.egress import network_of
from stockade.port.limits import _LARGEST, _SMALLEST
from stockade.port.policy import OF_LANGUAGES, OWN_KERNEL, STRENGTH, candidates

PUBLIC: Final = "public"


class _Stored(BaseModel):
    """Kept in the database as JSON; a field that is unknown here is refused, not dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _ceiling(name: str, default: float) -> Any:
    return Field(default=default, ge=_SMALLEST[name], le=_LARGEST[name], allow_inf_nan=False)


class Ceilings(_Stored):
    """The most that each limit of a request may be."""

    wall_seconds: float = _ceiling("wall_seconds", 300.0)
    cpu_seconds: float = _ceiling("cpu_seconds", 600.0)
    cpus: float = _ceiling("cpus", 4.0)
    memory_bytes: int = _ceiling("memory_bytes", 2 * GIB)
    processes: int = _ceiling("processes", 1024)
    open_files: int = _ceiling("open_files", 4096)
    disk_bytes: int = _ceiling("disk_bytes", GIB)
    inodes: int = _ceiling("inodes", 131_072)
    output_bytes: int = _ceiling("output_bytes", 64 * MIB)
    result_bytes: int = _ceiling("result_bytes", 16 * MIB)
    artefact_bytes: int = _ceiling("artefact_bytes", 256 * MIB)
    record_bytes: int = _ceiling("record_bytes", 4 * MIB)
    lease_seconds: float = Field(default=3600.0, gt=0, le=7 * 86_400, allow_inf_nan=False)
    """Of one lease, from when it is asked for."""
    session_seconds: float = Field(default=86_400.0, gt=0, le=30 * 86_400, allow_inf_nan=False)
    """Of one session, however often its lease is extended."""

    def judge(self, limits: Limits, whose: str) -> None:
        """Raises :class:`Refused`."""
        for name in Limits.__dataclass_fields__:
            value, ceiling = getattr(limits, name), getattr(self, name)
            if value > ceiling:
                raise Refused(
                    "forbidden",
                    f"limits.{name} of {value:g} exceeds {whose}'s ceiling of {ceiling:g}; "
                    "ask for less",
                )

    def judge_lease(self, seconds: float, whose: str) -> None:
        """Raises :class:`Refused`."""
        if not seconds > 0:
            raise InvalidRequest("lease_seconds", f"{seconds!r} is not more than 0")
        if seconds > self.lease_seconds:
            raise Refused(
                "forbidden",
                f"a lease of {seconds:g} seconds exceeds {whose}'s ceiling of "
                f"{self.lease_seconds:g}; ask for less, and extend it in time",
            )


class TenantPolicy(_Stored):
    """What one tenant may ask for. An empty list means none."""

    tiers: tuple[Tier, ...] = (
        *(tier for tier in STRENGTH if tier in OWN_KERNEL),
        *(tier for tier in Tier if tier in OF_LANGUAGES),
    )
    trust: tuple[TrustLevel, ...] = tuple(TrustLevel)
    ceilings: Ceilings = Ceilings()
    egress: Annotated[tuple[str, ...], Field(max_length=256)] | Literal["none"] = "none"
    """Rules that cover what may be asked for; ``public`` covers any name that leads to public
    addresses."""
    python_checks: Annotated[dict[str, Any], Field(max_length=16)] = Field(default_factory=dict)
    """What Python sources of tools are checked against (docs/source-checks.md); empty for the
    defaults."""
    keep_source: bool = False
    """Keep the source of what is run in the audit trail, and not its digest alone."""

    def judge(
        self,
        request: SandboxRequest,
        lease_seconds: float | None = None,
        *,
        service: Ceilings | None = None,
    ) -> tuple[Tier, ...]:
        """The tiers that may serve it, the strongest first: never one that is not allowed.

        ``service``: the ceilings that hold for every tenant. Raises :class:`Refused`.
        """
        if request.trust not in self.trust:
            raise Refused(
                "forbidden",
                f"trust level {request.trust} is not allowed; allowed: {_spell(self.trust)}",
            )
        self._judge_egress(request.egress)
        enough = candidates(request.trust, request.tier)
        allowed = tuple(tier for tier in enough if tier in self.tiers)
        if not allowed:
            asked = (
                f"tier {request.tier}"
                if request.tier is not None
                else f"every tier that is strong enough for {request.trust} code ({_spell(enough)})"
            )
            raise Refused("forbidden", f"{asked} is not allowed; allowed: {_spell(self.tiers)}")
        for ceilings, whose in ((service, "the service"), (self.ceilings, "the tenant")):
            if ceilings is None:
                continue
            ceilings.judge(request.limits, whose)
            if lease_seconds is not None:
                ceilings.judge_lease(lease_seconds, whose)
        return allowed

    @field_validator("egress")
    @classmethod
    def _known_rules(cls, egress: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for text in () if isinstance(egress, str) else egress:
            if text != PUBLIC:
                try:
                    EgressRule.parse(text)
                except InvalidRequest as error:
                    raise ValueError(str(error)) from None
        return egress

    def _judge_egress(self, asked: EgressPolicy) -> None:
        if asked == NO_EGRESS:
            return
        # To be told of what is denied takes no grant; but it takes a proxy.
        self.judge_rules(asked.rules)

    def judge_rules(self, rules: tuple[EgressRule, ...]) -> None:
        """Of a request, or of the grants of a credential. Raises :class:`Refused`."""
        if self.egress == "none" or not self.egress:
            raise Refused("forbidden", "no egress is allowed")
        granted = [None if text == PUBLIC else EgressRule.parse(text) for text in self.egress]
        for rule in rules:
            if not any(
                _is_public(rule) if grant is None else covers(grant, rule) for grant in granted
            ):
                raise Refused(
                    "forbidden",
                    f"egress to {rule} is not allowed; allowed: {_spell(tuple(self.egress))}",
                )


def covers(grant: EgressRule, asked: EgressRule) -> bool:
    """Whether the one allows all that the other does. Never in doubt."""
    return (
        _covers_host(grant, asked)
        and grant.port == asked.port
        and (
            grant.scheme is asked.scheme
            or (grant.scheme is None and asked.scheme is not Scheme.TCP)
        )
        and (
            not grant.methods or (bool(asked.methods) and set(asked.methods) <= set(grant.methods))
        )
        and _below(asked.path, grant.path)
        and all(
            any(_inside(inner, outer) for outer in grant.addresses) for inner in asked.addresses
        )
    )


def _covers_host(grant: EgressRule, asked: EgressRule) -> bool:
    if grant.network is not None or asked.network is not None:
        return _inside(asked.host, grant.host)
    if grant.host.startswith("*."):
        return asked.host.endswith(grant.host[1:])
    return grant.host == asked.host


def _inside(inner: str, outer: str) -> bool:
    first, second = network_of(inner), network_of(outer)
    if isinstance(first, IPv4Network) and isinstance(second, IPv4Network):
        return first.subnet_of(second)
    if isinstance(first, IPv6Network) and isinstance(second, IPv6Network):
        return first.subnet_of(second)
    return False


def _below(path: str, prefix: str) -> bool:
    """By whole segments, as a rule means it."""
    return path == prefix or path.startswith(prefix.rstrip("/") + "/") or not prefix


def _is_public(rule: EgressRule) -> bool:
    return rule.network is None and not rule.addresses


def _spell(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


class Budgets(_Stored):
    """What one tenant may use. Zero means none; there is no value for "unlimited"."""

    concurrency: int = Field(default=16, ge=0, le=100_000)
    """Executions that run at once."""
    sandboxes: int = Field(default=16, ge=0, le=100_000)
    """Sessions that are open at once."""
    executions_per_minute: int = Field(default=600, ge=0, le=10_000_000)
    cpu_seconds_per_day: int = Field(default=86_400, ge=0, le=10**9)
    memory_seconds_per_day: int = Field(default=4 * 86_400, ge=0, le=10**9)
    """GiB-seconds: of what was used at the most, times how long."""
    workspace_bytes: int = Field(default=10 * GIB, ge=0, le=2**50)
    """Of all workspaces that are kept."""
    artefact_bytes: int = Field(default=10 * GIB, ge=0, le=2**50)
    """Of all artefacts that are kept."""


class Retention(_Stored):
    """How long what an execution left is kept, and how much of it."""

    record_bytes: int = Field(default=256 * KIB, ge=KIB, le=16 * MIB)
    """Of each stream and of the result, in a record that is kept."""
    record_seconds: int = Field(default=7 * 86_400, ge=60, le=3650 * 86_400)
    execution_seconds: int = Field(default=30 * 86_400, ge=60, le=3650 * 86_400)
    """How long an execution is listed."""
    idempotency_seconds: int = Field(default=86_400, ge=60, le=30 * 86_400)
    usage_days: int = Field(default=400, ge=2, le=3650)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.idempotency_seconds <= self.record_seconds <= self.execution_seconds:
            raise ValueError(
                "it must be idempotency_seconds <= record_seconds <= execution_seconds: a repeated "
                "request is answered with the record of the first"
            )
        return self
