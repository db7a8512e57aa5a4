"""Slow evaluations of many at once leave the loop to others, and tenants take turns."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stockade.executor.expression.evaluating import Evaluation, Expressions
from stockade.port import ExecutionRequest, ExpressionSource, Outcome, SandboxRequest, Tier

SLOW = json.dumps(["x" * 2] * 10_000).encode()
"""Reading and writing it takes some milliseconds anywhere."""


class Watched:
    """Expressions, and what else the loop did when each began to be evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = 0
        self.seen: list[tuple[str, int]] = []
        self.expressions = Expressions()
        evaluate = self.expressions._evaluate

        def watched(source: str, sandbox: SandboxRequest, *rest: Any) -> Any:
            self.seen.append((sandbox.tenant, self.turns))
            return evaluate(source, sandbox, *rest)

        monkeypatch.setattr(self.expressions, "_evaluate", watched)

    async def look(self) -> None:
        """Another one's work."""
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def start(self, tenant: str, stdin: Any = SLOW, source: str = "input") -> Evaluation:
        request = ExecutionRequest(ExpressionSource(source))
        return self.expressions.start(
            request, SandboxRequest(tenant=tenant, tier=Tier.EXPRESSION), stdin
        )


async def in_pieces() -> AsyncIterator[bytes]:
    yield SLOW


@pytest.mark.parametrize("pieces", [True, False])
async def test_others_go_on_between_them(monkeypatch: pytest.MonkeyPatch, pieces: bool) -> None:
    watched = Watched(monkeypatch)
    looking = asyncio.create_task(watched.look())
    started = [watched.start("a", in_pieces() if pieces else SLOW) for _ in range(8)]
    assert all([(await each.wait()).ok for each in started])
    looking.cancel()
    turns = [turn for _, turn in watched.seen]
    assert len(set(turns)) == len(turns) == 8, turns


async def test_who_asks_for_many_waits_for_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    many = [watched.start("a") for _ in range(8)]
    await asyncio.sleep(0)
    other = watched.start("b", b"1", "input + 1")
    assert (await other.wait()).result == b"2"
    assert not many[-1].done
    assert all([(await each.wait()).ok for each in many])
    assert [tenant for tenant, _ in watched.seen].index("b") <= 3


async def test_one_that_waits_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    first, second, third = (watched.start("a") for _ in range(3))
    await asyncio.sleep(0)
    await second.cancel()
    assert (await second.wait()).outcome is Outcome.CANCELLED
    assert (await first.wait()).ok
    assert (await third.wait()).ok
