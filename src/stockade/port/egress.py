"""What a sandbox may reach on the network."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Destinations a sandbox may reach. Nothing can be granted yet: the only policy is none."""


NO_EGRESS = EgressPolicy()
