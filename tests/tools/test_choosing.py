"""The lightest tier that will do, and why; never one that is too weak, or not allowed."""

from typing import Any

import pytest

from stockade.port import EgressRule, InvalidRequest, Tier, TrustLevel
from stockade.tools.choosing import choices
from stockade.tools.definition import Language

from .kit import tool

ALL = tuple(Tier)


def tiers(allowed: Any = ALL, **changes: Any) -> list[str]:
    return [choice.tier.value for choice in choices(tool(**changes), allowed)]


def test_python_takes_the_lightest_that_its_trust_level_allows() -> None:
    assert tiers() == ["namespace", "gvisor", "microvm"]
    assert tiers(trust=TrustLevel.HOSTILE) == ["gvisor", "microvm"]
    assert tiers(trust=TrustLevel.REGULATED) == ["vm"]


def test_what_the_policy_does_not_allow_is_passed_over_and_said() -> None:
    (choice, *_) = choices(tool(), (Tier.GVISOR, Tier.MICROVM))
    assert choice.tier is Tier.GVISOR
    assert "namespace (the tenant's policy does not allow it)" in choice.reason
    assert "lightest tier for untested python" in choice.reason


def test_nothing_left_is_a_refusal_that_names_each() -> None:
    with pytest.raises(InvalidRequest, match=r"namespace .*too weak.*gvisor .*policy"):
        choices(tool(trust=TrustLevel.HOSTILE), (Tier.NAMESPACE,))


@pytest.mark.parametrize(
    "changes",
    [
        {"tier": Tier.NAMESPACE, "trust": TrustLevel.HOSTILE},
        {"tier": Tier.GVISOR, "language": Language.EXPRESSION, "source": "1"},
        {"tier": Tier.GVISOR, "language": Language.JAVASCRIPT},
    ],
)
def test_a_tier_that_is_named_and_will_not_do_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="tier"):
        choices(tool(**changes), ALL)


def test_a_named_tier_is_the_only_one() -> None:
    assert tiers(tier=Tier.MICROVM) == ["microvm"]
    with pytest.raises(InvalidRequest, match="policy"):
        tiers((Tier.GVISOR,), tier=Tier.MICROVM)


def test_an_expression_with_egress_fits_nowhere() -> None:
    rule = (EgressRule.parse("https://api.example.com"),)
    with pytest.raises(InvalidRequest, match="tier"):
        choices(tool(language=Language.EXPRESSION, source="1", egress=rule), ALL)
