"""``stockade egress explain``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Stockade = Callable[..., Any]


def test_what_is_allowed(stockade: Stockade) -> None:
    ended = stockade(
        "egress", "explain", "https://api.example.com/v1", "--allow", "api.example.com",
        "--no-resolve",
    )  # fmt: skip
    assert ended.code == 0
    assert ended.out.decode().splitlines() == [
        "https://api.example.com/v1 is api.example.com:443 by https",
        "the rule api.example.com:443 allows it",
        "its addresses were not looked up",
        "allowed: by the rule api.example.com:443",
    ]


@pytest.mark.parametrize(
    ("url", "rule", "reason"),
    [
        ("https://other.example", "api.example.com", "no-rule"),
        ("http://api.example.com", "api.example.com", "no-rule"),
        ("http://169.254.169.254/", "169.254.169.254:443", "no-rule"),
        ("http://2852039166/", "169.254.169.254:80", "numeric-host"),
        ("https://user@api.example.com/", "api.example.com", "userinfo"),
        ("https://api.example.com/x", "GET https://api.example.com/v1", "path"),
        ("https://api.example.com/v1/../x", "GET https://api.example.com/v1", "ambiguous-path"),
        ("https://api.example.com/v1", "POST https://api.example.com/v1", "method"),
        ("https://api.example.com/v1", "GET https://api.example.com/v1", "needs-broker"),
        ("tcp://api.example.com:22", "api.example.com:22", "scheme"),
        ("ftp://api.example.com", "api.example.com", "scheme"),
        ("https://", "api.example.com", "bad-host"),
    ],
)
def test_what_is_denied(stockade: Stockade, url: str, rule: str, reason: str) -> None:
    ended = stockade("egress", "explain", url, "--allow", rule, "--no-resolve", "--json")
    assert ended.code == 116
    found = json.loads(ended.out)
    assert (found["allowed"], found["reason"]) == (False, reason)


def test_an_address_that_is_looked_up(stockade: Stockade) -> None:
    ended = stockade("egress", "explain", "https://localhost", "--allow", "localhost")
    assert ended.code == 116
    assert b"denied (loopback-address): localhost has the address " in ended.out


def test_a_policy_file(stockade: Stockade, tmp_path: Path) -> None:
    toml = tmp_path / "policy.toml"
    toml.write_text('rules = ["api.example.com"]\nprofiles = ["debian-packages"]\nseconds = 5\n')
    as_json = tmp_path / "policy.json"
    as_json.write_text('{"rules": ["api.example.com"], "profiles": ["debian-packages"]}')
    for file in (toml, as_json):
        for url, code in (
            ("https://api.example.com", 0),
            ("http://deb.debian.org/debian/", 0),
            ("https://other.example", 116),
        ):
            ended = stockade("egress", "explain", url, "--policy", str(file), "--no-resolve")
            assert ended.code == code


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.toml", 'rule = ["a.example"]', "'rule' is unknown; the nearest is 'rules'"),
        ("p.toml", 'rules = "a.example"', "rules is not a list of texts"),
        ("p.toml", "rules = [1]", "rules is not a list of texts"),
        ("p.toml", 'rules = ["http//x"]', "is not"),
        ("p.toml", "rules = [", "is not TOML"),
        ("p.toml", 'profiles = ["all"]', "there is no profile 'all'"),
        ("p.toml", "connections = 0", "connections is 0"),
        ("p.json", "[]", "is not an object"),
        ("p.json", '{"rules": [], "rules": []}', "a key comes twice"),
        ("p.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_a_policy_file_that_is_refused(
    stockade: Stockade, tmp_path: Path, name: str, text: str, said: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    ended = stockade("egress", "explain", "https://a.example", "--policy", str(file))
    assert ended.code == 64
    assert said in ended.said


def test_no_policy_is_a_mistake(stockade: Stockade, tmp_path: Path) -> None:
    assert stockade("egress", "explain", "https://a.example").code == 64
    missing = str(tmp_path / "missing.toml")
    assert stockade("egress", "explain", "https://a.example", "--policy", missing).code == 66
