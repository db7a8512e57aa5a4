"""What a request may be as large as, it can be run with."""

from collections.abc import Callable

import pytest
from tests.contract.kit import command, explain, small, source, stdout_of
from tests.contract.traits import Traits

from stockade.port import ExecutionEnvironment, InvalidRequest, Outcome, Tier
from stockade.port.program import MAX_ARGUMENT_BYTES

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]

LARGEST = "x" * (MAX_ARGUMENT_BYTES - 1)
COUNT = "import os, sys; print(sum(map(len, sys.argv[1:])), len(os.environ['LONG']))"


async def test_many_arguments_of_a_command(real: ExecutionEnvironment) -> None:
    numbers = [str(number) for number in range(20_000)]
    execution = await real.run(command("sh", "-c", "echo $#", "sh", *numbers))
    assert stdout_of(execution) == "20000\n"


@pytest.mark.parametrize("fresh", [False, True])
async def test_one_argument_and_one_variable_of_the_largest_size(
    real: ExecutionEnvironment, fresh: bool
) -> None:
    value = LARGEST[len("LONG=") :]
    request = source(COUNT, LARGEST, fresh=fresh, environment={"LONG": value})
    assert stdout_of(await real.run(request)) == f"{len(LARGEST)} {len(value)}\n"


async def test_all_that_a_request_may_have_at_once(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    # A letter that takes six bytes on the wire, so that several windows of it are needed.
    text = "\udcff" * (MAX_ARGUMENT_BYTES - 1)
    environment = {f"V{number}": "\udcff" * 100_000 for number in range(10)} | {"LONG": ""}
    request = source(COUNT + "#" * 500_000, *[text] * 8, environment=environment)
    limits = small(wall_seconds=traits.seconds(30))
    execution = await real.run(request, limits, stdin=b"x" * 500_000)
    assert stdout_of(execution) == f"{8 * len(text)} 0\n"


async def test_more_than_the_kernel_takes_is_said(real: ExecutionEnvironment) -> None:
    # Each is within its bound; both, with a pointer for each of so many, are not.
    arguments = ["x"] * 700_000
    environment = {f"V{number}": "x" * 100_000 for number in range(10)}
    execution = await real.run(command("true", *arguments, environment=environment))
    if execution.tier is Tier.GVISOR and execution.ok:
        return  # its kernel has no such bound, but that of the stack
    assert execution.outcome is Outcome.INVALID, explain(execution)
    assert "too large to start a program with: 'true'" in execution.detail


@pytest.mark.parametrize(
    "make",
    [
        lambda: command("echo", *["x" * 100_000] * 11),
        lambda: source("1", LARGEST + "x"),
        lambda: source("1", environment={"A": LARGEST}),
        # Characters are not bytes.
        lambda: source("1", environment={"A": "é" * 70_000}),
        lambda: source("1", environment={f"V{number}": "x" * 100_000 for number in range(11)}),
    ],
)
async def test_what_is_larger_is_refused_when_the_request_is_made(
    make: Callable[[], object],
) -> None:
    with pytest.raises(InvalidRequest, match="exceed"):
        make()
