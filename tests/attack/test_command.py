"""``stockade attack``: what it prints and what it exits with."""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from stockade.cli.host import Host
from stockade.cli.main import main
from stockade.port import ExecutionEnvironment, Outcome, Tier, Unavailable
from stockade.port.fake import FakeEnvironment, Scripted


@asynccontextmanager
async def open_fake(tiers: Collection[Tier]) -> AsyncIterator[ExecutionEnvironment]:
    yield FakeEnvironment(lambda call: Scripted(), tiers=tiers)


def open_nothing(_: Collection[Tier]) -> AbstractAsyncContextManager[ExecutionEnvironment]:
    raise Unavailable("no user namespaces")


class Command:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.host = Host(open_for_calls=open_fake)

    def __call__(self, *arguments: str) -> int:
        self.monkeypatch.setattr("sys.argv", ["stockade", "attack", *arguments])
        with pytest.raises(SystemExit) as left:
            main(self.host)
        assert isinstance(left.value.code, int)
        return left.value.code


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch)


def test_all_held_exits_with_0(attack: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert attack("--only", "wire-truncated", "--only", "wire-oversize", "--controls") == 0
    printed = capsys.readouterr().out
    assert "2 of 2 held" in printed
    assert "works: the wire still stands" in printed


def test_a_boundary_that_stops_nothing_exits_with_1(
    attack: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fake runs no program at all: nothing is reported, so nothing counts as stopped."""
    assert attack("--only", "sleep", "--only", "keyring", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["held"] is False
    assert [entry["verdict"] for entry in told["attacks"]] == ["broken", "broken"]
    assert told["attacks"][0]["problems"][0].startswith(f"ended as ok, not {Outcome.WALL_CLOCK}")


def test_an_attack_that_could_not_be_run_exits_with_1(
    attack: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sandboxes are wanted, and the first never says that it is ready."""
    attack.monkeypatch.setattr("stockade.cli.attack.drive._READY_SECONDS", 0.05)
    assert attack("--only", "shared-places", "--json") == 1
    (entry,) = json.loads(capsys.readouterr().out)["attacks"]
    assert entry["verdict"] == "not run"


def test_no_sandbox_at_all_exits_with_69(
    attack: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    attack.host = Host(open_for_calls=open_nothing)
    assert attack() == 69
    assert "no user namespaces" in capsys.readouterr().err


def test_a_tier_that_is_not_there_exits_with_69(
    attack: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is attacked in its place."""
    with_one = open_fake
    attack.host = Host(open_for_calls=lambda _: with_one((Tier.NAMESPACE,)))
    assert attack("--tier", "gvisor", "--only", "sleep") == 69
    assert "the environment has namespace, and not gvisor" in capsys.readouterr().err


def test_a_name_that_is_none_is_a_usage_error(
    attack: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attack("--only", "nonsense") == 64
    assert "fork-bomb" in capsys.readouterr().err
