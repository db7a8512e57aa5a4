from functools import partial

import pytest
from tests.contract.fixtures import REAL

from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionRequest, InvalidRequest, PythonSource, Tier

LOADED = ExecutionRequest(
    PythonSource("import sys; print(*(n for n in ('colorsys', 'csv') if n in sys.modules))")
)


@pytest.mark.parametrize("tier", REAL)
async def test_a_program_finds_what_was_asked_for(tier: Tier) -> None:
    """Those modules instead of the ordinary ones; one that is nowhere is left out."""
    names = ("colorsys", "no_such_module")
    opened = partial(open_local, pool=PoolPolicy.fixed(1), tiers={tier}, allow_emulation=True)
    async with opened(preloaded=names) as stockade:
        execution = await stockade.run(LOADED)
    assert (execution.ok, execution.stdout.text()) == (True, "colorsys\n"), execution
    async with opened() as stockade:
        execution = await stockade.run(LOADED)
    assert (execution.ok, execution.stdout.text()) == (True, "csv\n"), execution


@pytest.mark.parametrize(
    "names",
    ["numpy", ("-c",), ("a b",), ("a..b",), ("",), (1,), tuple(f"m{n}" for n in range(257))],
)
async def test_what_is_no_module_is_refused(names: tuple[str, ...]) -> None:
    """Before anything is started."""
    with pytest.raises(InvalidRequest, match="preloaded"):
        async with open_local(preloaded=names):
            pass
