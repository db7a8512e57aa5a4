"""What the service is told when it starts. Unknown means refuse."""

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from stockade.api.tokens import TokenFault, check_token, read_token
from stockade.executor.egress.broker_lease import parse_address
from stockade.executor.egress.opening import parse_networks
from stockade.executor.local import AuthMode
from stockade.executor.pool import PoolPolicy
from stockade.port import MIB, InvalidRequest, Tier

TOKEN_VARIABLE: Final = "STOCKADE_EXECUTOR_TOKEN"  # noqa: S105 - its name
_MOST_SOCKET_PATH: Final = 100
"""Of the 107 bytes that unix(7) allows; a name beside it is longer."""


class SettingsError(ValueError):
    """The service does not start with these; the message says what to change."""


class UnixAddress(BaseModel):
    """A unix socket, which file permissions guard."""

    model_config = ConfigDict(frozen=True)
    path: Path


class TcpAddress(BaseModel):
    """An address of this machine's own."""

    model_config = ConfigDict(frozen=True)
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether nobody off this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_listen(listen: str) -> UnixAddress | TcpAddress:
    """``unix:/run/stockade/executor.sock`` or ``tcp:127.0.0.1:7070``."""
    kind, _, rest = listen.partition(":")
    if kind == "unix":
        if not rest.startswith("/") or "\0" in rest or len(os.fsencode(rest)) > _MOST_SOCKET_PATH:
            raise SettingsError(
                f"listen: {rest!r} is no absolute path of at most {_MOST_SOCKET_PATH} bytes"
            )
        return UnixAddress(path=Path(rest))
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        host = "127.0.0.1" if host == "localhost" else host
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise SettingsError(
                f"listen: {host!r} is no IP address; a name could come to mean another machine"
            ) from None
        if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65_535:
            raise SettingsError(f"listen: {port!r} is no port, 0 to 65535")
        return TcpAddress(host=host, port=int(port))
    raise SettingsError(f"listen: {listen!r} is neither unix:/PATH nor tcp:ADDRESS:PORT")


def _check_listen(listen: str) -> str:
    parse_listen(listen)
    return listen


def _check_networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parse_networks("egress_public_networks", texts)
    except InvalidRequest as error:
        raise SettingsError(str(error)) from None
    return texts


class TlsSettings(BaseModel):
    """TLS 1.2 or later, with these files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Whose certificates callers must have; none: the token alone tells them."""


class BrokerSettings(BaseModel):
    """The broker's data socket, and the token that it compares."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    address: str = "unix:/run/stockade-broker/data.sock"
    """Or ``tls:HOST:PORT``."""
    token_file: Path
    ca: Path | None = None
    """The authority of its certificate; by default those of the system."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            parse_address(self.address, self.ca)
        except (OSError, ValueError) as error:
            raise SettingsError(f"broker.address: {error}") from None
        self.read_token()
        return self

    def read_token(self) -> str:
        """Raises :class:`SettingsError`."""
        return check_token(read_token(self.token_file))


class ExecutorSettings(BaseModel):
    """The section ``[executor]`` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    listen: Annotated[str, AfterValidator(_check_listen)] = "unix:/run/stockade/executor.sock"
    socket_group: str | None = None
    """Whose members may connect to the unix socket, beside its owner."""
    tls: TlsSettings | None = None
    token_file: Path | None = None
    token: SecretStr = SecretStr("")
    """Instead of token_file: for the environment, not to be written into a configuration."""
    auth_mode: AuthMode = AuthMode.API_KEY
    tiers: frozenset[Tier] | None = None
    """By default all that this machine can start."""
    allow_emulation: bool = False
    preloaded: tuple[str, ...] | None = None
    egress_public_networks: Annotated[tuple[str, ...], AfterValidator(_check_networks)] = ()
    """That guests may reach by a name as if they were public."""
    broker: BrokerSettings | None = None
    """Who puts credentials into requests, and judges what is within TLS; none: neither is done."""

    parked: int = Field(default=PoolPolicy().ceiling, ge=0, le=1024)
    """Sandboxes that may be parked for each profile of a tenant."""
    most_sandboxes: int = Field(default=PoolPolicy().most_alive, ge=1, le=100_000)
    """Alive at once: parked, in use, being made or destroyed."""
    most_waiting: int = Field(default=PoolPolicy().queue, ge=1, le=100_000)
    """Calls that wait for a sandbox."""
    wait_seconds: float = Field(default=PoolPolicy().wait_seconds, ge=0.01, le=3600)

    max_lease_seconds: float = Field(default=24 * 3600.0, gt=0, le=30 * 24 * 3600)
    drain_seconds: float = Field(default=30.0, ge=0, le=24 * 3600)
    """How long what runs may go on when the service is to stop."""
    most_connections: int = Field(default=1024, ge=4, le=100_000)
    header_seconds: float = Field(default=10.0, gt=0, le=300)
    """In which a request's headers have to come."""
    idle_seconds: float = Field(default=75.0, gt=0, le=3600)
    """How long a connection may wait for its next request."""
    stalled_seconds: float = Field(default=60.0, gt=0, le=3600)
    """How long a caller may neither send a byte that is waited for nor take one that is sent."""
    most_body_bytes: int = Field(default=64 * MIB, ge=1024, le=1024 * MIB)
    """Of a request's JSON."""
    most_buffered_bytes: int = Field(default=256 * MIB, ge=1024)
    """Of the JSON of all requests together."""
    otlp_endpoint: str | None = None
    """Where traces are sent, such as ``http://127.0.0.1:4318/v1/traces``; none: nowhere."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.read_token()
        address = self.address
        if self.tls is not None and isinstance(address, UnixAddress):
            raise SettingsError("tls: a unix socket has none; leave it out, or listen on tcp:")
        if isinstance(address, TcpAddress) and not address.loopback and self.tls is None:
            raise SettingsError(
                f"listen: {self.listen} can be reached from other machines, and the token would "
                "cross the network in the clear: set tls, or listen on 127.0.0.1 or a unix socket"
            )
        if self.socket_group is not None and not isinstance(address, UnixAddress):
            raise SettingsError("socket_group: is for a unix socket; leave it out")
        if self.most_buffered_bytes < self.most_body_bytes:
            raise SettingsError(
                f"most_buffered_bytes: {self.most_buffered_bytes} is less than most_body_bytes "
                f"({self.most_body_bytes}), so the largest request could never come in"
            )
        if self.allow_emulation and self.auth_mode is not AuthMode.DEV:
            raise SettingsError("allow_emulation: is for auth_mode=dev; emulation is no boundary")
        return self

    @property
    def address(self) -> UnixAddress | TcpAddress:
        """Where it listens."""
        return parse_listen(self.listen)

    def read_token(self) -> str:
        """The token that callers have to show. Raises :class:`SettingsError`."""
        given = self.token.get_secret_value()
        if self.token_file is not None and given:
            raise SettingsError("token: there is a token_file, too; leave one of them out")
        if self.token_file is None and not given:
            raise SettingsError(
                f"there is no token: put one into token_file or {TOKEN_VARIABLE}; "
                "`openssl rand -hex 32` makes one"
            )
        try:
            return check_token(given if self.token_file is None else read_token(self.token_file))
        except TokenFault as error:
            key = "token" if self.token_file is None else "token_file"
            raise SettingsError(f"{key}: {error}") from None

    def pool(self) -> PoolPolicy:
        """How much is parked, started at once and waited for."""
        standard = PoolPolicy()
        return PoolPolicy(
            floor=min(standard.floor, self.parked),
            ceiling=self.parked,
            most_alive=self.most_sandboxes,
            queue=self.most_waiting,
            wait_seconds=self.wait_seconds,
        )
