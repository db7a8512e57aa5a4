"""The commands on whole hosts, and on hosts that lack something: a refusal, never a weaker run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stockade.port import Tier

CRIPPLED = Path(__file__).parent / "crippled.py"
MAIN = ("-m", "stockade.cli.main")
TIER = ("--tier", Tier.NAMESPACE.value)


class Ended(NamedTuple):
    """What a command did on such a host."""

    code: int
    out: str
    err: str
    left: list[str]
    """Processes that outlived it."""


def stockade(cripple: str, *arguments: str, python: str = sys.executable) -> Ended:
    """Run one command there; skips where this host cannot be crippled so."""
    completed = subprocess.run(
        [sys.executable, str(CRIPPLED), cripple, python, *MAIN, *arguments],
        check=False,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if completed.returncode:
        pytest.skip(f"cannot make a host with {cripple}: {completed.stderr.strip()[-200:]}")
    return Ended(**json.loads(completed.stdout))


def plain_users_python() -> str:
    """As root, the tests' own Python may lie where only root can enter."""
    for python in (sys.executable, "/usr/bin/python3"):
        # One that is too old ends with an error, one that cannot be entered raises.
        probe = subprocess.run(
            [sys.executable, str(CRIPPLED), "plain-user", python, "-c", "import tomllib"],
            check=False,
            cwd="/",
            capture_output=True,
        )
        if probe.returncode == 0 and json.loads(probe.stdout)["code"] == 0:
            return python
    pytest.skip("there is no Python that a plain user can run")


def examined(ended: Ended) -> dict[str, Any]:
    report = json.loads(ended.out)
    assert isinstance(report, dict)
    return report


@pytest.mark.plain_user
@pytest.mark.tier("namespace")
def test_a_whole_host_serves() -> None:
    """Doctor exits with 0 where a program ran, says all of it, and leaves nothing."""
    ended = stockade("nothing", "doctor", "--json")
    assert (ended.code, ended.left) == (0, [])
    report = examined(ended)
    assert report["usable"]
    assert report["tiers"][0]["start_ms"] > 0
    assert set(report["facts"]) >= {"kernel", "cgroups", "user namespaces", "user"}
    assert report["facts"]["Python inside"].startswith("3.")
    assert {entry["how"] for entry in report["enforcement"].values()} <= {
        "enforced",
        "per-process",
        "absent",
    }


@pytest.mark.plain_user
@pytest.mark.parametrize("arguments", [("doctor",), ("run", *TIER, "-c", "print('it ran')")])
def test_without_user_namespaces_nothing_runs(arguments: tuple[str, ...]) -> None:
    """SECURITY: fail closed on a host without user namespaces; CASES 146: name the knob."""
    ended = stockade("no-namespaces", *arguments)
    assert (ended.code, ended.left) == (69, [])
    assert "it ran" not in ended.out
    assert "user namespaces" in ended.out + ended.err


@pytest.mark.plain_user
def test_without_user_namespaces_doctor_names_the_switch() -> None:
    """The setting that is off, and what to type."""
    ended = stockade("no-namespaces", "doctor", "--json")
    assert (ended.code, ended.left) == (69, [])
    report = examined(ended)
    assert not report["usable"]
    assert report["enforcement"] == {}
    tier = report["tiers"][0]
    assert (tier["tier"], tier["available"]) == ("namespace", False)
    assert set(report["trust_levels"].values()) == {None}
    assert "user.max_user_namespaces is 0" in tier["detail"]
    assert any("sysctl -w user.max_user_namespaces=" in do for do in report["remedies"])


@pytest.mark.plain_user
@pytest.mark.parametrize("arguments", [("doctor",), ("run", *TIER, "-c", "print('it ran')")])
def test_root_without_ids_to_give_runs_nothing(arguments: tuple[str, ...]) -> None:
    """Root of a container with one id must not run guests as that id, which owns the container."""
    ended = stockade("few-ids", *arguments)
    assert (ended.code, ended.left) == (69, [])
    assert "it ran" not in ended.out
    words = " ".join((ended.out + ended.err).split())
    assert "too few ids" in words
    assert "/etc/subuid" in words


@pytest.mark.tier("namespace")
def test_without_cgroups_each_weaker_limit_is_named() -> None:
    """A plain user's executor says which limits hold for single processes only, and the remedy."""
    python = plain_users_python()
    ended = stockade("plain-user", "doctor", "--json", python=python)
    assert (ended.code, ended.left) == (0, [])
    report = examined(ended)
    if not report["facts"]["cgroups"].startswith("no cgroups"):
        pytest.skip("cgroups are delegated to nobody here")
    kept = {name: entry["how"] for name, entry in report["enforcement"].items()}
    assert kept["memory_bytes"] == kept["cpu_seconds"] == "per-process"
    assert kept["cpus"] == "absent"
    assert kept["disk_bytes"] == kept["wall_seconds"] == kept["processes"] == "enforced"
    assert any("Delegate=" in do for do in report["remedies"])
    ran = stockade("plain-user", "run", *TIER, "-v", "-c", "print('it ran')", python=python)
    assert (ran.code, ran.out, ran.left) == (0, "it ran\n", [])
    assert "memory_bytes per-process" in ran.err


@pytest.mark.tier("namespace")
@pytest.mark.skipif(os.geteuid() != 0, reason="root gives up its cgroups; a plain user has none")
def test_whole_and_crippled_hosts_differ_in_cgroups_alone() -> None:
    """What the namespaces keep, a plain user's executor keeps too."""
    python = plain_users_python()
    whole = examined(stockade("nothing", "doctor", "--json"))["enforcement"]
    plain = examined(stockade("plain-user", "doctor", "--json", python=python))["enforcement"]
    differ = {name for name in whole if whole[name]["how"] != plain[name]["how"]}
    assert differ <= {"memory_bytes", "cpu_seconds", "cpus"}
