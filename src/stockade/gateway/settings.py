"""The gateway's settings: read once, checked before anything is opened."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stockade.api.tokens import TokenFault, check_token, read_token
from stockade.gateway.policy import Ceilings, Retention
from stockade.port import GIB

DEFAULT_DATABASE = "sqlite:////var/lib/stockade/gateway.db"


class _Settings(BaseModel):
    """An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Settings):
    """A certificate of one's own; with ``client_ca`` callers need one of that authority as well."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ListenSettings(_Settings):
    """Where the gateway takes calls: a host and a port, or a unix socket."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    unix: Path | None = None


class ExecutorSettings(_Settings):
    """An executor service, and the token that it compares."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    url: str
    """``http://127.0.0.1:8081``, ``https://host:8081``, or ``unix:///run/stockade/executor.sock``."""
    token_file: Path
    ca: Path | None = None
    """The authority of its certificate; by default those of the system."""
    certificate: Path | None = None
    """Of the gateway, for an executor that demands one."""
    key: Path | None = None
    places: int = Field(default=32, ge=1, le=100_000)
    """Executions that run on it at once; more wait for their turn in the gateway."""

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            if not parts.path.startswith("/") or parts.netloc:
                raise ValueError("a unix socket is unix:///absolute/path")
        elif parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("it is no http, https or unix URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("it holds more than a host and a port; the token is in token_file")
        return url

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self

    def token(self) -> str:
        """Read it. Raises :class:`~stockade.api.tokens.TokenFault`."""
        return read_token(self.token_file).strip()


class BrokerSettings(_Settings):
    """The broker's control socket, and the token that it compares."""

    url: str
    """``unix:///run/stockade-broker/control.sock``, or ``https://host:8082``."""
    token_file: Path
    ca: Path | None = None
    """The authority of its certificate; by default those of the system."""

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("it holds more than a host and a port; the token is in token_file")
        if parts.scheme == "unix":
            if not parts.path.startswith("/") or parts.netloc:
                raise ValueError("a unix socket is unix:///absolute/path")
        elif parts.scheme != "https" or not parts.hostname:
            # Secrets pass here: in the clear on no network, not even this machine's own.
            raise ValueError("it is no https or unix URL")
        return url

    def token(self) -> str:
        """Read it. Raises :class:`~stockade.api.tokens.TokenFault`."""
        return read_token(self.token_file).strip()


class StoreSettings(_Settings):
    """Where bytes are kept: an absolute folder, or ``s3://bucket/prefix``."""

    where: str = "/var/lib/stockade/artefacts"
    options: dict[str, str] = Field(default_factory=dict)
    """Of an S3-compatible store: ``endpoint``, ``region``, ``access_key_id``, and so on."""

    @field_validator("where")
    @classmethod
    def _known(cls, where: str) -> str:
        if not where.startswith("s3://") and not Path(where).is_absolute():
            raise ValueError("it is neither an absolute folder nor s3://bucket/prefix")
        return where


class ArtefactSettings(_Settings):
    """Files that came out."""

    store: StoreSettings = StoreSettings()
    most_bytes: int = Field(default=GIB, ge=1, le=GIB)
    """Of one artefact."""
    ttl_seconds: float = Field(default=7 * 86_400.0, ge=60, le=3650 * 86_400)


class WorkspaceSettings(_Settings):
    """Workspaces that are kept; they are in the store of artefacts, under a prefix of their own."""

    most_bytes: int = Field(default=2 * GIB, ge=1, le=64 * GIB)
    """Of one workspace, packed."""
    ttl_seconds: float = Field(default=30 * 86_400.0, ge=60, le=3650 * 86_400)
    """From its last save."""


class AuditSettings(_Settings):
    """The audit trail."""

    anchor_seconds: float = Field(default=3600.0, ge=10, le=7 * 86_400)
    """How often its end is written to the log, which keeps it where the database's writer cannot."""


class MetricsSettings(_Settings):
    """Prometheus."""

    enabled: bool = True


class TraceSettings(_Settings):
    """OpenTelemetry."""

    endpoint: str | None = None
    """OTLP over HTTP; ``None``: no traces."""
    sampled: float = Field(default=1.0, ge=0, le=1)


class GatewaySettings(_Settings):
    """Everything that the gateway is told from outside."""

    listen: ListenSettings = ListenSettings()
    tls: Tls | None = None
    hosts: tuple[str, ...] = ()
    """What the ``Host`` of a request may say; empty for anything, but in ``auth_mode=dev``."""
    origins: tuple[str, ...] = ()
    """Pages that may call from a browser, like ``https://console.example``."""
    auth_mode: Literal["api_key", "dev"] = "api_key"
    database_url: str = DEFAULT_DATABASE
    executors: Annotated[tuple[ExecutorSettings, ...], Field(max_length=1000)] = ()
    broker: BrokerSettings | None = None
    """Who holds the tenants' credentials; none: there are none."""
    artefacts: ArtefactSettings = ArtefactSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    audit: AuditSettings = AuditSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()
    ceilings: Ceilings = Ceilings()
    """For every tenant, whatever its policy says."""
    retention: Retention = Retention()
    connections: int = Field(default=2000, ge=4, le=100_000)
    """That are open at once."""
    drain_seconds: float = Field(default=30.0, ge=0, le=24 * 3600)
    """How long what runs may go on when the gateway is to stop."""
    key_cache_seconds: float = Field(default=5.0, ge=0, le=60)
    """How long a revoked key may go on at the most."""

    def check(self) -> list[str]:
        """Everything for which the gateway refuses to start; empty where it may."""
        wrong = []
        names = [executor.name for executor in self.executors]
        if not names:
            wrong.append("executors: there is none; the gateway runs nothing itself")
        twice = sorted({name for name in names if names.count(name) > 1})
        wrong.extend(f"executors: {name} is there more than once" for name in twice)
        dev = self.auth_mode == "dev"
        if not dev and self.tls is None and not self._listens_locally():
            wrong.append(
                f"tls: {self.listen.host} is no address of this machine alone, and keys would pass "
                "in the clear: set tls, or listen on 127.0.0.1"
            )
        if dev and not self._listens_locally():
            wrong.append(
                f"listen.host: auth_mode dev knows nobody by a key, so that everyone who reaches "
                f"{self.listen.host} could run programs: listen on 127.0.0.1"
            )
        for executor in self.executors:
            where = f"executors.{executor.name}"
            parts = urlsplit(executor.url)
            if not dev and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                wrong.append(
                    f"{where}.url: plain HTTP to {parts.hostname}, with the token in it: use https"
                )
            try:
                check_token(executor.token())
            except TokenFault as error:
                if not dev:
                    wrong.append(f"{where}.token_file: {error}")
        if self.broker is not None:
            try:
                check_token(self.broker.token())
            except TokenFault as error:
                wrong.append(f"broker.token_file: {error}")
        if self.tls is not None:
            for name, path in (
                ("certificate", self.tls.certificate),
                ("key", self.tls.key),
                ("client_ca", self.tls.client_ca),
            ):
                if path is not None and not path.is_file():
                    wrong.append(f"tls.{name}: there is no file {path}")
        return wrong

    def _listens_locally(self) -> bool:
        return self.listen.unix is not None or is_loopback(self.listen.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name is believed only where it cannot be else."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
