"""Hosts as a guest writes them, made into one spelling or refused.

What is compared with rules, resolved, and compared with SNI and ``Host`` is always this spelling.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import idna

from stockade.port.egress import MAX_HOST

Address = IPv4Address | IPv6Address

MAX_SPELLED: Final = 1024
"""Characters that are looked at at all."""
MAX_PRINTED: Final = 300

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
# What inet_aton(3), and so a resolver, takes for a number: its last part is one.
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
# IDNA has these for dots too; a resolver does not.
_OTHER_DOTS: Final = "\u3002\uff0e\uff61"


class BadHost(ValueError):
    """It is not a host in a spelling that everybody reads alike."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Host:
    """A name in lower case without a trailing dot, or an address."""

    name: str
    address: Address | None = None

    def __str__(self) -> str:
        return f"[{self.name}]" if ":" in self.name else self.name


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a guest wants to go."""

    host: Host
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def read_host(text: str) -> Host:
    """The one spelling of a host. Raises :class:`BadHost`."""
    shown = printable(text, 80)
    if not text:
        raise BadHost("bad-host", "there is no host")
    if len(text) > MAX_SPELLED:
        raise BadHost("bad-host", f"the host has {len(text)} characters; at most {MAX_HOST}")
    if "@" in text:
        raise BadHost("userinfo", f"{shown!r}: a user name in front of a host is not taken")
    if text.startswith("[") or ":" in text:
        return _read_ipv6(text, shown)
    if not text.isascii():
        text = _to_ascii(text, shown)
    name = text.lower()
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            address = IPv4Address(name)
        except ValueError:
            raise BadHost(
                "numeric-host",
                f"{shown!r} is an address in a spelling that programs read differently; "
                "write it as four decimal numbers",
            ) from None
        if text.endswith("."):
            raise BadHost("numeric-host", f"{shown!r}: an address has no dot at its end")
        return Host(str(address), address)
    if len(name) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost("bad-host", f"{shown!r} is not the name of a host")
    for label in labels:
        if label.startswith("xn--"):
            _check_a_label(label, shown)
    return Host(name)


def read_authority(text: str, default_port: int | None = None) -> Destination:
    """``host:port`` as in CONNECT and URLs. Raises :class:`BadHost`."""
    shown = printable(text, 80)
    if len(text) > MAX_SPELLED + 6:
        raise BadHost("bad-host", f"the host has {len(text)} characters; at most {MAX_HOST}")
    if "@" in text:
        raise BadHost("userinfo", f"{shown!r}: a user name in front of a host is not taken")
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        host += bracket
        if rest and not rest.startswith(":"):
            raise BadHost("bad-host", f"{shown!r} has something behind the address")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
    if not colon:
        if default_port is None:
            raise BadHost("bad-port", f"{shown!r} has no port")
        return Destination(read_host(host), default_port)
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65_535:
        raise BadHost("bad-port", f"{shown!r} has no port from 1 to 65535")
    return Destination(read_host(host), int(port))


def printable(text: str, most: int = MAX_PRINTED) -> str:
    """Hostile text for a record, a log or a terminal: ASCII that shows, and not too much of it."""
    cut = "".join(c if "!" <= c <= "~" else "?" for c in text[:most])
    return cut if len(text) <= most else f"{cut[: most - 3]}..."


def _read_ipv6(text: str, shown: str) -> Host:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in inner:
        raise BadHost("bad-host", f"{shown!r}: an address with a zone is of one link only")
    try:
        address = ip_address(inner)
    except ValueError:
        address = None
    if not isinstance(address, IPv6Address):
        raise BadHost("bad-host", f"{shown!r} is not an IPv6 address")
    return Host(str(address), address)


def _to_ascii(text: str, shown: str) -> str:
    if any(dot in text for dot in _OTHER_DOTS):
        raise BadHost("bad-host", f"{shown!r} has a dot that is not the ASCII one")
    dot = "." if text.endswith(".") else ""
    lower = text.lower().removesuffix(".")
    try:
        encoded = idna.encode(lower).decode("ascii")
        same = idna.decode(encoded) == lower
    except (idna.IDNAError, UnicodeError, ValueError, IndexError):
        same, encoded = False, ""
    if not same:
        raise BadHost("bad-host", f"{shown!r} has characters that no name may have (IDNA 2008)")
    return encoded + dot


def _check_a_label(label: str, shown: str) -> None:
    try:
        same = idna.encode(idna.decode(label)).decode("ascii") == label
    except (idna.IDNAError, UnicodeError, ValueError, IndexError):
        same = False
    if not same:
        raise BadHost("bad-host", f"{shown!r}: {label[:70]!r} stands for no name (IDNA 2008)")
