"""Which tiers may run what. Here alone; everything else asks."""

from collections.abc import Mapping
from functools import cache

from stockade.port.errors import InvalidRequest
from stockade.port.tier import Tier
from stockade.port.trust import TrustLevel

STRENGTH: tuple[Tier, ...] = (Tier.NAMESPACE, Tier.GVISOR, Tier.MICROVM)
"""Every tier, the weakest first."""

OWN_KERNEL: frozenset[Tier] = frozenset({Tier.GVISOR, Tier.MICROVM})
"""The tiers whose guests have a kernel of their own, and do not reach the host's."""

WEAKEST: Mapping[TrustLevel, Tier] = {
    TrustLevel.REVIEWED: Tier.NAMESPACE,
    TrustLevel.UNTESTED: Tier.NAMESPACE,
    TrustLevel.HOSTILE: Tier.GVISOR,
}
"""The weakest tier that may serve each level."""


@cache
def candidates(trust: TrustLevel, tier: Tier | None = None) -> tuple[Tier, ...]:
    """The tiers that may serve such a request, strongest first; a named tier alone.

    Raises :class:`InvalidRequest` where the tier that was named is too weak for the level.
    """
    weakest = WEAKEST[trust]
    enough = STRENGTH[STRENGTH.index(weakest) :]
    if tier is None:
        return enough[::-1]
    if tier not in enough:
        raise InvalidRequest(
            "tier",
            f"{tier} is too weak for trust level {trust}, whose weakest tier is {weakest}; "
            "name that one, or leave the tier out",
        )
    return (tier,)


def refusal(trust: TrustLevel, tier: Tier | None, missing: Mapping[Tier, str]) -> str:
    """The sentence for a request that none of its candidates can serve.

    ``missing`` has why each of them is missing, and how to get it.
    """
    if tier is not None:
        return f"tier {tier} cannot be started here: {missing[tier]}"
    why = spell(missing)
    return f"no tier that may run {trust} code can be started here: {why}"


def spell(missing: Mapping[Tier, str]) -> str:
    """Every tier that is missing, with its reason."""
    return ", ".join(f"{tier} ({reason})" for tier, reason in missing.items())
