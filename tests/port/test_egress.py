"""Egress rules and policies: what they are, how they are written, and that nobody changes one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.port import NO_EGRESS, PROFILES, EgressPolicy, EgressRule, InvalidRequest, Scheme


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("api.example.com", "api.example.com:443"),
        ("API.Example.com", "api.example.com:443"),
        ("*.example.com:8443", "*.example.com:8443"),
        ("http://host", "http://host:80"),
        ("tcp://host:22", "tcp://host:22"),
        ("GET,HEAD https://api.example.com/v1/", "GET,HEAD https://api.example.com:443/v1/"),
        ("10.1.2.3:8080", "10.1.2.3:8080"),
        ("10.1.0.0/16", "10.1.0.0/16:443"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
        ("wiki.internal:443 in 10.1.0.0/16,10.2.0.1", "wiki.internal:443 in 10.1.0.0/16,10.2.0.1"),
        ("host/12", "host:443/12"),
    ],
)
def test_a_rule_is_read_as_a_person_writes_it(text: str, written: str) -> None:
    rule = EgressRule.parse(text)
    assert str(rule) == written
    assert EgressRule.parse(written) == rule


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "*", "*.com", "*.*.example.com", "127.1", "0x7f.0.0.1", "2130706433", "a..b", "-a.b",
        "ftp://x", "example.com.", "x:0", "x:65536", "tcp://x", "tcp://x:1/path", "GET tcp://x:1",
        "http://h/../a", "http://h//a", "http://h/%2e", "user@host", "ex ample", "a\0b", "exämple.com",
        "[::1]:443 in 10.0.0.0/8", "h in nowhere", "http://10.1.2.3/12", "get https://h", "[fe80::1%eth0]",
        "a.example:\u0663", "\u0661.2.3.4",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        EgressRule.parse(text)


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        rule = EgressRule.parse(text)
    except InvalidRequest:
        return
    assert EgressRule.parse(str(rule)) == rule


def test_true_is_no_number_of_seconds() -> None:
    with pytest.raises(InvalidRequest, match="seconds is bool"):
        EgressPolicy(seconds=True)


def test_a_policy_is_a_value_that_never_changes() -> None:
    policy = EgressPolicy(rules=(EgressRule("a.example"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.rules = ()  # type: ignore[misc]
    wider = policy.with_rules(EgressRule("b.example"))
    assert (len(policy.rules), len(wider.rules)) == (1, 2)


def test_by_default_nothing_listens() -> None:
    assert not NO_EGRESS.listens
    assert EgressPolicy(watched=True).listens
    assert EgressPolicy(credentials=("key",)).needs_broker
    assert EgressPolicy(rules=(EgressRule("h", methods=("GET",)),)).needs_broker
    assert not EgressPolicy(rules=(EgressRule("h", 80, Scheme.HTTP, ("GET",)),)).needs_broker


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_only_reads(name: str) -> None:
    assert all(set(rule.methods) <= {"GET", "HEAD"} and rule.methods for rule in PROFILES[name])
