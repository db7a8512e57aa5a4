"""Deciding whether an attack was stopped. A pure function of what was seen."""

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stockade.cli.attack.model import Attack, Observed, Ruling, Verdict
from stockade.port import Enforcement, Execution, Outcome

_OF_LINUX = (
    *("ModuleNotFoundError: ", "ImportError: ", "AttributeError: "),
    *("OSError: ", "FileNotFoundError: ", "PermissionError: "),
)
"""How a Python of WebAssembly says that a function or a file of Linux is none of its own."""
NOT_IN_WASM: Mapping[str, str] = {
    "agent-files": "no file of the agent's is there to be tried",
    "forged-frames": "no descriptor of the wire's is there to be written to",
    "ignore-signals": "there are no signals to be ignored",
    "own-executable": "there is no /proc, and no program file behind an instance",
    "shared-inodes": "no file of the image is there to be shared",
    "shared-places": "it meets another program by what Linux shares, and none of it is there",
}
"""Attacks that wait for, or rest upon, what WebAssembly has not."""
_GRACE_SECONDS = 3.0
"""From the deadline until the record must be there, on a busy machine."""


@dataclass(slots=True)
class Report:
    """What a program wrote on its result channel; foreign lines are none of it."""

    attempts: list[tuple[str, str, bool]] = field(default_factory=list)
    reached: float = 0.0
    done: bool = False


def read_report(execution: Execution) -> Report:
    """The report in an execution's result."""
    report = Report()
    for line in _objects(execution.result or b""):
        match line:
            case {"tried": str(what), "answer": str(answer), "held": bool(held)}:
                report.attempts.append((what, answer, held))
            case {"reached": int(amount) | float(amount)}:
                report.reached = max(report.reached, amount)
            case {"done": True}:
                report.done = True
    return report


def _objects(text: bytes) -> Iterator[object]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def inapplicable(attack: Attack, kept: dict[str, Enforcement]) -> str:
    """Why the attack says nothing on this machine; empty where it does."""
    machine = platform.machine()
    if attack.machines and machine not in attack.machines:
        return f"exists on {' and '.join(attack.machines)} only, this is {machine}"
    how = kept.get(attack.enforced, Enforcement.ENFORCED)
    if attack.enforced and how is not Enforcement.ENFORCED:
        return f"{attack.enforced} is {how} on this machine, which `stockade doctor` says, too"
    return ""


def lacking_in_wasm(observed: Observed) -> str:
    """What of Linux a program of the battery had need of, and WebAssembly has not; empty: nothing."""
    for execution in observed.executions:
        if execution.outcome is Outcome.INVALID:
            return execution.detail
        last = execution.stderr.text().strip().rpartition("\n")[2]
        if last.startswith(_OF_LINUX):
            return last[:200]
    return ""


def breaches(attack: Attack, observed: Observed) -> list[str]:
    """What got through."""
    found = list(observed.breaches)
    for execution in observed.executions:
        report = read_report(execution)
        found += [f"{what}: {answer}" for what, answer, held in report.attempts if not held]
        if attack.most is not None and report.reached > attack.most:
            found.append(f"reached {report.reached:g}, where {attack.most:g} is the most")
        hit = execution.limit
        if attack.most_used is not None and hit is not None and (hit.used or 0) > attack.most_used:
            found.append(f"used {hit.used:g}, where {attack.most_used:g} is the most")
        written = execution.stdout.total + execution.stderr.total
        if written > attack.limits.output_bytes:
            found.append(f"{written} bytes of output came through")
        if len(execution.result or b"") > attack.limits.result_bytes:
            found.append("a result above its ceiling came through")
        for artefact in execution.artefacts:
            if artefact.data != attack.come_out.get(artefact.name):
                found.append(f"{artefact.name!r} came out: {artefact.data[:60]!r}")
    return found


def _mismatches(attack: Attack, observed: Observed) -> list[str]:
    """What is not as it must be although nothing got through."""
    last = observed.executions[-1]
    found = []
    if last.outcome not in attack.outcomes:
        expected = " or ".join(sorted(attack.outcomes))
        found.append(f"ended as {last.outcome}, not {expected}: {last.detail}")
        found += last.stderr.text().strip().splitlines()[-1:]
    hit = last.limit.name if last.limit else ""
    if attack.limit and hit != attack.limit:
        found.append(f"the record names the limit {hit!r}, not {attack.limit}")
    if attack.exit_code is not None and last.exit_code != attack.exit_code:
        found.append(f"exit code {last.exit_code}, not {attack.exit_code}")
    report = read_report(last)
    if len(report.attempts) < attack.attempts:
        found.append(f"only {len(report.attempts)} of {attack.attempts} attempts were reported")
    if attack.attempts and not report.done:
        found.append("the program did not come to its end")
    if attack.most is not None and not report.reached:
        found.append("the program reached nothing, so nothing was tried")
    if last.outcome is Outcome.OK:
        found += [
            f"the record says of {missing.name!r} that {missing.reason}, and the sandbox was alive"
            for missing in last.missing_artefacts
            if missing.reason.startswith("the sandbox")
        ]
    missing = attack.come_out.keys() - {artefact.name for artefact in last.artefacts}
    found += [f"{name!r} did not come out" for name in sorted(missing)]
    if observed.seconds > attack.limits.wall_seconds + _GRACE_SECONDS:
        found.append(
            f"took {observed.seconds:.1f} s; its clock ends at {attack.limits.wall_seconds:g}"
        )
    return found


def judge(attack: Attack, observed: Observed) -> Verdict:
    """The ruling: held only where nothing got through and all is as it must be."""
    problems = [*breaches(attack, observed), *_mismatches(attack, observed)]
    ruling = Ruling.BROKEN if problems else Ruling.HELD
    return Verdict(attack, ruling, _stopped_by(attack, observed), tuple(problems), observed.seconds)


def _stopped_by(attack: Attack, observed: Observed) -> str:
    last = observed.executions[-1]
    parts = []
    if last.outcome not in (Outcome.OK, Outcome.NONZERO_EXIT):
        parts.append(f"{last.outcome}: {last.detail}")
    answers = Counter(answer for _, answer, held in read_report(last).attempts if held)
    codes = {name: count for name, count in answers.items() if name.isupper() and name.isalnum()}
    parts += [f"{name} ({count})" for name, count in sorted(codes.items())]
    others = sum(answers.values()) - sum(codes.values())
    if others:
        parts.append(f"{others} checks of what is there")
    reasons = Counter(missing.reason for missing in last.missing_artefacts)
    parts += [f"{reason} ({count})" for reason, count in sorted(reasons.items())]
    if attack.because:
        parts.append(attack.because)
    return "; ".join(parts) or "ended with the sandbox"
