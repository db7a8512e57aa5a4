"""How much a program is trusted."""

from enum import StrEnum


class TrustLevel(StrEnum):
    """What is known of the code that is to run. None of them is run without a boundary."""

    REVIEWED = "reviewed"
    """Somebody who answers for it has read it."""
    UNTESTED = "untested"
    """Nobody has read it, and nobody is known to want harm: what a model has just written."""
    HOSTILE = "hostile"
    """It may have been written to break out: a stranger's."""
    REGULATED = "regulated"
    """Whatever it is, somebody has to be able to say what ran it, and that nothing else did."""
