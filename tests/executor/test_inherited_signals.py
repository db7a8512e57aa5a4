"""What an executor ignores, such as one that nohup started, its guests do not."""

import signal
from collections.abc import Iterator

import pytest
from tests.contract.fixtures import REAL, open_tier
from tests.contract.kit import explain, source

from stockade.port import Outcome, Tier


@pytest.fixture
def deaf() -> Iterator[None]:
    """This process to SIGHUP, as nohup(1) makes it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("tier", REAL)
async def test_a_signal_that_the_executor_ignores_ends_a_program(tier: Tier, deaf: None) -> None:
    async with open_tier(tier, 0) as environment:
        program = source("import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('deaf')")
        execution = await environment.run(program)
    assert execution.outcome is Outcome.SIGNAL, explain(execution)
