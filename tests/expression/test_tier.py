"""The tier behind the port: what goes in, what comes out, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.contract.fixtures import Reached, open_kind

from stockade.executor.local import AuthMode, open_local
from stockade.port import (
    Command,
    EgressPolicy,
    EgressRule,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    Limits,
    Outcome,
    SandboxRequest,
    TerminalSize,
    Tier,
    Unavailable,
)

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]
KINDS: dict[str, Tier | Reached] = {
    "embedded": Tier.EXPRESSION,
    "remote": Reached(Tier.EXPRESSION, by_gateway=False),
    "gateway": Reached(Tier.EXPRESSION, by_gateway=True),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def environment(request: pytest.FixtureRequest) -> AsyncIterator[ExecutionEnvironment]:
    async with open_kind(KINDS[request.param], 0) as opened:
        yield opened


async def value_of(environment: ExecutionEnvironment, source: str, value: object = None) -> Any:
    execution = await environment.run(
        ExecutionRequest(ExpressionSource(source)), stdin=json.dumps(value).encode()
    )
    assert execution.ok, execution.detail
    return json.loads(execution.result or b"")


async def run(
    environment: ExecutionEnvironment, source: str, stdin: bytes = b"", **limits: Any
) -> Execution:
    return await environment.run(
        ExecutionRequest(ExpressionSource(source)),
        SandboxRequest(limits=Limits(**limits)),
        stdin=stdin,
    )


async def test_json_in_and_json_out(environment: ExecutionEnvironment) -> None:
    assert await value_of(environment, "input.a.map(x, x * 2)", {"a": [1, 2]}) == [2, 4]
    assert await value_of(environment, "{'n': input}", "ä\n") == {"n": "ä\n"}


async def test_the_record_says_where_it_ran(environment: ExecutionEnvironment) -> None:
    execution = await run(environment, "input == null")
    assert execution.result == b"true"
    assert (execution.tier, execution.image, execution.exit_code) == (Tier.EXPRESSION, None, 0)
    assert execution.usage.written_bytes == 4


async def test_input_may_come_in_pieces(environment: ExecutionEnvironment) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"a"', b": 41}"):
            await asyncio.sleep(0)
            yield piece

    running = await environment.start(
        ExecutionRequest(ExpressionSource("input.a + 1")), stdin=pieces()
    )
    assert not running.done
    assert (await running.wait()).result == b"42"
    assert running.done


@pytest.mark.parametrize(
    ("source", "stdin", "outcome", "said"),
    [
        ("input.", b"", Outcome.INVALID, "line 1, column 7"),
        ("nobody", b"", Outcome.INVALID, "nobody"),
        ("input.a", b"{}", Outcome.NONZERO_EXIT, "line 1, column 6"),
        ("0.0 / 0.0", b"", Outcome.NONZERO_EXIT, "NaN"),
        ("input", b"{", Outcome.INVALID, "no JSON"),
        ("input", b'{"a": 1, "a": 2}', Outcome.INVALID, "two members"),
        ("input", b"[" * 100_000, Outcome.INVALID, "nested"),
        ("input", b"NaN", Outcome.INVALID, "NaN"),
        ("input", b'"' + b"a" * 2_000_000 + b'"', Outcome.INVALID, "at most 1048576"),
        ("input", b'"' + b"a" * 300_000 + b'"', Outcome.INVALID, "input_bytes"),
    ],
)
async def test_how_it_fails(
    environment: ExecutionEnvironment, source: str, stdin: bytes, outcome: Outcome, said: str
) -> None:
    execution = await run(environment, source, stdin)
    assert execution.outcome is outcome
    assert said in execution.detail
    assert execution.result is None


async def test_a_result_that_is_too_large(environment: ExecutionEnvironment) -> None:
    execution = await run(environment, "input + input", b'"aaaa"', result_bytes=9)
    assert execution.outcome is Outcome.OUTPUT
    assert execution.limit is not None
    assert (execution.limit.name, execution.limit.used) == ("result_bytes", 10)


async def test_endless_input_is_cut(environment: ExecutionEnvironment) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65_536

    execution = await environment.run(ExecutionRequest(ExpressionSource("input")), stdin=endless())
    assert execution.outcome is Outcome.INVALID


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_input_that_never_comes(environment: ExecutionEnvironment) -> None:
    execution = await environment.run(
        ExecutionRequest(ExpressionSource("input")),
        SandboxRequest(limits=Limits(wall_seconds=0.05)),
        stdin=never(),
    )
    assert execution.outcome is Outcome.WALL_CLOCK


async def test_it_can_be_cancelled(environment: ExecutionEnvironment) -> None:
    running = await environment.start(ExecutionRequest(ExpressionSource("input")), stdin=never())
    await asyncio.sleep(0)
    await running.cancel()
    assert (await running.wait()).outcome is Outcome.CANCELLED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("environment", {"A": "b"}),
        ("files", {"a": b""}),
        ("artefacts", ("a",)),
        ("working_directory", "a"),
        ("terminal", TerminalSize(1, 1)),
    ],
)
async def test_what_no_expression_has(
    environment: ExecutionEnvironment, field: str, value: object
) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(InvalidRequest) as caught:
        await environment.run(ExecutionRequest(ExpressionSource("1"), **fields))
    assert caught.value.field == field


async def test_it_has_no_network(environment: ExecutionEnvironment) -> None:
    policy = EgressPolicy(rules=(EgressRule.parse("example.com:443"),))
    with pytest.raises(InvalidRequest, match="reaches nothing"):
        await environment.run(
            ExecutionRequest(ExpressionSource("1")), SandboxRequest(egress=policy)
        )


async def test_there_is_no_session(environment: ExecutionEnvironment) -> None:
    with pytest.raises(InvalidRequest, match="kept open"):
        await environment.open_session(SandboxRequest(tier=Tier.EXPRESSION))


async def test_nothing_else_runs_where_only_expressions_do(
    environment: ExecutionEnvironment,
) -> None:
    with pytest.raises(Unavailable):
        await environment.run(ExecutionRequest(Command(("true",))))


async def test_a_closed_environment_evaluates_nothing() -> None:
    async with open_local(tiers=[Tier.EXPRESSION], auth_mode=AuthMode.API_KEY) as environment:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await environment.run(ExecutionRequest(ExpressionSource("1")))


async def test_one_that_was_opened_without_it_says_so() -> None:
    async with open_local(tiers=[Tier.NAMESPACE], warm=False) as environment:
        with pytest.raises(Unavailable, match="opened without it"):
            await environment.run(ExecutionRequest(ExpressionSource("1")))
        async with await environment.open_session() as session:
            with pytest.raises(InvalidRequest, match="tier expression alone"):
                await session.run(ExecutionRequest(ExpressionSource("1")))
