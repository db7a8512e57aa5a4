"""Which tier a tool is called in: the lightest that its trust level allows and its needs fit.

Decided once, when a version is stored, and kept with it together with the reason. What decides is
the policy of the port and the tenant's own; this only says what fits a tool.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from stockade.port import InvalidRequest, Tier
from stockade.port.policy import candidates
from stockade.tools.definition import Language, Tool

_KERNELS: Final = ("namespace", "gvisor", "microvm", "vm")

TIERS: Final[dict[Language, tuple[str, ...]]] = {
    Language.EXPRESSION: ("expression",),
    Language.JAVASCRIPT: ("wasm",),
    Language.PYTHON: _KERNELS,
    Language.JAVA: _KERNELS,
}
"""Where each language is understood, the lightest first."""
NAMED_ONLY: Final[dict[Language, tuple[str, ...]]] = {Language.PYTHON: ("wasm",)}
"""Where it is understood too, with less of it: for who names the tier."""
_REACHES_NOTHING: Final = frozenset({"expression", "wasm"})


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
    known = {tier.value: tier for tier in Tier}
    if tool.tier is not None:
        return (_named(tool, allowed),)
    enough = _enough(tool)
    passed: list[str] = []
    found: list[Choice] = []
    for name in TIERS[tool.language]:
        tier = known.get(name)
        why = None
        if tier is None:
            why = "this version of Stockade has none"
        elif tier not in enough:
            why = f"too weak for {tool.trust} code" if not found else "serves who names it alone"
        elif (lacks := _lacks(tool, name)) is not None:
            why = lacks
        elif tier not in allowed:
            why = "the tenant's policy does not allow it"
        if why is not None or tier is None:
            passed.append(f"{name} ({why})")
            continue
        over = f"; passed over: {', '.join(passed)}" if passed else ""
        found.append(
            Choice(tier, f"{tier} is the lightest tier for {tool.trust} {tool.language}{over}")
        )
    if not found:
        raise InvalidRequest(
            "tier",
            f"no tier can serve a tool in {tool.language} with trust level {tool.trust}: "
            + ", ".join(passed),
        )
    return tuple(found)


def _named(tool: Tool, allowed: Collection[Tier]) -> Choice:
    assert tool.tier is not None
    name = tool.tier.value
    fitting = (*TIERS[tool.language], *NAMED_ONLY.get(tool.language, ()))
    if name not in fitting:
        raise InvalidRequest(
            "tier", f"{name} does not run {tool.language}; {', '.join(fitting)} would"
        )
    candidates(tool.trust, tool.tier)  # refuses one that is too weak
    if (lacks := _lacks(tool, name)) is not None:
        raise InvalidRequest("tier", f"{name}: {lacks}")
    if tool.tier not in allowed:
        raise InvalidRequest("tier", f"{name}: the tenant's policy does not allow it")
    return Choice(tool.tier, f"{name} is the tier that the tool names")


def _enough(tool: Tool) -> Collection[Tier]:
    return candidates(tool.trust)


def _lacks(tool: Tool, name: str) -> str | None:
    if name not in _REACHES_NOTHING:
        return None
    if tool.egress or tool.credentials:
        return "it has no network, and the tool has egress or credentials"
    if tool.needs:
        return f"it has no {tool.needs[0]} for a tool"
    return None
