"""What one expression may cost at the most."""

from dataclasses import dataclass, fields
from typing import Final

from stockade.port import KIB, MIB, InvalidRequest

# The library's own, which its Python package cannot change: loops of one evaluation together.
MOST_ITERATIONS: Final = 10_000

# The highest value for which the figures of docs/expressions.md were measured to hold.
_LARGEST: Final = {
    "source_characters": 16 * KIB,
    "nodes": 4_000,
    "input_bytes": 4 * MIB,
    "input_depth": 64,
    "output_bytes": 4 * MIB,
    "output_depth": 128,
    "work": 256 * MIB,
    "cached": 4_096,
    "cached_nodes": 100_000,
    "cached_nodes_together": 2_000_000,
}


@dataclass(frozen=True, slots=True)
class ExpressionLimits:
    """Ceilings. A value outside the range of its field raises :class:`InvalidRequest`."""

    source_characters: int = 8 * KIB
    nodes: int = 2_000
    """Nodes of the syntax tree after its macros were expanded."""
    input_bytes: int = 256 * KIB
    """Of strings and keys in UTF-8, and 8 more for every value."""
    input_depth: int = 32
    output_bytes: int = 256 * KIB
    """Counted as the input's."""
    output_depth: int = 64
    work: int = 32 * MIB
    """The most that an evaluation may cost in the worst case, estimated before it runs: about a
    nanosecond each, and at most one byte of memory each."""
    cached: int = 128
    """Compiled expressions that are kept per tenant."""
    cached_nodes: int = 32_000
    """Nodes of these together: some 400 bytes each."""
    cached_nodes_together: int = 250_000
    """Nodes of all tenants' together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, largest = getattr(self, field.name), _LARGEST[field.name]
            if type(value) is not int or not 1 <= value <= largest:
                raise InvalidRequest(
                    f"expression.{field.name}", f"{value!r} is no whole number from 1 to {largest}"
                )
