"""Which tiers may run what. Here alone; everything else asks."""

from collections.abc import Collection, Mapping
from functools import cache

from stockade.port.errors import InvalidRequest
from stockade.port.tier import Tier
from stockade.port.trust import TrustLevel

STRENGTH: tuple[Tier, ...] = (Tier.NAMESPACE, Tier.GVISOR, Tier.MICROVM, Tier.VM)
"""Every tier that runs any program of an image, the weakest first."""

OF_LANGUAGES: frozenset[Tier] = frozenset({Tier.EXPRESSION, Tier.WASM})
"""The tiers that run programs of some languages only, which reach no kernel. They serve who names
them, by the request or by a program that only they run. None of them is dedicated or attested."""

OWN_KERNEL: frozenset[Tier] = frozenset({Tier.GVISOR, Tier.MICROVM, Tier.VM})
"""The tiers whose guests have a kernel of their own, and do not reach the host's."""

DEDICATED: frozenset[Tier] = frozenset({Tier.VM})
"""The tiers that boot a machine for each call: seconds, which nobody is made to wait for who did
not ask for it. They serve who names them, by the request or by having no other tier, and the levels
that no other tier may serve."""

WEAKEST: Mapping[TrustLevel, Tier] = {
    TrustLevel.REVIEWED: Tier.NAMESPACE,
    TrustLevel.UNTESTED: Tier.NAMESPACE,
    TrustLevel.HOSTILE: Tier.GVISOR,
    TrustLevel.REGULATED: Tier.VM,
}
"""The weakest tier that may serve each level."""


@cache
def candidates(trust: TrustLevel, tier: Tier | None = None) -> tuple[Tier, ...]:
    """The tiers that may serve such a request, strongest first; a named tier alone.

    Those that are :data:`DEDICATED` are strong enough for every level, and serve those alone
    that nothing else may.

    Raises :class:`InvalidRequest` where the tier that was named is too weak for the level.
    """
    weakest = WEAKEST[trust]
    if tier in OF_LANGUAGES:
        if weakest in DEDICATED:
            raise InvalidRequest(
                "tier", f"{tier} is no machine of its own, and trust level {trust} needs {weakest}"
            )
        return (tier,)
    enough = STRENGTH[STRENGTH.index(weakest) :]
    if tier is None:
        return tuple(
            each for each in reversed(enough) if each not in DEDICATED or weakest in DEDICATED
        )
    if tier not in enough:
        raise InvalidRequest(
            "tier",
            f"{tier} is too weak for trust level {trust}, whose weakest tier is {weakest}; "
            "name that one, or leave the tier out",
        )
    return (tier,)


def named_by_offer(offered: Collection[Tier]) -> Tier | None:
    """The tier that every request is taken to name, since there is no other; None: none is."""
    named = [tier for tier in offered if tier in DEDICATED or tier in OF_LANGUAGES]
    return named[0] if len(offered) == len(named) == 1 else None


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
