"""The head of an HTTP/1.1 request, read more strictly than the standard lets one.

h11 reads it again; what it would forgive (folded lines, bare line feeds, a length beside chunks)
is what another reader may understand differently, and is refused here.
"""

import re
from dataclasses import dataclass
from typing import Final

from stockade.egress.answers import Refusal

MAX_HEAD: Final = 64 * 1024
MAX_HEADERS: Final = 128
MAX_TARGET: Final = 16 * 1024

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*((?:[\t -~\x80-\xff])*?)[ \t]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

Headers = list[tuple[bytes, bytes]]

# Headers by which some frameworks let a request say that it is another one.
OTHER_METHOD: Final = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
OTHER_PATH: Final = frozenset(
    {b"x-original-url", b"x-rewrite-url", b"x-original-uri", b"x-forwarded-uri"}
)


@dataclass(frozen=True, slots=True)
class Head:
    """A request's line and headers."""

    method: str
    target: str
    minor: int
    headers: Headers
    """Names as they were sent."""

    def all(self, name: bytes) -> list[bytes]:
        """The values of a header; its name in lower case."""
        return [value for key, value in self.headers if key.lower() == name]


def find_head(buffer: bytes | bytearray) -> int | None:
    """Where the head ends; ``None``: it is not there yet. Raises :class:`Refusal`."""
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end >= 0:
        return end + 4
    if len(buffer) >= MAX_HEAD:
        raise Refusal(431, "head-too-large", f"the request's head has over {MAX_HEAD} bytes")
    # Told at once: a client that ends its lines so would wait for ever.
    if b"\n\n" in buffer:
        raise _malformed("a line of the request ends without a carriage return")
    return None


def read_head(data: bytes) -> Head:
    """Read one that is complete. Raises :class:`Refusal`."""
    lines = data[:-4].split(b"\r\n")
    if len(lines) - 1 > MAX_HEADERS:
        raise Refusal(431, "head-too-large", f"the request has over {MAX_HEADERS} headers")
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise _malformed("the first line is not one of an HTTP/1.1 request")
    if len(line[2]) > MAX_TARGET:
        raise Refusal(431, "head-too-large", f"the target has over {MAX_TARGET} characters")
    headers: Headers = []
    for each in lines[1:]:
        if each[:1] in (b" ", b"\t"):
            raise _malformed("a header is folded over two lines")
        found = _HEADER.fullmatch(each)
        if found is None:
            raise _malformed("a header's line is malformed")
        headers.append((found[1], found[2]))
    head = Head(line[1].decode("ascii"), line[2].decode("ascii"), int(line[3]), headers)
    _check_framing(head)
    return head


def _check_framing(head: Head) -> None:
    if len(head.all(b"host")) > 1:
        raise _malformed("there are two Host headers")
    lengths = head.all(b"content-length")
    codings = head.all(b"transfer-encoding")
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise _malformed("its Content-Length is not one number")
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked" or head.minor == 0):
        raise _malformed("its Transfer-Encoding is not chunked and no more")
    if lengths and codings:
        raise _malformed("it has both Content-Length and Transfer-Encoding")


def says_other(name: bytes, known: frozenset[bytes]) -> bool:
    """Whether a header is one of those. CGI, and so WSGI, has an underscore for a dash."""
    return name.lower().replace(b"_", b"-") in known


def _malformed(detail: str) -> Refusal:
    return Refusal(400, "malformed", f"the request is malformed: {detail}")
