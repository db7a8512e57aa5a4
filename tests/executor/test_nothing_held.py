"""What has ended is free at once: outputs of megabytes do not wait for a collection of cycles."""

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.contract.kit import source, until

from stockade.executor import open_local
from stockade.executor.execution import ProgramExecution
from stockade.executor.link import Link
from stockade.executor.session import SandboxSession
from stockade.port import Tier

pytestmark = [pytest.mark.plain_user, pytest.mark.tier("namespace")]


@pytest.fixture
def held() -> Iterator[Callable[[], list[object]]]:
    """What is alive of what the test makes, with the collector off."""
    gc.collect()
    before = {id(each) for each in _alive()}
    gc.disable()
    try:
        yield lambda: [each for each in _alive() if id(each) not in before]
    finally:
        gc.enable()


def _alive() -> list[object]:
    """Executions, sessions, and wires that were closed."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, ProgramExecution | SandboxSession)
        or (isinstance(each, Link) and each.broken.done())
    ]


async def test_an_execution_that_has_ended_is_held_by_nothing(
    held: Callable[[], list[object]],
) -> None:
    async with open_local(tiers={Tier.NAMESPACE}) as environment:
        for _ in range(3):
            execution = await environment.run(source("print('x' * 1_000_000)"))
            assert execution.ok
        await until(lambda: not held(), 10)


async def test_a_session_that_was_closed_is_held_by_nothing(
    held: Callable[[], list[object]],
) -> None:
    async with open_local(tiers={Tier.NAMESPACE}) as environment:
        session = await environment.open_session()
        await session.write_file("in", b"1")
        assert (await session.run(source("print('x' * 1_000_000)"))).ok
        await session.close()
        del session
        await until(lambda: not held(), 10)
