"""What a trust level and a named tier mean, whatever implements the port."""

import pytest

from stockade.port import SandboxRequest, Tier, TrustLevel, Unavailable
from stockade.port.policy import OWN_KERNEL, STRENGTH, WEAKEST

from .fixtures import Port
from .kit import command

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def tier_of(port: Port, wanted: SandboxRequest) -> Tier | Unavailable:
    """What it was served by, or the refusal."""
    try:
        execution = await port().run(command("true"), wanted)
    except Unavailable as error:
        return error
    assert execution.tier is not None
    return execution.tier


@pytest.mark.parametrize("level", TrustLevel)
async def test_a_level_is_served_by_a_tier_that_is_strong_enough_or_refused(
    port: Port, level: TrustLevel
) -> None:
    weakest = WEAKEST[level]
    served = await tier_of(port, SandboxRequest(trust=level))
    if isinstance(served, Unavailable):
        assert f"no tier that may run {level} code" in str(served)
        assert weakest in served.missing
    else:
        assert STRENGTH.index(served) >= STRENGTH.index(weakest)
        assert level is not TrustLevel.HOSTILE or served in OWN_KERNEL


@pytest.mark.parametrize("tier", STRENGTH)
async def test_a_named_tier_is_that_one_or_a_refusal(port: Port, tier: Tier) -> None:
    served = await tier_of(port, SandboxRequest(tier=tier))
    if isinstance(served, Unavailable):
        assert set(served.missing) == {tier}
        assert f"tier {tier} cannot be started here: " in str(served)
    else:
        assert served is tier


@pytest.mark.parametrize("tier", STRENGTH)
async def test_a_session_is_refused_as_a_run_is(port: Port, tier: Tier) -> None:
    environment, wanted = port(), SandboxRequest(tier=tier)
    if isinstance(await tier_of(port, wanted), Tier):
        await (await environment.open_session(wanted)).close()
        return
    with pytest.raises(Unavailable):
        await environment.open_session(wanted)
