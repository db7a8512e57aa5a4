"""What one sandbox, and all of them together, may take of this process.

A guest decides how much it asks for. What it takes of its own share is its own; what it could take
of the others' is refused, and it is told so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stockade.port import MIB

SANDBOX_REQUESTS: Final = 256
SANDBOX_USES: Final = 100_000
"""Of credentials: each is a row that is kept for good."""
SANDBOX_BODIES: Final = 64 * MIB
ALL_BODIES: Final = 512 * MIB


class NoRoom(Exception):
    """As much is taken as may be; the message says of what."""


class Room:
    """So much of something, out of what a larger room has."""

    def __init__(self, most: int, what: str, within: "Room | None" = None) -> None:
        self._most = most
        self._what = what
        self._within = within
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Room {self.taken} of {self._most} {self._what}>"

    def take(self, amount: int = 1) -> Callable[[], None]:
        """Gives what gives it back, once. Raises :class:`NoRoom`."""
        if self.taken + amount > self._most:
            raise NoRoom(f"{self._what}: {self._most} are taken, the most")
        give_within = self._within.take(amount) if self._within is not None else None
        self.taken += amount
        given = False

        def give_back() -> None:
            nonlocal given
            if given:
                return
            given = True
            self.taken -= amount
            if give_within is not None:
                give_within()

        return give_back


@dataclass(frozen=True, slots=True)
class SandboxRoom:
    """Of one sandbox."""

    requests: Room = field(
        default_factory=lambda: Room(SANDBOX_REQUESTS, "requests of this sandbox at once")
    )
    bodies: Room = field(
        default_factory=lambda: Room(SANDBOX_BODIES, "bytes of bodies to be signed")
    )
    uses: Room = field(
        default_factory=lambda: Room(SANDBOX_USES, "uses of credentials by this sandbox")
    )

    @classmethod
    def within(cls, bodies: Room) -> "SandboxRoom":
        """``bodies``: of all sandboxes together."""
        return cls(bodies=Room(SANDBOX_BODIES, "bytes of bodies to be signed", bodies))
