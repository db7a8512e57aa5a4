"""What an execution did on the network, so far."""

from collections.abc import Callable

from stockade.egress.answers import Refusal
from stockade.egress.decision import printable_line
from stockade.egress.names import printable
from stockade.egress.traffic import Traffic
from stockade.port.egress import (
    MAX_DENIED,
    DeniedDestination,
    EgressEvent,
    EgressUse,
)

_MAX_DETAIL = 600


class Recording:
    """Counts, and tells whoever watches."""

    def __init__(self, traffic: Traffic, on_event: Callable[[EgressEvent], None]) -> None:
        self._traffic = traffic
        self._on_event = on_event
        self._connections = 0
        self._denied: dict[tuple[str, str], tuple[str, int]] = {}
        self._denied_others = 0

    @property
    def use(self) -> EgressUse:
        """All of it."""
        return EgressUse(
            connections=self._connections,
            sent_bytes=self._traffic.sent.total,
            received_bytes=self._traffic.received.total,
            denied=tuple(
                DeniedDestination(destination, reason, detail, count)
                for (destination, reason), (detail, count) in self._denied.items()
            ),
            denied_others=self._denied_others,
        )

    def allowed(self, destination: str, detail: str) -> None:
        """A connection was let through."""
        self._connections += 1
        self._on_event(EgressEvent("allowed", destination, detail=detail))

    def refused(self, refusal: Refusal) -> None:
        """Something went no further: denied, or failed."""
        destination = printable(refusal.destination or "-")
        detail = printable_line(refusal.detail, _MAX_DETAIL)
        if not refusal.is_denial:
            self._on_event(EgressEvent("failed", destination, refusal.reason, detail))
            return
        key = (destination, refusal.reason)
        if key in self._denied:
            first, count = self._denied[key]
            self._denied[key] = (first, count + 1)
        elif len(self._denied) < MAX_DENIED:
            self._denied[key] = (detail, 1)
        else:
            self._denied_others += 1
        self._on_event(EgressEvent("denied", destination, refusal.reason, detail))

    def ended(self, destination: str, sent: int, received: int, reason: str = "") -> None:
        """A connection that was let through is over."""
        self._on_event(
            EgressEvent("ended", destination, reason, sent_bytes=sent, received_bytes=received)
        )
