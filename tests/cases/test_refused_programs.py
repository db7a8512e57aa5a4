"""What is no program is named as what it is."""

import pytest
from tests.contract.kit import command, explain

from stockade.port import ExecutionEnvironment, Outcome

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("/workspace", "a folder is no program: '/workspace'"),
        ("./f", "a folder is no program: './f'"),
        ("./f/x", "Permission denied: './f/x'"),
        ("./f/absent", "no such program in the image: './f/absent'"),
    ],
)
async def test_what_cannot_be_executed(real: ExecutionEnvironment, name: str, detail: str) -> None:
    execution = await real.run(command(name, files={"f/x": b"#!/bin/sh\n"}))
    assert (execution.outcome, execution.detail) == (Outcome.INVALID, detail), explain(execution)
