"""Which tiers may run what: the data, and what a request is told."""

import pytest

from stockade.port import InvalidRequest, SandboxRequest, Tier, TrustLevel
from stockade.port.policy import (
    DEDICATED,
    OF_LANGUAGES,
    OWN_KERNEL,
    STRENGTH,
    WEAKEST,
    candidates,
    named_by_offer,
    refusal,
)

PAIRS = [(level, tier) for level in TrustLevel for tier in Tier]


def test_every_name_has_its_place() -> None:
    """A tier without a strength, or a level without a tier, would be nobody's to refuse."""
    assert sorted([*STRENGTH, *OF_LANGUAGES]) == sorted(Tier)
    assert set(WEAKEST) == set(TrustLevel)
    assert set(Tier) >= OWN_KERNEL


def test_less_trust_never_takes_a_weaker_tier() -> None:
    order = [
        TrustLevel.REVIEWED,
        TrustLevel.UNTESTED,
        TrustLevel.HOSTILE,
        TrustLevel.REGULATED,
    ]
    assert set(order) == set(TrustLevel)
    strengths = [STRENGTH.index(WEAKEST[level]) for level in order]
    assert strengths == sorted(strengths)
    assert WEAKEST[TrustLevel.HOSTILE] in OWN_KERNEL


@pytest.mark.parametrize("level", TrustLevel)
def test_the_candidates_are_all_that_are_strong_enough_strongest_first(level: TrustLevel) -> None:
    enough = STRENGTH[STRENGTH.index(WEAKEST[level]) :]
    if WEAKEST[level] not in DEDICATED:
        enough = tuple(tier for tier in enough if tier not in DEDICATED)
    assert candidates(level) == enough[::-1] != ()


def test_nobody_waits_for_a_machines_boot_who_did_not_ask_for_it() -> None:
    """The strongest tier is not the one that is taken, but for the level that needs it."""
    assert STRENGTH[-1] is Tier.VM
    assert {level: candidates(level)[0] for level in TrustLevel} == {
        TrustLevel.REVIEWED: Tier.MICROVM,
        TrustLevel.UNTESTED: Tier.MICROVM,
        TrustLevel.HOSTILE: Tier.MICROVM,
        TrustLevel.REGULATED: Tier.VM,
    }


def test_having_no_other_tier_names_it() -> None:
    assert named_by_offer({Tier.VM}) is Tier.VM
    for offered in (set(), {Tier.MICROVM}, {Tier.MICROVM, Tier.VM}, set(Tier)):
        assert named_by_offer(offered) is None


@pytest.mark.parametrize(("level", "tier"), PAIRS)
def test_a_named_tier_is_the_only_candidate_or_is_refused(level: TrustLevel, tier: Tier) -> None:
    """It is refused when the request is made."""
    if tier in OF_LANGUAGES:
        enough = WEAKEST[level] not in DEDICATED
    else:
        enough = STRENGTH.index(tier) >= STRENGTH.index(WEAKEST[level])
    if enough:
        assert candidates(level, tier) == (tier,)
        assert SandboxRequest(trust=level, tier=tier).tier is tier
        return
    with pytest.raises(InvalidRequest) as refused:
        SandboxRequest(trust=level, tier=tier)
    assert refused.value.field == "tier"
    for named in (tier, level, WEAKEST[level]):
        assert named.value in str(refused.value)


def test_by_default_nothing_is_trusted_and_a_named_tier_is_taken() -> None:
    """What a developer expects who names the tier and says no more."""
    assert SandboxRequest().trust is TrustLevel.UNTESTED
    assert SandboxRequest(tier=Tier.NAMESPACE).trust is TrustLevel.UNTESTED


def test_a_refusal_has_each_reason() -> None:
    missing = {Tier.GVISOR: "no runsc; get one", Tier.NAMESPACE: "no user namespaces"}
    assert refusal(TrustLevel.UNTESTED, None, missing) == (
        "no tier that may run untested code can be started here: "
        "gvisor (no runsc; get one), namespace (no user namespaces)"
    )
    named = refusal(TrustLevel.HOSTILE, Tier.GVISOR, {Tier.GVISOR: "no runsc; get one"})
    assert named == "tier gvisor cannot be started here: no runsc; get one"
