"""How a guest is told no."""

import re
from typing import Final

from stockade.egress.decision import Denied

HEADER: Final = "X-Stockade-Egress"
_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_UNPRINTABLE: Final = re.compile("[^ -~]")
_LONGEST_PHRASE: Final = 300


class Refusal(Exception):
    """A connection or a request that goes no further."""

    def __init__(self, status: int, reason: str, detail: str, destination: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        """The stable code."""
        self.detail = detail
        """One sentence for whoever wrote the program."""
        self.destination = destination
        self.told = False
        """Whether the guest knows."""
        self.recorded = False
        """Whether it is in the record: it has to be before the guest knows."""

    @classmethod
    def of(cls, denied: Denied, destination: str) -> "Refusal":
        """As a policy has decided."""
        return cls(403, denied.reason, denied.detail, destination)

    @property
    def is_denial(self) -> bool:
        """Whether it was refused, not failed: it belongs into the record."""
        return self.status not in (408, 502, 503, 504)

    def http(self, *, without_body: bool = False) -> bytes:
        """As an answer over HTTP/1.1."""
        body = f"stockade: {self.detail} [{self.reason}]\n".encode("ascii", "replace")
        # Many clients show no body of an answer to CONNECT, but its first line.
        why = _UNPRINTABLE.sub("?", self.detail)[:_LONGEST_PHRASE]
        head = (
            f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, 'Refused')}: {why}\r\n"
            "Content-Type: text/plain; charset=us-ascii\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{HEADER}: {self.reason}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        ).encode("ascii")
        return head if without_body else head + body
