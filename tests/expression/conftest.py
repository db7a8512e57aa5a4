"""What the tests of the engine share."""

from collections.abc import Callable

import pytest

from stockade.executor.expression import JSON, ExpressionEngine

Evaluate = Callable[..., JSON]


@pytest.fixture
def engine() -> ExpressionEngine:
    return ExpressionEngine()


@pytest.fixture
def evaluate(engine: ExpressionEngine) -> Evaluate:
    def compiled_and_evaluated(source: str, value: JSON = None) -> JSON:
        return engine.compile(source, tenant="one").evaluate(value)

    return compiled_and_evaluated
