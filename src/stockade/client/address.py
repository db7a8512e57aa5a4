"""Where a service is: ``https://HOST``, plain HTTP to this machine alone, or a unix socket."""

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from stockade.port import InvalidRequest

_LONGEST_SOCKET = 107  # sun_path less the NUL, unix(7)
_FORMS = "https://HOST[:PORT], http://127.0.0.1:PORT, or unix:/PATH"


class Address(NamedTuple):
    """One service."""

    base: str
    """What every path is put behind."""
    socket: str | None = None
    """The unix socket, where it is one."""

    def __str__(self) -> str:
        return self.base if self.socket is None else f"unix:{self.socket}"


def parse(url: str) -> Address:
    """Raises :class:`~stockade.port.InvalidRequest`."""
    if not isinstance(url, str):
        raise InvalidRequest("url", f"{url!r} is not text; it is {_FORMS}")
    if url.startswith("unix:"):
        return _socket(url)
    # urlsplit() drops some of these without a word.
    if not re.fullmatch(r"[\x21-\x7e]+", url):
        raise InvalidRequest("url", f"{url!r} is no URL; it is {_FORMS}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest("url", f"{url!r} is no URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        # Not repeated: it may be a secret.
        raise InvalidRequest("url", "it has a user or a password in it; a key is given apart")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise InvalidRequest("url", f"{url!r} has a query or a fragment; it ends with the path")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidRequest("url", f"{url!r} is not one of {_FORMS}")
    if parts.scheme == "http" and not _is_loopback(parts):
        raise InvalidRequest(
            "url",
            f"{url!r} is plain HTTP to another machine, which would show the key to the network; "
            "use https:// (plain HTTP is for 127.0.0.1, [::1] and localhost)",
        )
    return Address(url.rstrip("/"))


def _socket(url: str) -> Address:
    path = url.removeprefix("unix:")
    if path.startswith("///"):
        path = path[2:]
    if not path.startswith("/") or path.startswith("//") or "\0" in path:
        raise InvalidRequest("url", f"{url!r} names no socket; it is unix:/PATH")
    if len(path.encode("utf-8", "surrogateescape")) > _LONGEST_SOCKET:
        raise InvalidRequest("url", f"{url!r}: a socket's path has at most {_LONGEST_SOCKET} bytes")
    return Address("http://localhost", path)


def _is_loopback(parts: SplitResult) -> bool:
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
