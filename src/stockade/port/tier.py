"""The kinds of boundary."""

from enum import StrEnum


class Tier(StrEnum):
    """A kind of boundary, weakest kernel separation first within the list of the design."""

    NAMESPACE = "namespace"
