"""Every attack must be stopped, and is shown to work where nothing stops it."""

import platform

import pytest
from tests.attack.stage import Stage

from stockade.cli.attack.battery import BATTERY
from stockade.cli.attack.controls import control
from stockade.cli.attack.host_checks import Traces
from stockade.cli.attack.model import Attack, Ruling
from stockade.port import Tier

pytestmark = pytest.mark.alone

_TIERS = (Tier.NAMESPACE, Tier.GVISOR, Tier.MICROVM, Tier.VM)
_CONTROLLED = [attack for attack in BATTERY if not attack.no_control]

in_each_tier = pytest.mark.parametrize(
    "stage",
    [pytest.param(tier, id=tier, marks=pytest.mark.tier(tier.value)) for tier in _TIERS],
    indirect=True,
)
without_a_boundary = pytest.mark.parametrize(
    "stage",
    [pytest.param(Tier.NAMESPACE, marks=pytest.mark.tier("namespace"), id="no tier")],
    indirect=True,
)


@in_each_tier
@pytest.mark.parametrize("attack", BATTERY, ids=[attack.name for attack in BATTERY])
def test_attack_is_stopped(stage: Stage, attack: Attack) -> None:
    verdict = stage.run(lambda arena: arena.attack(attack))
    if verdict.ruling is Ruling.NOT_APPLICABLE:
        pytest.skip(f"{attack.name} in {stage.tier}: {verdict.stopped_by}")
    assert (verdict.ruling, verdict.problems) == (Ruling.HELD, ()), verdict.stopped_by


@without_a_boundary
@pytest.mark.parametrize("attack", _CONTROLLED, ids=[attack.name for attack in _CONTROLLED])
def test_attack_works_without_the_boundary(stage: Stage, attack: Attack) -> None:
    """Otherwise the test above could not fail."""
    if attack.machines and platform.machine() not in attack.machines:
        pytest.skip(f"exists on {attack.machines} only")
    shown = stage.run(lambda arena: control(attack, arena.watch))
    assert shown.works, shown.shown


@in_each_tier
def test_nothing_is_left_after_the_battery(stage: Stage) -> None:
    """No process, mount, cgroup, file or segment."""
    assert stage.run(lambda arena: arena.watch.settled()) == []
    stage.close()
    assert Traces.now().added(stage.before) == []
