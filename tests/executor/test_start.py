"""The start of a program: what it costs a call is one write, and one turn of the agent's."""

import os

import pytest

from stockade.executor import link, open_local
from stockade.port import ExecutionRequest, PythonSource, Tier


@pytest.mark.plain_user
@pytest.mark.tier("namespace")
async def test_a_small_program_starts_with_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, specification, source and the ends of source and input together."""
    request = ExecutionRequest(PythonSource("print(1)", ("a",)), environment={"A": "b"})
    async with open_local(tiers={Tier.NAMESPACE}) as environment:
        await environment.warm_up()
        writes: list[bytes] = []

        class Counting:
            """``os``, as the link has it."""

            def __getattr__(self, name: str) -> object:
                return getattr(os, name)

            def writev(self, descriptor: int, parts: list[memoryview]) -> int:
                writes.append(b"".join(parts))
                return os.writev(descriptor, parts)

        monkeypatch.setattr(link, "os", Counting())
        running = await environment.start(request)
        assert len(writes) == 1
        assert b"print(1)" in writes[0]
        execution = await running.wait()
        assert execution.stdout.content == b"1\n"
        assert len(writes) == 1
