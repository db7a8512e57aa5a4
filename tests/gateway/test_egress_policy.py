"""What a tenant may reach: a rule that is asked for has to be covered, and never in doubt."""

import pytest
from pydantic import ValidationError

from stockade.gateway.policy import TenantPolicy, covers
from stockade.port import EgressPolicy, EgressRule, Refused, SandboxRequest, Tier

COVERED = [
    ("api.example.com:443", "api.example.com:443"),
    ("api.example.com:443", "https://api.example.com"),
    ("api.example.com:443", "GET https://api.example.com/v1/"),
    ("*.example.com", "a.example.com"),
    ("*.example.com", "*.example.com"),
    ("*.example.com", "*.a.example.com"),
    ("GET,HEAD https://a.example", "GET https://a.example"),
    ("https://a.example/v1/", "https://a.example/v1/x"),
    ("https://a.example/v1", "https://a.example/v1"),
    ("https://a.example/v1", "https://a.example/v1/x"),
    ("10.0.0.0/8:443", "10.1.0.0/16:443"),
    ("10.0.0.0/8:443", "10.1.2.3:443"),
    ("a.example in 10.0.0.0/8", "a.example in 10.1.0.0/16"),
    ("a.example in 10.0.0.0/8", "a.example"),
]
NOT_COVERED = [
    ("api.example.com:443", "api.example.com:444"),
    ("api.example.com:443", "b.example.com:443"),
    ("api.example.com:443", "*.example.com"),
    ("*.example.com", "example.com"),
    ("*.example.com", "evilexample.com"),
    ("*.a.example.com", "*.example.com"),
    ("https://a.example", "a.example"),
    ("a.example", "tcp://a.example:443"),
    ("https://a.example", "tcp://a.example:443"),
    ("GET https://a.example", "https://a.example"),
    ("GET https://a.example", "GET,POST https://a.example"),
    ("https://a.example/v1", "https://a.example"),
    ("https://a.example/v1", "https://a.example/v10"),
    ("https://a.example/v1/x", "https://a.example/v1"),
    ("10.1.0.0/16:443", "10.0.0.0/8:443"),
    ("10.0.0.0/8:443", "a.example:443"),
    ("*.example.com", "10.0.0.1:443"),
    ("a.example", "a.example in 10.0.0.0/8"),
    ("a.example in 10.1.0.0/16", "a.example in 10.0.0.0/8"),
    ("[2001:db8::]/32:443", "10.0.0.0/8:443"),
]


@pytest.mark.parametrize(("grant", "asked"), COVERED)
def test_a_rule_that_asks_for_no_more_is_covered(grant: str, asked: str) -> None:
    assert covers(EgressRule.parse(grant), EgressRule.parse(asked))


@pytest.mark.parametrize(("grant", "asked"), NOT_COVERED)
def test_a_rule_that_asks_for_anything_more_is_not(grant: str, asked: str) -> None:
    assert not covers(EgressRule.parse(grant), EgressRule.parse(asked))


def judge(granted: tuple[str, ...] | str, *asked: str, **more: object) -> None:
    policy = TenantPolicy(tiers=tuple(Tier), egress=granted)  # type: ignore[arg-type]
    rules = tuple(map(EgressRule.parse, asked))
    policy.judge(SandboxRequest(egress=EgressPolicy(rules, **more)))  # type: ignore[arg-type]


def test_public_covers_names_and_no_address() -> None:
    judge(("public",), "a.example", "*.b.example:8443", "tcp://c.example:22")
    for asked in ("10.0.0.1:443", "8.8.8.8:443", "0.0.0.0/0:443", "a.example in 10.0.0.0/8"):
        with pytest.raises(Refused, match="is not allowed"):
            judge(("public",), asked)


def test_every_rule_has_to_be_covered() -> None:
    judge(("a.example", "b.example"), "a.example", "b.example")
    with pytest.raises(Refused, match=r"egress to c\.example:443 is not allowed"):
        judge(("a.example", "b.example"), "a.example", "c.example")


@pytest.mark.parametrize("granted", ["none", ()])
def test_without_a_grant_nothing_is_to_be_had(granted: tuple[str, ...] | str) -> None:
    judge(granted)
    for more in ({"watched": True}, {"credentials": ("key",)}):
        with pytest.raises(Refused, match="no egress is allowed"):
            judge(granted, **more)
    with pytest.raises(Refused, match="no egress is allowed"):
        judge(granted, "a.example")


@pytest.mark.parametrize("egress", ["all", "public", ("http:/x",), ("*",), (7,), 7])
def test_what_is_no_rule_is_no_policy(egress: object) -> None:
    with pytest.raises(ValidationError):
        TenantPolicy.model_validate({"egress": egress})
