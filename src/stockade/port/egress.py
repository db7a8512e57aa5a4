"""What a sandbox may reach on the network, and what it reached for."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, Self

from stockade.port.errors import InvalidRequest
from stockade.port.limits import MIB

MAX_RULES: Final = 64
MAX_CREDENTIALS: Final = 16
MAX_HOST: Final = 253
MAX_PATH: Final = 2048
MAX_DENIED: Final = 64
"""How many denied destinations a record tells apart."""

Network = IPv4Network | IPv6Network


class Scheme(StrEnum):
    """What may be spoken with a destination."""

    HTTPS = "https"
    """TLS, with the host's own name in it."""
    HTTP = "http"
    """HTTP/1.1 without TLS, read and written anew."""
    TCP = "tcp"
    """Whatever the two ends like: nobody looks into it."""


_PORTS: Final = {Scheme.HTTPS: 443, Scheme.HTTP: 80}
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_METHOD: Final = re.compile(r"[A-Z]{1,32}")
# A path prefix holds what cannot be spelled in a second way.
_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,=:@/-]*")
_RULE: Final = re.compile(
    r"(?:(?P<methods>[A-Z]+(?:,[A-Z]+)*) )?(?:(?P<scheme>[a-z]+)://)?"
    r"(?P<host>\[[^\]]*\](?:/\d+)?|\d+(?:\.\d+){3}(?:/\d+)?|[^/:\s]+)"
    r"(?::(?P<port>\d{1,5}))?(?P<path>/\S*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One destination that may be reached. What no rule allows is denied.

    Written out as ``[METHOD[,METHOD] ][scheme://]host[:port][/path][ in NETWORK[,NETWORK]]``, see
    :meth:`parse`.
    """

    host: str
    """A name in lower case (``api.example.com``), its subdomains alone (``*.example.com``), an
    address (``192.0.2.7``) or a network (``10.1.0.0/16``)."""
    port: int = 443
    scheme: Scheme | None = None
    """``None``: TLS or HTTP, whichever is spoken."""
    methods: tuple[str, ...] = ()
    """Of HTTP; empty for all. Over TLS this takes a broker, which ends it."""
    path: str = ""
    """What the path of an HTTP request begins with, by whole segments; empty for all. Over TLS
    likewise."""
    addresses: tuple[str, ...] = ()
    """Networks that the name may lead into although they are not public, such as ``10.1.0.0/16``.
    A rule whose host is an address or a network names it in so many words already."""

    def __post_init__(self) -> None:
        host = self.host
        _text("host", host)
        if self.network is None:
            _check_name(host)
        _whole("port", self.port, 1, 65_535)
        _kind("scheme", self.scheme, (Scheme, type(None)), "a Scheme")
        _kind("methods", self.methods, (tuple,), "a tuple")
        _kind("addresses", self.addresses, (tuple,), "a tuple")
        for method in self.methods:
            _text("methods", method)
            if not _METHOD.fullmatch(method):
                raise InvalidRequest("egress", f"{method!r} is not a method such as GET")
        _text("path", self.path)
        if self.path and (
            not _PATH.fullmatch(self.path)
            or len(self.path) > MAX_PATH
            or any(part in (".", "..") for part in self.path.split("/"))
            or "//" in self.path
        ):
            raise InvalidRequest(
                "egress", f"{self.path!r} is not a plain path that begins with / and has no . or .."
            )
        if self.scheme is Scheme.TCP and (self.methods or self.path):
            raise InvalidRequest("egress", f"{self}: a tcp rule has no method and no path")
        for each in self.addresses:
            _text("addresses", each)
            if network_of(each) is None:
                raise InvalidRequest("egress", f"{each!r} is not a network such as 10.1.0.0/16")
        if self.addresses and self.network is not None:
            raise InvalidRequest(
                "egress", f"{self}: a rule for addresses has no names to lead there"
            )

    def __str__(self) -> str:
        methods = f"{','.join(self.methods)} " if self.methods else ""
        scheme = f"{self.scheme}://" if self.scheme else ""
        host = self.host
        if ":" in host:
            address, slash, length = host.partition("/")
            host = f"[{address}]{slash}{length}"
        inside = f" in {','.join(self.addresses)}" if self.addresses else ""
        return f"{methods}{scheme}{host}:{self.port}{self.path}{inside}"

    @property
    def network(self) -> Network | None:
        """The addresses that the rule is for; ``None`` for one that is for names."""
        return network_of(self.host)

    @property
    def looks_inside(self) -> bool:
        """Whether it asks for more than a destination: a method or a path."""
        return bool(self.methods or self.path)

    @property
    def needs_broker(self) -> bool:
        """Whether TLS has to be ended for it, which a broker alone does."""
        return self.looks_inside and self.scheme is not Scheme.HTTP

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule as a person writes it. Raises :class:`InvalidRequest`.

        ``api.example.com``, ``*.example.com:8443``, ``http://host``, ``tcp://host:22``,
        ``GET,HEAD https://api.example.com/v1/``, ``10.1.2.3:8080``, ``10.1.0.0/16:443``,
        ``[2001:db8::1]:443``, ``wiki.internal:443 in 10.1.0.0/16``. The port is 443, and 80 for
        ``http://``.
        """
        _text("rule", text)
        text, _, addresses = text.strip().partition(" in ")
        found = _RULE.fullmatch(text)
        if found is None:
            raise InvalidRequest(
                "egress",
                f"{text[:300]!r} is not [METHOD ][scheme://]host[:port][/path][ in NETWORK]",
            )
        scheme: Scheme | None = None
        if found["scheme"] is not None:
            if found["scheme"] not in list(Scheme):
                known = ", ".join(Scheme)
                raise InvalidRequest("egress", f"{found['scheme']!r} is no scheme: {known}")
            scheme = Scheme(found["scheme"])
        if found["port"] is None and scheme is Scheme.TCP:
            raise InvalidRequest("egress", f"{text!r}: a tcp rule needs a port")
        host = found["host"].lower()
        if host.startswith("["):
            address, _, rest = host[1:].partition("]")
            host = address + rest
        port = int(found["port"]) if found["port"] else _PORTS[scheme or Scheme.HTTPS]
        methods = tuple(found["methods"].split(",")) if found["methods"] else ()
        inside = tuple(each.strip() for each in addresses.split(",")) if addresses else ()
        return cls(host, port, scheme, methods, found["path"] or "", inside)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Destinations a sandbox may reach, and how much. By default nothing, and nobody listens."""

    rules: tuple[EgressRule, ...] = ()
    credentials: tuple[str, ...] = ()
    """Names of the tenant's credentials that a broker puts into requests on their way out. Each
    brings the destinations it was granted for, and no other."""
    watched: bool = False
    """Say what is denied even where nothing is granted: a proxy then listens and refuses."""
    connections: int = 64
    """Open at once."""
    total_connections: int = 10_000
    """Over an execution, those that were refused too."""
    sent_bytes: int = 1024 * MIB
    """From the sandbox, over all connections."""
    received_bytes: int = 4096 * MIB
    bytes_per_second: int | None = None
    """Each way, over all connections; ``None`` for no ceiling."""
    seconds: float = 3600.0
    """How long one connection may live."""

    def __post_init__(self) -> None:
        _kind("rules", self.rules, (tuple,), "a tuple")
        for rule in self.rules:
            _kind("rules", rule, (EgressRule,), "an EgressRule")
        if len(self.rules) > MAX_RULES:
            raise InvalidRequest("egress", f"{len(self.rules)} rules; at most {MAX_RULES}")
        _kind("credentials", self.credentials, (tuple,), "a tuple")
        if len(self.credentials) > MAX_CREDENTIALS:
            raise InvalidRequest(
                "egress", f"{len(self.credentials)} credentials; at most {MAX_CREDENTIALS}"
            )
        for name in self.credentials:
            check_credential_name(name)
        _kind("watched", self.watched, (bool,), "True or False")
        for name, most in (
            ("connections", 256),
            ("total_connections", 10**9),
            ("sent_bytes", 2**62),
            ("received_bytes", 2**62),
        ):
            _whole(name, getattr(self, name), 1, most)
        if self.bytes_per_second is not None:
            _whole("bytes_per_second", self.bytes_per_second, 1024, 2**62)
        # True is an int for Python, and no number of seconds for anybody.
        if isinstance(self.seconds, bool):
            raise InvalidRequest("egress", "seconds is bool, not a number")
        _kind("seconds", self.seconds, (int, float), "a number")
        if not 0 < self.seconds <= 86_400:
            raise InvalidRequest("egress", f"seconds is {self.seconds!r}, not above 0 to 86400")

    @property
    def listens(self) -> bool:
        """Whether there is anything for a proxy to do."""
        return bool(self.rules or self.credentials or self.watched)

    @property
    def needs_broker(self) -> bool:
        """Whether it can be kept only with a broker."""
        return bool(self.credentials) or any(rule.needs_broker for rule in self.rules)

    def with_rules(self, *rules: EgressRule) -> "EgressPolicy":
        """The same with these rules as well."""
        return replace(self, rules=(*self.rules, *rules))

    def watching(self) -> "EgressPolicy":
        """The same, and what is denied is told."""
        return replace(self, watched=True)


@dataclass(frozen=True, slots=True)
class DeniedDestination:
    """What a guest reached for in vain."""

    destination: str
    """``host:port`` as it was asked for, printable ASCII, at most 300 characters."""
    reason: str
    """A stable code, such as ``no-rule`` or ``private-address``: docs/egress.md lists them."""
    detail: str
    """One sentence: what was refused, and which rule would allow it."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class CredentialUse:
    """That a credential was put into requests, by the broker. Never its value."""

    credential: str
    destination: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class EgressUse:
    """What an execution did on the network."""

    connections: int = 0
    """That were let through."""
    sent_bytes: int = 0
    received_bytes: int = 0
    denied: tuple[DeniedDestination, ...] = ()
    """The first :data:`MAX_DENIED` that differ, with how often each was tried."""
    denied_others: int = 0
    """Denials of destinations beyond those."""
    credentials: tuple[CredentialUse, ...] = ()

    @property
    def denials(self) -> int:
        """How often something was denied."""
        return self.denied_others + sum(each.count for each in self.denied)


@dataclass(frozen=True, slots=True)
class EgressEvent:
    """One connection, as it was decided on or ended: for whoever watches."""

    verdict: str
    """``allowed``, ``denied``, ``ended`` or ``failed``."""
    destination: str
    reason: str = ""
    detail: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0


EgressSink = Callable[[EgressEvent], Awaitable[None]]
"""Called with each event. It is never waited for by the connection that it tells of."""


def check_credential_name(name: object) -> None:
    """Raises :class:`InvalidRequest` for what no credential can be called."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise InvalidRequest("egress", f"{name!r} is not a credential's name (a-z, 0-9, . _ -)")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidRequest("egress", f"{name} is {value!r}, not a number from {least} to {most}")


def _kind(name: str, value: object, kinds: tuple[type, ...], what: str) -> None:
    if not isinstance(value, kinds):
        raise InvalidRequest("egress", f"{name} is {type(value).__name__}, not {what}")


def _text(name: str, value: object) -> None:
    _kind(name, value, (str,), "text")


def network_of(text: str) -> Network | None:
    """The address or network that a text spells; ``None`` where it spells none."""
    if "%" in text:  # a zone is one machine's own, and no part of an address
        return None
    try:
        return ip_network(text)
    except ValueError:
        return None


def _check_name(host: str) -> None:
    name = host.removeprefix("*.")
    labels = name.split(".")
    if (
        not name
        or len(host) > MAX_HOST
        or not all(_LABEL.fullmatch(label) for label in labels)
        or _NUMBER.fullmatch(labels[-1])
        or (host != name and len(labels) < 2)
    ):
        raise InvalidRequest(
            "egress",
            f"{host[:300]!r} is not a host: a name in lower case and ASCII, *.name for its "
            "subdomains, an address or a network",
        )


NO_EGRESS: Final = EgressPolicy()

PROFILES: Final = {
    "python-packages": (
        EgressRule.parse("GET,HEAD https://pypi.org"),
        EgressRule.parse("GET,HEAD https://files.pythonhosted.org"),
    ),
    "node-packages": (EgressRule.parse("GET,HEAD https://registry.npmjs.org"),),
    "debian-packages": (
        EgressRule.parse("GET,HEAD http://deb.debian.org"),
        EgressRule.parse("GET,HEAD http://security.debian.org"),
    ),
}
"""Rules for common needs: package indexes, to be read only."""
