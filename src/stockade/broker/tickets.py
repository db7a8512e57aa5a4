"""Tickets: leave to open one sandbox with certain credentials, once and soon."""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SECONDS: Final = 60.0
_MOST: Final = 10_000
_MOST_OF_ONE: Final = 1000
"""Of one tenant: the others shall have some, too."""


class TicketRefused(Exception):
    """It is none, or not for this. Which of it is not said: a guess learns nothing."""


class TooManyTickets(Exception):
    """As many are out as may be."""


@dataclass(frozen=True, slots=True)
class _Issued:
    tenant: str
    execution: str
    credentials: tuple[str, ...]
    deadline: float


class Tickets:
    """Those that are out. They are kept by their digest, in memory alone."""

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._issued: dict[bytes, _Issued] = {}
        self._of_tenant: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Tickets {len(self._issued)} out>"

    def issue(self, tenant: str, execution: str, credentials: tuple[str, ...]) -> str:
        """Raises :class:`TooManyTickets`."""
        now = self._clock()
        # In the order of their deadlines, which all lie equally far ahead.
        for digest, issued in list(self._issued.items()):
            if issued.deadline > now:
                break
            self._forget(digest)
        if len(self._issued) >= _MOST:
            raise TooManyTickets(f"{_MOST} tickets are out, the most; try again later")
        if self._of_tenant[tenant] >= _MOST_OF_ONE:
            raise TooManyTickets(
                f"{_MOST_OF_ONE} tickets of this tenant are out, the most; try again later"
            )
        self._of_tenant[tenant] += 1
        ticket = secrets.token_hex(32)
        self._issued[_digest(ticket)] = _Issued(tenant, execution, credentials, now + self._seconds)
        return ticket

    def redeem(self, ticket: str, tenant: str, execution: str) -> tuple[str, ...]:
        """The credentials' names. Whoever shows it, it is used up. Raises :class:`TicketRefused`."""
        issued = self._forget(_digest(ticket))
        if (
            issued is None
            or issued.deadline <= self._clock()
            or issued.tenant != tenant
            or issued.execution != execution
        ):
            raise TicketRefused(
                "the ticket is unknown, used already, too old, or for another execution"
            )
        return issued.credentials

    def _forget(self, digest: bytes) -> _Issued | None:
        issued = self._issued.pop(digest, None)
        if issued is not None:
            self._of_tenant[issued.tenant] -= 1
            if not self._of_tenant[issued.tenant]:
                del self._of_tenant[issued.tenant]
        return issued


def _digest(ticket: str) -> bytes:
    # Looked up by its digest: the time that takes tells nothing of a ticket that is out.
    return hashlib.sha256(ticket.encode("utf-8", "replace")).digest()
