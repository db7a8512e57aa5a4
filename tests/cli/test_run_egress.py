"""``stockade run``'s options about the network: what the executor is asked for, and what is said."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Stockade

from stockade.port import (
    PROFILES,
    CredentialUse,
    DeniedDestination,
    EgressPolicy,
    EgressRule,
    EgressUse,
    Outcome,
)
from stockade.port.fake import Scripted

CODE = ("-c", "pass")


def policy(stockade: Stockade, *options: str) -> EgressPolicy:
    ended = stockade("run", *options, *CODE)
    assert ended.code == 0, ended.said
    (call,) = ended.calls
    return call.sandbox.egress


def test_nothing_is_allowed_that_is_not_asked_for(stockade: Stockade) -> None:
    assert policy(stockade) == EgressPolicy()


def test_rules_profiles_files_and_credentials_come_together(
    stockade: Stockade, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('rules = ["a.example"]\ncredentials = ["one"]\nconnections = 3\n')
    found = policy(
        stockade,
        "--egress-policy", str(file), "--egress-profile", "debian-packages",
        "--allow", "b.example:8443", "--allow", "GET http://c.example/v1",
    )  # fmt: skip
    assert found == EgressPolicy(
        rules=(
            EgressRule("a.example"),
            *PROFILES["debian-packages"],
            EgressRule("b.example", 8443),
            EgressRule.parse("GET http://c.example/v1"),
        ),
        credentials=("one",),
        connections=3,
    )
    assert not found.watched


def test_to_watch_denials_takes_somebody_who_denies(stockade: Stockade) -> None:
    assert policy(stockade, "--egress-log") == EgressPolicy(watched=True)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--allow", "nowhere at all"), 64, "is not [METHOD ]"),
        (("--allow", "evil\x1b[31m"), 64, "is not a host"),
        (("--allow", "tcp://a.example"), 64, "needs a port"),
        (("--egress-profile", "everything"), 64, "there are debian-packages"),
        (("--credential", "key"), 64, "a broker lends them, by a service"),
        (("--egress-policy", "missing.toml"), 66, "No such file"),
        (("--egress-policy", "wrong.toml"), 64, "'rule' is unknown; the nearest is 'rules'"),
        (("--index-url", "https://index.example"), 64, "is for --requirements"),
        (("--requirements", "missing.txt"), 66, "No such file"),
        (
            ("--requirements", "wrong.toml", "--index-url", "https://index.example:99999"),
            64,
            "Port out of range",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_runs(
    stockade: Stockade, options: tuple[str, ...], code: int, said: str
) -> None:
    Path("wrong.toml").write_text("rule = []\n")
    ended = stockade("run", *options, *CODE)
    assert ended.code == code, ended.said
    assert said in ended.said
    assert "\x1b" not in ended.said
    assert ended.calls == []


def test_what_was_denied_and_used_is_said(stockade: Stockade) -> None:
    use = EgressUse(
        connections=2,
        sent_bytes=10,
        received_bytes=2048,
        denied=(DeniedDestination("b.example:443", "no-rule", "no rule allows it", 3),),
        credentials=(CredentialUse("key", "a.example:443", 2),),
    )
    script = [Scripted(Outcome.EGRESS_DENIED, exit_code=1, egress=use)]
    ended = stockade("run", "--verbose", "--allow", "a.example", *CODE, script=script)
    assert ended.code == 116
    assert "denied 3 times: b.example:443 (no-rule): no rule allows it" in ended.said
    assert "credential key used 2 times for a.example:443" in ended.said
    ended = stockade("run", "--allow", "a.example", "--json", *CODE, script=[*script])
    said = json.loads(ended.out)["egress"]
    assert said["denied"][0]["reason"] == "no-rule"
    assert said["credentials"][0]["count"] == 2
