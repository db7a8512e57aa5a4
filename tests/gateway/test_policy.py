from dataclasses import fields

import pytest
from pydantic import ValidationError

from stockade.gateway.policy import Budgets, Ceilings, TenantPolicy
from stockade.port import Limits, Refused, SandboxRequest, Tier, TrustLevel


def test_a_request_that_names_no_tier_gets_only_those_that_are_allowed() -> None:
    policy = TenantPolicy()
    assert policy.judge(SandboxRequest()) == (Tier.MICROVM, Tier.GVISOR)
    only = TenantPolicy(tiers=(Tier.GVISOR,))
    assert only.judge(SandboxRequest(trust=TrustLevel.HOSTILE)) == (Tier.GVISOR,)


def test_a_tier_that_is_not_allowed_is_refused_with_those_that_are() -> None:
    with pytest.raises(Refused, match="tier namespace is not allowed; allowed: gvisor, microvm"):
        TenantPolicy().judge(SandboxRequest(tier=Tier.NAMESPACE))
    weak = TenantPolicy(tiers=(Tier.NAMESPACE,))
    with pytest.raises(Refused, match="strong enough for hostile code"):
        weak.judge(SandboxRequest(trust=TrustLevel.HOSTILE))


def test_an_empty_list_means_none() -> None:
    with pytest.raises(Refused, match="allowed: none"):
        TenantPolicy(tiers=()).judge(SandboxRequest())
    with pytest.raises(Refused, match="allowed: none"):
        TenantPolicy(trust=()).judge(SandboxRequest())


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_has_a_ceiling_that_is_refused_with_both_values(name: str) -> None:
    """Also of a limit that is added later: a ceiling that is missing fails here."""
    default = getattr(Limits(), name)
    ceiling = type(default)(default / 2)
    policy = TenantPolicy(ceilings=Ceilings(**{name: ceiling}))
    with pytest.raises(Refused) as refused:
        policy.judge(SandboxRequest())
    assert refused.value.code == "forbidden"
    said = f"limits.{name} of {default:g} exceeds the tenant's ceiling of {ceiling:g}"
    assert said in str(refused.value)
    with pytest.raises(Refused, match="the service's ceiling"):
        TenantPolicy().judge(SandboxRequest(), service=Ceilings(**{name: ceiling}))


def test_a_lease_has_a_ceiling_too() -> None:
    TenantPolicy().judge(SandboxRequest(), 3600)
    with pytest.raises(Refused, match="a lease of 3601 seconds exceeds the tenant's ceiling"):
        TenantPolicy().judge(SandboxRequest(), 3601)
    for seconds in (float("inf"), 365 * 86_400):
        with pytest.raises(Refused):
            TenantPolicy().judge(SandboxRequest(), seconds)
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="lease_seconds"):
            TenantPolicy().judge(SandboxRequest(), seconds)


@pytest.mark.parametrize(
    "text",
    ['{"tier": []}', '{"ceilings": {"wall": 1}}', '{"tiers": ["docker"]}', '{"images": ["x"]}',
     '{"egress": "all"}', '{"ceilings": {"wall_seconds": NaN}}', "[]", ""],
)  # fmt: skip
def test_a_policy_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TenantPolicy.model_validate_json(text)


def test_a_budget_has_no_value_for_unlimited() -> None:
    for value in (-1, float("inf"), None, 10**18):
        with pytest.raises(ValidationError):
            Budgets.model_validate({"concurrency": value})
