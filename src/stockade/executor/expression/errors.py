"""How an expression fails. Each says where, and one sentence for the person who wrote it."""

from collections.abc import Sequence
from typing import NamedTuple

from stockade.port import StockadeError


class Place(NamedTuple):
    """A place in the source, both counted from 1; columns are characters."""

    line: int
    column: int


class ExpressionError(StockadeError):
    """The root of the three below."""


class InvalidExpression(ExpressionError, ValueError):
    """Refused before it ran. ``rule`` is a stable word for programs."""

    def __init__(self, line: int, column: int, rule: str, sentence: str) -> None:
        super().__init__(f"line {line}, column {column}: {sentence}")
        self.line = line
        self.column = column
        self.rule = rule
        self.sentence = sentence


class EvaluationFailed(ExpressionError):
    """It has no value for this input, or none that is JSON.

    ``places``: where in the source it can have been; the library does not say, so there may be
    several. ``path``: the place in the input or the output, where it is one of these.
    """

    def __init__(self, sentence: str, *, places: Sequence[Place] = (), path: str = "") -> None:
        where = " or ".join(f"line {line}, column {column}" for line, column in places) or path
        super().__init__(f"{where}: {sentence}" if where else sentence)
        self.sentence = sentence
        self.places = tuple(places)
        self.path = path


class OverLimit(ExpressionError):
    """A bound was exceeded. ``limit`` is the field of ``ExpressionLimits``, or ``iterations``."""

    def __init__(self, limit: str, sentence: str) -> None:
        super().__init__(f"{limit}: {sentence}")
        self.limit = limit
        self.sentence = sentence
