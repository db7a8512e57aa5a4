"""What one sandbox, and all of them together, may take of this process.

A guest decides how much it asks for. What it takes of its own share is its own; what it could take
of the others' is refused, and it is told so.
"""

from dataclasses import dataclass, field
from typing import Final

from stockade.egress.room import Room
from stockade.port import MIB

SANDBOX_REQUESTS: Final = 256
SANDBOX_USES: Final = 100_000
"""Of credentials: each is a row that is kept for good."""
SANDBOX_BODIES: Final = 64 * MIB
ALL_BODIES: Final = 512 * MIB


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
