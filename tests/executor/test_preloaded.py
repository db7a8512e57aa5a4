import pytest

from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionRequest, InvalidRequest, PythonSource, Tier

LOADED = ExecutionRequest(
    PythonSource("import sys; print(*(n for n in ('colorsys', 'csv') if n in sys.modules))")
)
TIERS = [
    pytest.param(tier, marks=pytest.mark.tier(tier.value)) for tier in (Tier.NAMESPACE, Tier.GVISOR)
]


@pytest.mark.parametrize("tier", TIERS)
async def test_a_program_finds_what_was_asked_for(tier: Tier) -> None:
    """Those modules instead of the ordinary ones; one that is nowhere is left out."""
    names = ("colorsys", "no_such_module")
    async with open_local(pool=PoolPolicy.fixed(1), tiers={tier}, preloaded=names) as stockade:
        execution = await stockade.run(LOADED)
    assert (execution.ok, execution.stdout.text()) == (True, "colorsys\n"), execution
    async with open_local(pool=PoolPolicy.fixed(1), tiers={tier}) as stockade:
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
