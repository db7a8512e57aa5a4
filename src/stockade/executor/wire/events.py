"""What a guest said, one value per event, in the order of the wire."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hello:
    """The guest is up; ``body`` is ``{"version": 1, "receipt": {…}}``, its claims unproven."""

    body: dict[str, object]


@dataclass(frozen=True, slots=True)
class Data:
    """One DATA frame: 1 to 65,536 bytes.  Say so with ``consumed`` once they are taken."""

    channel: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The guest sends no more on this channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Both directions ended now; on channel 0 the whole connection.

    ``reason`` is text that the guest chose.
    """

    channel: int
    reason: str


@dataclass(frozen=True, slots=True)
class Granted:
    """The guest took bytes and lets more be sent: look at ``queued`` again."""

    channel: int


Event = Hello | Data | Closed | Reset | Granted
