"""What rules allow."""

from ipaddress import ip_address

import pytest

from stockade.egress.addresses import Judge
from stockade.egress.decision import Allowed, Denied, admit, match
from stockade.egress.names import read_authority
from stockade.port.egress import EgressPolicy, EgressRule, Scheme


def verdict(rule: str, target: str, **more: object) -> str:
    """``allowed``, or the reason."""
    policy = EgressPolicy((EgressRule.parse(rule),))
    found = match(policy, read_authority(target), **more)  # type: ignore[arg-type]
    return "allowed" if isinstance(found, Allowed) else found.reason


@pytest.mark.parametrize(
    ("rule", "target", "expected"),
    [
        ("example.com", "example.com:443", "allowed"),
        ("example.com", "example.com.evil:443", "no-rule"),
        ("example.com", "evilexample.com:443", "no-rule"),
        ("example.com", "www.example.com:443", "no-rule"),
        ("example.com", "exаmple.com:443", "no-rule"),  # noqa: RUF001
        ("example.com", "example.com:80", "no-rule"),
        ("*.example.com", "www.example.com:443", "allowed"),
        ("*.example.com", "a.b.example.com:443", "allowed"),
        ("*.example.com", "example.com:443", "no-rule"),
        ("*.example.com", "evilexample.com:443", "no-rule"),
        ("*.example.com", "www.example.com.evil:443", "no-rule"),
        ("93.184.216.34", "93.184.216.34:443", "allowed"),
        ("93.184.216.0/24", "93.184.216.34:443", "allowed"),
        ("93.184.216.0/24", "93.184.217.1:443", "no-rule"),
        ("93.184.216.0/24", "example.com:443", "no-rule"),
        ("93.184.216.34", "[::ffff:93.184.216.34]:443", "no-rule"),
        ("0.0.0.0/0", "example.com:443", "no-rule"),
        ("0.0.0.0/0", "[2606:4700::1]:443", "no-rule"),
    ],
)
def test_destinations(rule: str, target: str, expected: str) -> None:
    assert verdict(rule, target) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1", "allowed"),
        ("/v1/x", "allowed"),
        ("/v1?x=/../", "allowed"),
        ("/v1beta", "path"),
        ("/V1", "path"),
        ("/", "path"),
        ("/v1/../admin", "ambiguous-path"),
        ("/v1/..", "ambiguous-path"),
        ("/v1/./x", "ambiguous-path"),
        ("/v1/%2e%2e/admin", "ambiguous-path"),
        ("/v1/%2E./admin", "ambiguous-path"),
        ("/v1%2fx", "ambiguous-path"),
        ("/v1/%5c..", "ambiguous-path"),
        ("/v1/\\..\\admin", "ambiguous-path"),
        ("/v1//admin", "ambiguous-path"),
        ("/v1/;/admin", "ambiguous-path"),
        ("/v1/%00", "ambiguous-path"),
        ("/v1/%252e%252e/", "ambiguous-path"),
        ("/v1/%zz", "ambiguous-path"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    found = verdict(
        "GET https://e.com/v1", "e.com:443", scheme=Scheme.HTTPS, method="GET", path=path
    )
    assert found == expected


def test_methods() -> None:
    for method, expected in (("GET", "allowed"), ("DELETE", "method"), ("get", "method")):
        assert verdict("GET,HEAD e.com", "e.com:443", method=method, path="/") == expected


def test_any_rule_may_allow() -> None:
    rules = ("GET http://e.com/a", "POST http://e.com/b")
    policy = EgressPolicy(tuple(EgressRule.parse(each) for each in rules))
    where = read_authority("e.com:80")
    for method, path, allowed in (("GET", "/a", True), ("POST", "/b", True), ("POST", "/a", False)):
        found = match(policy, where, scheme=Scheme.HTTP, method=method, path=path)
        assert isinstance(found, Allowed) is allowed


def admitted(rule: str, target: str, *answers: str) -> str:
    found = admit(
        (EgressRule.parse(rule),), read_authority(target), [ip_address(a) for a in answers], Judge()
    )
    return "allowed" if isinstance(found, Allowed) else found.reason


@pytest.mark.parametrize(
    ("rule", "target", "answers", "expected"),
    [
        ("e.com", "e.com:443", ["8.8.8.8", "2606:4700::1"], "allowed"),
        ("e.com", "e.com:443", ["10.0.0.1"], "private-address"),
        ("e.com", "e.com:443", ["8.8.8.8", "10.0.0.1"], "mixed-addresses"),
        ("e.com", "e.com:443", ["2002:a9fe:a9fe::1"], "metadata-address"),
        ("e.com", "e.com:443", [], "no-address"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["10.0.0.1"], "allowed"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["8.8.8.8"], "allowed"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["8.8.8.8", "10.0.0.1"], "mixed-addresses"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["10.0.0.1", "127.0.0.1"], "private-address"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["::ffff:10.0.0.1"], "private-address"),
        ("e.com in 10.0.0.0/8", "e.com:443", ["169.254.169.254"], "metadata-address"),
        ("10.0.0.0/8", "10.0.0.1:443", ["10.0.0.1"], "allowed"),
        ("metadata.google.internal:80", "metadata.google.internal:80", ["8.8.8.8"],
         "metadata-name"),
        ("*.google.internal:80 in 169.254.169.254", "metadata.google.internal:80",
         ["169.254.169.254"], "metadata-address"),
        ("metadata.google.internal:80 in 169.254.169.254", "metadata.google.internal:80",
         ["169.254.169.254"], "allowed"),
    ],
)  # fmt: skip
def test_addresses(rule: str, target: str, answers: list[str], expected: str) -> None:
    assert admitted(rule, target, *answers) == expected


@pytest.mark.parametrize(
    ("target", "scheme", "missing"),
    [
        ("e.com:443", None, "e.com:443"),
        ("e.com:80", Scheme.HTTP, "e.com:80"),
        ("e.com:8080", Scheme.HTTP, "e.com:8080"),
        ("e.com:22", Scheme.TCP, "tcp://e.com:22"),
        ("e.com:80", Scheme.HTTPS, "https://e.com:80"),
        ("[2606:4700::1]:443", None, "[2606:4700::1]:443"),
    ],
)
def test_a_denial_names_a_rule_that_would_allow_it(
    target: str, scheme: Scheme | None, missing: str
) -> None:
    found = match(EgressPolicy(), read_authority(target), scheme=scheme)
    assert isinstance(found, Denied)
    assert found.missing == missing
    assert f"--allow {missing}" in found.detail.replace("'", "")
    policy = EgressPolicy((EgressRule.parse(missing),))
    assert isinstance(match(policy, read_authority(target), scheme=scheme), Allowed)


def test_a_denied_private_address_names_the_rule_too() -> None:
    found = admit(
        (EgressRule.parse("wiki.internal"),),
        read_authority("wiki.internal:443"),
        [ip_address("10.1.2.3")],
        Judge(),
    )
    assert isinstance(found, Denied)
    assert found.missing == "wiki.internal:443 in 10.1.2.3/32"
