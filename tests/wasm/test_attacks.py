"""The attack battery in WebAssembly: what applies holds, and nothing gets through."""

import pytest

from stockade.cli.attack.battery import BATTERY
from stockade.cli.attack.judge import NOT_IN_WASM
from stockade.cli.attack.model import Ruling
from stockade.cli.attack.run import all_of, open_arena
from stockade.executor import PoolPolicy, open_local
from stockade.port import Tier

HOLD = {"environment", "host-names", "inode-fill", "memory-one-process", "result-of-a-gigabyte"}
DO_NOT_APPLY = {"artefact-links", "host-files", "mounts", "own-executable", "socket-families"}


def test_what_does_not_apply_is_of_the_battery() -> None:
    assert NOT_IN_WASM.keys() <= {attack.name for attack in BATTERY}


@pytest.mark.alone
async def test_attacks_are_stopped() -> None:
    chosen = [attack for attack in BATTERY if attack.name in HOLD | DO_NOT_APPLY]
    rulings = {}
    async with open_arena(
        lambda: open_local(pool=PoolPolicy.fixed(0), tiers=[Tier.WASM]), Tier.WASM
    ) as arena:
        async for verdict in all_of(arena, chosen):
            assert verdict.ruling not in (Ruling.BROKEN, Ruling.NOT_RUN), verdict
            rulings[verdict.attack.name] = verdict.ruling
    held = {name for name, ruling in rulings.items() if ruling is Ruling.HELD}
    # Where no cgroup counts memory, that attack says nothing.
    assert held | {"memory-one-process"} == HOLD
    assert rulings.keys() == HOLD | DO_NOT_APPLY
