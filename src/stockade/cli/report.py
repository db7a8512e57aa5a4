"""What is said on standard error about an execution: one line, and more with ``--verbose``."""

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.sizes import format_duration, format_size

if TYPE_CHECKING:
    from stockade.port import Execution

# A detail may carry text that the guest chose; a line stays a line.
_LONGEST_LINE = 2000


def say(message: str) -> None:
    """Print ``stockade: message`` on standard error, coloured where a person looks on."""
    name = "stockade:"
    if coloured(sys.stderr):
        name = click.style(name, fg="red", bold=True)
    try:
        # `color=True`: click would strip by its own rules what was decided here.
        click.echo(f"{name} {neutral(message)}", err=True, color=True)
    except OSError:
        discard(2)  # there is nobody left to tell


def discard(descriptor: int) -> None:
    """Drop what is still written to a broken descriptor.

    The interpreter flushes once more at its end, and would put an exit code of its own in
    place of ours if that failed.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def coloured(stream: object) -> bool:
    """Whether to colour: a terminal, and nobody said no (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())


def neutral(text: str) -> str:
    """Keep a guest's text from steering the terminal: no control or formatting characters."""
    if len(text) > _LONGEST_LINE:
        text = text[:_LONGEST_LINE] + " [...]"
    # Not printable: controls, escapes, bidirectional overrides, line separators, surrogates.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def exit_code(execution: "Execution") -> int:
    """The code that ``stockade run`` exits with."""
    outcome = execution.outcome.value
    if outcome == "nonzero_exit":
        return execution.exit_code or 1
    if outcome == "signal":
        return exit_codes.SIGNAL_BASE + (execution.signal or 0)
    if not_found(execution):
        return exit_codes.NOT_FOUND
    return exit_codes.OF_OUTCOME[outcome]


def not_found(execution: "Execution") -> bool:
    """Whether the image has no program of that name."""
    return execution.outcome.value == "invalid" and execution.detail.startswith("no such program")


def line(execution: "Execution", *, here: bool = True) -> str | None:
    """What happened, the limit, the option that raises it; ``None`` where all went well.

    ``here``: it is this machine that ran it, or could not.
    """
    outcome = execution.outcome.value
    if outcome == "ok":
        return None
    if outcome == "nonzero_exit":
        return f"the program exited with {execution.exit_code}"
    if outcome == "signal":
        return f"the program was ended by {signal_name(execution.signal)}"
    if not_found(execution):
        return execution.detail
    detail = execution.detail.rstrip(". ")
    text = outcome if detail in ("", outcome) else f"{outcome}: {detail}"
    if outcome == "unavailable" and here:
        return f"{text}; `stockade doctor` says what this machine can start"
    name = execution.limit.name if execution.limit else exit_codes.LIMIT_OF_OUTCOME.get(outcome)
    if name is None:
        return text
    option = exit_codes.OPTION_OF_LIMIT.get(name)
    return f"{text}; {option} raises it" if option else text


def quantity(name: str, value: float) -> str:
    """A value of a limit in the unit a person would use."""
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_seconds"):
        return format_duration(value)
    return str(int(value)) if value == int(value) else f"{value:g}"


def signal_name(number: int | None) -> str:
    """Like ``SIGSEGV (signal 11)``."""
    if number is None:
        return "a signal"
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def verbose_lines(execution: "Execution") -> list[str]:
    """Where it ran, how long it took, what it used, and which limits were not fully kept."""
    timings, usage = execution.timings, execution.usage
    used = [f"wall {format_duration(usage.wall_seconds)}"]
    if usage.cpu_seconds is not None:
        used.append(f"cpu {format_duration(usage.cpu_seconds)}")
    for label, count in (("memory", usage.peak_memory_bytes), ("disk", usage.disk_bytes)):
        if count is not None:
            used.append(f"{label} {format_size(count)}")
    for label, count in (("processes", usage.peak_processes), ("inodes", usage.inodes)):
        if count is not None:
            used.append(f"{label} {count}")
    used.append(f"written {format_size(usage.written_bytes)}")
    where = [f"outcome {execution.outcome}", f"tier {execution.tier or 'none'}"]
    if execution.image:
        where.append(f"image {execution.image}")
    lines = [
        ", ".join(where),
        f"waited {format_duration(timings.waited)}, set up {format_duration(timings.set_up)}, "
        f"ran {format_duration(timings.ran)}",
        "used: " + ", ".join(used),
    ]
    if execution.attestation is not None:
        made_of = execution.attestation
        lines.append(
            f"attested: kernel {made_of.kernel_version} {made_of.kernel}, {made_of.vmm} "
            f"{made_of.vmm_version} by {made_of.accelerator}; --json has all of it"
        )
    weaker = [f"{name} {how}" for name, how in execution.enforcement.items() if how != "enforced"]
    if weaker:
        lines.append("limits not kept for all processes together: " + ", ".join(weaker))
    return lines
