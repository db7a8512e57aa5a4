"""Which tier a tool is called in: the lightest that its trust level allows and its needs fit.

Decided once, when a version is stored, and kept with it together with the reason. What decides is
the policy of the port and the tenant's own; this only says what fits a tool.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from stockade.port import InvalidRequest, Tier, TrustLevel
from stockade.port.policy import DEDICATED, OF_LANGUAGES, STRENGTH, WEAKEST, candidates
from stockade.tools.definition import Language, Tool

TIERS: Final[dict[Language, tuple[Tier, ...]]] = {
    Language.EXPRESSION: (Tier.EXPRESSION,),
    Language.JAVASCRIPT: (Tier.WASM,),
    Language.PYTHON: STRENGTH,
    Language.JAVA: STRENGTH,
}
"""Where each language is understood, the lightest first."""
NAMED_ONLY: Final[dict[Language, tuple[Tier, ...]]] = {Language.PYTHON: (Tier.WASM,)}
"""Where it is understood too, with less of it: for who names the tier."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tier, and why."""

    tier: Tier
    reason: str


def choices(tool: Tool, allowed: Collection[Tier]) -> tuple[Choice, ...]:
    """The tiers that a tool can be called in, the lightest first; one that is named alone.

    ``allowed``: by the tenant's policy. Each is stronger than the one before: who finds that one
    cannot be started takes the next, and never goes back. Raises :class:`InvalidRequest`.
    """
    if tool.tier is not None:
        return (_named(tool, allowed),)
    enough = _enough(tool.trust)
    passed: list[str] = []
    found: list[Choice] = []
    for tier in TIERS[tool.language]:
        if tier not in enough:
            why = "serves who names it" if found else f"too weak for {tool.trust} code"
        elif (lacks := _lacks(tool, tier)) is not None:
            why = lacks
        elif tier not in allowed:
            why = "the tenant's policy does not allow it"
        else:
            over = f"; passed over: {', '.join(passed)}" if passed else ""
            told = f"{tier} is the lightest tier for {tool.trust} {tool.language}{over}"
            found.append(Choice(tier, told))
            continue
        passed.append(f"{tier} ({why})")
    if not found:
        raise InvalidRequest(
            "tier",
            f"no tier can serve a tool in {tool.language} with trust level {tool.trust}: "
            + ", ".join(passed),
        )
    return tuple(found)


def _named(tool: Tool, allowed: Collection[Tier]) -> Choice:
    tier = tool.tier
    assert tier is not None
    fitting = (*TIERS[tool.language], *NAMED_ONLY.get(tool.language, ()))
    if tier not in fitting:
        raise InvalidRequest(
            "tier", f"{tier} does not run {tool.language}; {', '.join(fitting)} would"
        )
    candidates(tool.trust, tier)  # refuses one that is too weak
    if (lacks := _lacks(tool, tier)) is not None:
        raise InvalidRequest("tier", f"{tier}: {lacks}")
    if tier not in allowed:
        raise InvalidRequest("tier", f"{tier}: the tenant's policy does not allow it")
    return Choice(tier, f"{tier} is the tier that the tool names")


def _enough(trust: TrustLevel) -> Collection[Tier]:
    machines = candidates(trust)
    return machines if WEAKEST[trust] in DEDICATED else (*machines, *OF_LANGUAGES)


def _lacks(tool: Tool, tier: Tier) -> str | None:
    if tier not in OF_LANGUAGES:
        return None
    if tool.egress or tool.credentials:
        return "it has no network, and the tool has egress or credentials"
    if tool.needs:
        return f"it has none of what the tool needs: {', '.join(tool.needs)}"
    return None
