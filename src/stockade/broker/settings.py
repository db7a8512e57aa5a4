"""What the broker is told when it starts. Unknown means refuse."""

import ipaddress
import os
import pwd
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from stockade.broker.keys import KeyFault, ask_key_command, parse_keys, read_key_file, read_private
from stockade.port.egress import Network

_SHORTEST_TOKEN: Final = 32
_LONGEST_TOKEN: Final = 512
_KNOWN_WORDS: Final = ("changeme", "change-me", "secret", "password", "default", "example", "token")
_MOST_SOCKET_PATH: Final = 100


class SettingsError(ValueError):
    """The broker does not start with these; the message says what to change."""


def check_token(token: str, where: str) -> str:
    """Refuse what could be guessed. What is wrong is said without the token itself."""
    token = token.strip()
    if not token:
        raise SettingsError(
            f"{where}: there is no token: put one of {_SHORTEST_TOKEN} random characters or more "
            "into its file; `openssl rand -hex 32` makes one"
        )
    lowered = stripped = token.lower()
    for word in _KNOWN_WORDS:
        stripped = stripped.replace(word, "")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(f"{where}: the token has other characters than letters and digits")
    if len(token) < _SHORTEST_TOKEN or len(set(lowered)) < 8 or len(stripped) < 16:
        raise SettingsError(
            f"{where}: the token can be guessed: it has fewer than {_SHORTEST_TOKEN} characters, "
            "or few different ones, or a well-known word; `openssl rand -hex 32` makes one"
        )
    if len(token) > _LONGEST_TOKEN:
        raise SettingsError(f"{where}: the token has more than {_LONGEST_TOKEN} characters")
    return token


class TlsSettings(BaseModel):
    """TLS 1.2 or later, with these files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Whose certificates callers must have; none: the token alone tells them."""


class UnixAddress(BaseModel):
    """A unix socket."""

    model_config = ConfigDict(frozen=True)
    path: Path


class TcpAddress(BaseModel):
    """An address of this machine's own."""

    model_config = ConfigDict(frozen=True)
    host: str
    port: int


def parse_listen(listen: str) -> UnixAddress | TcpAddress:
    """``unix:/run/stockade/broker.sock`` or ``tcp:127.0.0.1:7071``."""
    kind, _, rest = listen.partition(":")
    if kind == "unix":
        if not rest.startswith("/") or "\0" in rest or len(os.fsencode(rest)) > _MOST_SOCKET_PATH:
            raise SettingsError(
                f"{rest!r} is no absolute path of at most {_MOST_SOCKET_PATH} bytes"
            )
        return UnixAddress(path=Path(rest))
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise SettingsError(
                f"{host!r} is no IP address; a name could come to mean another machine"
            ) from None
        if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65_535:
            raise SettingsError(f"{port!r} is no port, 0 to 65535")
        return TcpAddress(host=host, port=int(port))
    raise SettingsError(f"{listen!r} is neither unix:/PATH nor tcp:ADDRESS:PORT")


def _check_listen(listen: str) -> str:
    parse_listen(listen)
    return listen


class SocketSettings(BaseModel):
    """One of the two sockets."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    listen: Annotated[str, AfterValidator(_check_listen)]
    socket_group: str | None = None
    """Whose members may connect to the unix socket, beside its owner."""
    users: tuple[str, ...] | None = None
    """Users, by name or number, who may connect to the unix socket; none: whoever can."""
    tls: TlsSettings | None = None
    token_file: Path | None = None
    token: SecretStr = SecretStr("")
    """Instead of token_file: for the environment, not to be written into a configuration."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        address = self.address
        if isinstance(address, UnixAddress):
            if self.tls is not None:
                raise SettingsError("tls: a unix socket has none; leave it out")
        else:
            if self.socket_group is not None or self.users is not None:
                raise SettingsError("socket_group and users are for a unix socket; leave them out")
            if self.tls is None and not ipaddress.ip_address(address.host).is_loopback:
                raise SettingsError(
                    f"listen: {self.listen} can be reached from other machines, and the token would"
                    " cross the network in the clear: set tls, or listen on a unix socket"
                )
        self.user_ids()
        return self

    @property
    def address(self) -> UnixAddress | TcpAddress:
        """Where it listens."""
        return parse_listen(self.listen)

    def read_token(self, where: str) -> str:
        """The token that callers have to show. Raises :class:`SettingsError`."""
        given = self.token.get_secret_value()
        if self.token_file is None:
            return check_token(given, where)
        if given:
            raise SettingsError(f"{where}.token: there is a token_file, too; leave one of them out")
        try:
            return check_token(read_private(self.token_file, f"{where}.token_file"), where)
        except KeyFault as error:
            raise SettingsError(str(error)) from None

    def user_ids(self) -> frozenset[int] | None:
        """The users' numbers. Raises :class:`SettingsError`."""
        if self.users is None:
            return None
        found = set()
        for user in self.users:
            try:
                found.add(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
            except KeyError:
                raise SettingsError(f"users: there is no user {user!r} on this machine") from None
        return frozenset(found)


class ControlSettings(SocketSettings):
    """The gateway's."""

    listen: Annotated[str, AfterValidator(_check_listen)] = "unix:/run/stockade-broker/control.sock"


class DataSettings(SocketSettings):
    """The executors'."""

    listen: Annotated[str, AfterValidator(_check_listen)] = "unix:/run/stockade-broker/data.sock"


def _is_network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


class BrokerSettings(BaseModel):
    """The section ``[broker]`` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    control: ControlSettings = ControlSettings()
    """For the gateway: stores credentials, and gives tickets."""
    data: DataSettings = DataSettings()
    """For executors: uses them, by a ticket."""
    database: Path = Path("/var/lib/stockade/broker.db")
    key_file: Path | None = None
    """Keys that seal the secrets, one a line, base64 of 32 bytes. The first one seals."""
    key: SecretStr = SecretStr("")
    """Instead of key_file: for the environment, not to be written into a configuration."""
    key_command: tuple[str, ...] = ()
    """Instead of both: a program and its arguments, which prints the keys."""
    extra_ca: Path | None = None
    """PEM of certificates that destinations may have beside those that the system trusts."""
    public_networks: tuple[Annotated[str, AfterValidator(_is_network)], ...] = ()
    """Networks that count as public here, although they are special elsewhere."""
    connect_seconds: float = Field(default=10.0, gt=0, le=300)
    answer_seconds: float = Field(default=600.0, gt=0, le=24 * 3600)
    """In which the head of a destination's answer has to come."""
    most_connections: int = Field(default=4096, ge=4, le=100_000)
    """Of executors, at once."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        control, data = self.read_tokens()
        if control == data:
            raise SettingsError(
                "data.token: it is the control socket's too; an executor that had it could store "
                "credentials: `openssl rand -hex 32` makes another"
            )
        if self.control.listen == self.data.listen:
            raise SettingsError("data.listen: it is the control socket's too")
        given = [
            name
            for name, value in (
                ("key_file", self.key_file),
                ("key", self.key.get_secret_value()),
                ("key_command", self.key_command),
            )
            if value
        ]
        if len(given) != 1:
            what = " and ".join(given) or "none of them is"
            raise SettingsError(
                f"key_file: exactly one of key_file, key and key_command is set, and {what} here; "
                "`openssl rand -base64 32` makes a key"
            )
        if not self.key_command:
            self._keys_at_hand()
        if self.extra_ca is not None and not self.extra_ca.is_file():
            raise SettingsError(f"extra_ca: there is no file {self.extra_ca}")
        return self

    def read_tokens(self) -> tuple[str, str]:
        """Control's and data's. Raises :class:`SettingsError`."""
        return self.control.read_token("control"), self.data.read_token("data")

    async def read_keys(self) -> list[bytes]:
        """What seals the secrets. Raises :class:`SettingsError`."""
        try:
            if self.key_command:
                return await ask_key_command(self.key_command)
        except KeyFault as error:
            raise SettingsError(str(error)) from None
        return self._keys_at_hand()

    def _keys_at_hand(self) -> list[bytes]:
        try:
            if self.key_file is not None:
                return read_key_file(self.key_file)
            return parse_keys(self.key.get_secret_value(), "key")
        except KeyFault as error:
            raise SettingsError(str(error)) from None

    @property
    def networks(self) -> tuple[Network, ...]:
        """Those that count as public."""
        return tuple(ipaddress.ip_network(each) for each in self.public_networks)
