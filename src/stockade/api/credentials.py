"""Credentials: what is said of them between caller, gateway and broker. A secret only ever goes in."""

import re
import zlib
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, model_validator

from stockade.port import InvalidRequest
from stockade.port.egress import MAX_CREDENTIALS, EgressRule, Scheme, check_credential_name

MAX_GRANTS: Final = 32
SHORTEST_SECRET: Final = 8
"""A shorter one would be masked in every second answer, and is guessed."""
LONGEST_SECRET: Final = 8192
MAX_USES: Final = 1000

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_QUERY: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}")
_USER: Final = re.compile(r"[\x21-\x39\x3b-\x7e]{0,128}")
_AWS: Final = re.compile(r"[a-z0-9-]{1,64}")
_PREFIX: Final = re.compile(r"[\x20-\x7e]{0,64}")

# What says where a request goes, or where it ends, is no place for a secret.
_FRAMING: Final = frozenset(
    [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "content-encoding",
        "accept-encoding",
        "cookie2",
        "http2-settings",
    ]
)


class WayKind(StrEnum):
    """How a secret gets into a request."""

    BEARER = "bearer"
    HEADER = "header"
    BASIC = "basic"
    QUERY = "query"
    SIGV4 = "sigv4"
    PLACEHOLDER = "placeholder"


class Way(BaseModel):
    """One way, with what it takes and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: WayKind
    name: str | None = None
    """The header, the query's parameter, or the variable in the sandbox's environment."""
    prefix: str | None = None
    """Of a header: what stands before the secret, such as ``Token ``."""
    user: str | None = None
    """Of basic: the secret is the password."""
    region: str | None = None
    service: str | None = None
    """Of sigv4. The secret is ``ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        takes: dict[WayKind, dict[str, re.Pattern[str]]] = {
            WayKind.BEARER: {},
            WayKind.HEADER: {"name": _HEADER},
            WayKind.BASIC: {"user": _USER},
            WayKind.QUERY: {"name": _QUERY},
            WayKind.SIGV4: {"region": _AWS, "service": _AWS},
            WayKind.PLACEHOLDER: {"name": _VARIABLE},
        }
        wanted = takes[self.kind]
        for field in ("name", "prefix", "user", "region", "service"):
            value = getattr(self, field)
            if field == "prefix" and self.kind is WayKind.HEADER:
                if value is not None and not _PREFIX.fullmatch(value):
                    raise ValueError("prefix: at most 64 printable ASCII characters")
            elif field in wanted:
                if value is None or not wanted[field].fullmatch(value):
                    raise ValueError(f"{self.kind} needs {field}: {wanted[field].pattern}")
            elif value is not None:
                raise ValueError(f"{self.kind} takes no {field}")
        if self.kind is WayKind.HEADER and self.name is not None:
            name = self.name.lower()
            if name in _FRAMING or name.startswith(("proxy-", "sec-websocket-")):
                raise ValueError(f"name: {self.name} says how a message is carried, it is not set")
        return self

    def __str__(self) -> str:
        more = [self.name, self.prefix, self.user, self.region, self.service]
        return ":".join([self.kind, *(part for part in more if part is not None)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """As a person writes it: ``bearer``, ``header:NAME[:PREFIX]``, ``basic:USER``,
        ``query:NAME``, ``sigv4:REGION:SERVICE``, ``placeholder:VARIABLE``.

        Raises :class:`~stockade.port.InvalidRequest`.
        """
        kind, *parts = text.split(":")
        fields = {
            "bearer": (),
            "header": ("name", "prefix"),
            "basic": ("user",),
            "query": ("name",),
            "sigv4": ("region", "service"),
            "placeholder": ("name",),
        }.get(kind)
        if fields is None:
            known = ", ".join(WayKind)
            raise InvalidRequest("way", f"{kind[:40]!r} is no way; there are {known}")
        if len(parts) > len(fields):
            raise InvalidRequest("way", f"{text[:100]!r}: {kind} takes at most {len(fields)} words")
        values: dict[str, Any] = dict(zip(fields, parts, strict=False))
        try:
            return cls(kind=WayKind(kind), **values)
        except ValueError as error:
            raise InvalidRequest("way", f"{text[:100]!r}: {_first(error)}") from None


class Grant(BaseModel):
    """That a credential may be used for this destination, by this way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """As :meth:`stockade.port.egress.EgressRule.parse` reads it."""
    way: Way

    @model_validator(mode="after")
    def _check(self) -> Self:
        rule = self.egress_rule
        if rule.network is not None and "/" in rule.host:
            raise ValueError("rule: a credential is for a host, not for a network")
        if rule.scheme is Scheme.TCP:
            raise ValueError("rule: a credential goes into HTTP requests, not into tcp://")
        return self

    @property
    def egress_rule(self) -> EgressRule:
        """What it allows. TLS, unless the rule says ``http://`` in so many words."""
        try:
            rule = EgressRule.parse(self.rule)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        if rule.scheme is None:
            rule = EgressRule(
                rule.host, rule.port, Scheme.HTTPS, rule.methods, rule.path, rule.addresses
            )
        return rule


class CredentialBody(BaseModel):
    """What is stored: the secret, which no answer ever has, and what it may be used for."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    secret: SecretStr
    grants: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=MAX_GRANTS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        secret = self.secret.get_secret_value()
        if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
            raise ValueError(f"secret: it has {SHORTEST_SECRET} to {LONGEST_SECRET} characters")
        if not secret.isprintable() or secret != secret.strip():
            raise ValueError(
                "secret: it has no control characters, no line ends, and no blank at either end"
            )
        if len(set(secret)) < 4:
            raise ValueError("secret: it has fewer than 4 different characters")
        if len(zlib.compress(secret.encode())) < len(secret) // 5:
            raise ValueError("secret: it repeats itself, and is no secret")
        for grant in self.grants:
            if grant.way.kind in (WayKind.BEARER, WayKind.HEADER) and not secret.isascii():
                raise ValueError("secret: a header takes ASCII characters only")
            if grant.way.kind is WayKind.SIGV4 and (
                not secret.isascii() or len([p for p in secret.split(":", 2) if p]) < 2
            ):
                raise ValueError(
                    "secret: for sigv4 it is ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]"
                )
        return self


class CredentialAnswer(BaseModel):
    """What is said of a stored credential."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    grants: tuple[Grant, ...]
    created_at: float
    """Seconds since 1970, UTC."""
    updated_at: float


class CredentialList(BaseModel):
    """All of a tenant's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    credentials: tuple[CredentialAnswer, ...]


class UseAnswer(BaseModel):
    """That a credential was put into one request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: float
    execution: str
    credential: str
    method: str
    host: str
    port: int
    path: str
    """Without its query."""
    status: int | None = None
    """Of the answer; none: there was none."""


class UseList(BaseModel):
    """The latest first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uses: tuple[UseAnswer, ...]


class TicketBody(BaseModel):
    """Asks for leave to use these credentials in one execution, once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    execution: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    credentials: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_CREDENTIALS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.credentials:
            try:
                check_credential_name(name)
            except InvalidRequest as error:
                raise ValueError(str(error)) from None
        return self


class TicketAnswer(BaseModel):
    """The ticket, and what the credentials reach: for whoever has to allow it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ticket: SecretStr
    rules: tuple[str, ...]
    """Of all the grants."""


def _first(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if callable(errors):
        for each in errors(include_url=False, include_input=False):
            return str(each["msg"]).removeprefix("Value error, ")
    return str(error)
