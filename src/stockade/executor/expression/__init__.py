"""The expression tier's engine: one CEL expression over JSON, bounded, inside this process."""

from stockade.executor.expression.engine import Expression, ExpressionEngine
from stockade.executor.expression.errors import (
    EvaluationFailed,
    ExpressionError,
    InvalidExpression,
    OverLimit,
    Place,
)
from stockade.executor.expression.limits import ExpressionLimits
from stockade.executor.expression.values import JSON

__all__ = [
    "JSON",
    "EvaluationFailed",
    "Expression",
    "ExpressionEngine",
    "ExpressionError",
    "ExpressionLimits",
    "InvalidExpression",
    "OverLimit",
    "Place",
]
