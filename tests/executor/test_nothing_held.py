"""What has ended is free at once: outputs of megabytes do not wait for a collection of cycles."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
from tests.contract.kit import source, until

from stockade.executor import open_local
from stockade.executor.execution import ProgramExecution
from stockade.executor.link import Link
from stockade.executor.session import SandboxSession
from stockade.port import Tier

pytestmark = [pytest.mark.plain_user, pytest.mark.tier("namespace")]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> tuple[int, int, int]:
    """Executions, sessions, and wires that were closed."""
    objects = gc.get_objects()
    return (
        sum(isinstance(each, ProgramExecution) for each in objects),
        sum(isinstance(each, SandboxSession) for each in objects),
        sum(isinstance(each, Link) and each.broken.done() for each in objects),
    )


async def _nothing() -> tuple[int, int, int]:
    await until(lambda: alive() == (0, 0, 0), 10)
    return alive()


async def test_an_execution_that_has_ended_is_held_by_nothing(no_collector: None) -> None:
    async with open_local(tiers={Tier.NAMESPACE}) as environment:
        for _ in range(3):
            execution = await environment.run(source("print('x' * 1_000_000)"))
            assert execution.ok
        assert await _nothing() == (0, 0, 0)


async def test_a_session_that_was_closed_is_held_by_nothing(no_collector: None) -> None:
    async with open_local(tiers={Tier.NAMESPACE}) as environment:
        session = await environment.open_session()
        await session.write_file("in", b"1")
        assert (await session.run(source("print('x' * 1_000_000)"))).ok
        await session.close()
        del session
        await asyncio.sleep(0)
        assert await _nothing() == (0, 0, 0)
