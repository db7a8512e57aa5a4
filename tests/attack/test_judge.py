"""The judge: what it lets pass, and what it must not."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from stockade.cli.attack.battery import BATTERY
from stockade.cli.attack.drive import alone
from stockade.cli.attack.judge import inapplicable, judge, read_report
from stockade.cli.attack.model import SMALL, Attack, Difference, Observed, Ruling
from stockade.port import (
    Artefact,
    Captured,
    Enforcement,
    Execution,
    LimitHit,
    MissingArtefact,
    Outcome,
    Tier,
    Usage,
)

ATTACK = Attack("a", (1,), "tries", frozenset({Outcome.OK}), alone, "sleep", attempts=2)


def report(*lines: Mapping[str, object]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def attempt(held: bool = True, what: str = "a door") -> dict[str, object]:
    return {"tried": what, "answer": "EPERM" if held else "open", "held": held}


GOOD = Execution(
    Outcome.OK, "the program ran to its end", result=report(attempt(), attempt(), {"done": True})
)


def test_what_was_refused_and_reported_holds() -> None:
    verdict = judge(ATTACK, Observed([GOOD]))
    assert (verdict.ruling, verdict.stopped_by) == (Ruling.HELD, "EPERM (2)")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"result": report(attempt(), attempt(False), {"done": True})}, "a door: open"),
        ({"result": report(attempt(), {"done": True})}, "only 1 of 2 attempts were reported"),
        ({"result": report(attempt(), attempt())}, "the program did not come to its end"),
        ({"result": None}, "only 0 of 2 attempts were reported"),
        ({"outcome": Outcome.LOST}, "ended as lost, not ok: the program ran to its end"),
        ({"stdout": Captured(b"", b"", 1 << 30)}, "1073741824 bytes of output came through"),
        ({"artefacts": (Artefact("x", b"y", ""),)}, "'x' came out: b'y'"),
        (
            {"missing_artefacts": (MissingArtefact("x", "the sandbox ended"),)},
            "the record says of 'x' that the sandbox ended, and the sandbox was alive",
        ),
    ],
)
def test_anything_else_is_broken(change: dict[str, object], problem: str) -> None:
    verdict = judge(ATTACK, Observed([replace(GOOD, **change)]))  # type: ignore[arg-type]
    assert verdict.ruling is Ruling.BROKEN
    assert problem in verdict.problems


def test_what_the_host_saw_counts_whatever_the_program_says() -> None:
    assert judge(ATTACK, Observed([GOOD], ["it got out"])).problems == ("it got out",)


def test_a_breach_of_the_other_sandbox_counts_too() -> None:
    other = replace(GOOD, result=report(attempt(False)))
    assert judge(ATTACK, Observed([other, GOOD])).ruling is Ruling.BROKEN


def test_a_deadline_that_was_missed_is_broken() -> None:
    late = Observed([GOOD], seconds=SMALL.wall_seconds + 5)
    assert judge(ATTACK, late).ruling is Ruling.BROKEN


@pytest.mark.parametrize(
    ("reached", "hit", "ruling"),
    [
        (64, "processes", Ruling.HELD),
        (65, "processes", Ruling.BROKEN),
        (64, "memory_bytes", Ruling.BROKEN),
        (64, None, Ruling.BROKEN),
        (0, "processes", Ruling.BROKEN),
    ],
)
def test_a_resource_ends_at_its_limit(reached: int, hit: str | None, ruling: Ruling) -> None:
    attack = replace(
        ATTACK, attempts=0, most=64, limit="processes", outcomes=frozenset({Outcome.PROCESSES})
    )
    execution = Execution(
        Outcome.PROCESSES,
        "",
        result=report({"reached": reached}),
        limit=LimitHit(hit, 64, 64) if hit else None,
        usage=Usage(),
    )
    assert judge(attack, Observed([execution])).ruling is ruling


def test_what_the_record_shows_as_used_has_its_bound_too() -> None:
    attack = replace(ATTACK, attempts=0, limit="cpu_seconds", most_used=1.0)
    for used, ruling in ((0.9, Ruling.HELD), (1.1, Ruling.BROKEN)):
        execution = Execution(Outcome.OK, "", limit=LimitHit("cpu_seconds", 0.5, used))
        assert judge(attack, Observed([execution])).ruling is ruling


def test_a_difference_of_a_tier_is_applied_there_alone_and_told() -> None:
    differs = {Tier.GVISOR: Difference("another kernel", {"attempts": 3})}
    attack = replace(ATTACK, differs=differs)
    assert judge(attack.in_tier(Tier.NAMESPACE), Observed([GOOD])).stopped_by == "EPERM (2)"
    verdict = judge(attack.in_tier(Tier.GVISOR), Observed([GOOD]))
    assert verdict.ruling is Ruling.BROKEN
    assert verdict.stopped_by == "EPERM (2); another kernel"


def test_a_difference_leaves_an_attack_with_a_judge() -> None:
    for attack in BATTERY:
        for tier, difference in attack.differs.items():
            assert difference.why
            assert attack.in_tier(tier).outcomes


def test_foreign_lines_are_no_report() -> None:
    """A program of the battery floods the channel with frames and endings."""
    text = b'\0\0\1\n{"ended": {"code": 0}}\n[1]\n{"tried": 1}\n' + b"[" * 100_000 + b"\n"
    found = read_report(replace(GOOD, result=text))
    assert (found.attempts, found.reached, found.done) == ([], 0, False)


def test_an_attack_without_a_judge_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no judge"):
        replace(ATTACK, attempts=0)
    with pytest.raises(ValueError, match="has no judge"):
        replace(ATTACK, outcomes=frozenset())


def test_names_are_unique_and_each_attack_names_its_demands() -> None:
    assert len({attack.name for attack in BATTERY}) == len(BATTERY)
    assert all(attack.items for attack in BATTERY)


def test_what_says_nothing_on_this_machine_is_not_applicable() -> None:
    elsewhere = replace(ATTACK, machines=("vax",))
    assert "vax" in inapplicable(elsewhere, {})
    unkept = replace(ATTACK, enforced="memory_bytes")
    assert inapplicable(unkept, {"memory_bytes": Enforcement.ENFORCED}) == ""
    assert "per-process" in inapplicable(unkept, {"memory_bytes": Enforcement.PER_PROCESS})
