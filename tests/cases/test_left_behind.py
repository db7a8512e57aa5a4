"""Cases about what is left behind; the numbers are those of CASES.md.

Nothing is parked: below this process live what the tier always has, and leftovers.
"""

import asyncio

import pytest
from tests.contract.kit import (
    command,
    descendants,
    living,
    marker,
    shell,
    soon,
    source,
    stdout_of,
    until,
    until_living,
)
from tests.contract.traits import Traits

from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionEnvironment, ExecutionRequest, Outcome, Tier

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


STAY = {
    "background": "sleep {} & echo hi",
    "nohup": "nohup sleep {} >/dev/null 2>&1 & echo hi",
    "setsid": "setsid sleep {} & echo hi",
    "double_fork": "(setsid sh -c 'sleep {} &' &) ; echo hi",
    "ignoring": "(trap '' TERM HUP INT; exec setsid sleep {}) & echo hi",
    "stopped": "(kill -STOP $(sh -c 'echo $PPID'); exec sleep {}) & echo hi",
}


@pytest.mark.parametrize("way", STAY)
async def test_background_jobs_do_not_survive(
    bare: ExecutionEnvironment, traits: Traits, way: str
) -> None:
    """CASES 13, 48, 100, 101: background jobs survive; or the foreground waits for them."""
    mark = marker()
    execution = await soon(bare.run(shell(STAY[way].format(mark))))
    assert stdout_of(execution) == "hi\n"
    assert living(mark) == []
    assert execution.usage.wall_seconds < 3
    await until(lambda: len(descendants()) == traits.always_alive, 3)


@pytest.mark.tier("namespace")
async def test_a_hundred_sessions_with_sleeping_children() -> None:
    """CASES 85: zombies; then the reaper killed idle commands."""
    before = set(descendants())
    async with open_local(pool=PoolPolicy.fixed(0), tiers={Tier.NAMESPACE}) as environment:
        for _ in range(5):
            mark = marker()
            sessions = [await environment.open_session() for _ in range(20)]
            running = [await one.start(shell(f"sleep {mark} & wait")) for one in sessions]
            await until_living(mark, 40)
            await asyncio.sleep(0.05)
            assert len(living(mark)) == 40  # sh carries the mark as well
            for one in sessions:
                await one.close()
            assert living(mark) == []
            for one_run in running:
                assert (await one_run.wait()).outcome is Outcome.CANCELLED
        await until(lambda: len(set(descendants()) - before) == 2, 3)


@pytest.mark.parametrize(
    "request_",
    [
        command("no-such-program"),
        command("true", working_directory="nope"),
        source("", files={"a": b"", "a/b": b""}),
        command("/etc/passwd"),
    ],
    ids=["program", "folder", "file", "no program"],
)
async def test_a_failed_start_leaves_no_sandbox(
    bare: ExecutionEnvironment, traits: Traits, request_: ExecutionRequest
) -> None:
    """CASES 68: a failed exec leaves its temporary sandbox running."""
    execution = await bare.run(request_)
    assert execution.outcome is Outcome.INVALID
    await until(lambda: len(descendants()) == traits.always_alive, 3)
