"""Console blocks of a page: what is typed, and what comes out. ``...`` stands for anything."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from stockade.port import Tier

ROOT = Path(__file__).parents[2]
# Between the outputs of two commands; no example prints it.
MARK = "\x1e"
TIER = ("--tier", Tier.NAMESPACE.value)


class Step(NamedTuple):
    """A command, and what it prints on both streams."""

    command: str
    expected: str


def read_blocks(page: Path) -> dict[str, list[Step]]:
    """Heading to the console block below it."""
    found: dict[str, list[Step]] = {}
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        for block in re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            steps = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            found[section.splitlines()[0]] = [Step(*step.split("\n", 1)) for step in steps]
    return found


def type_in(steps: list[Step], folder: Path) -> list[str]:
    """Run the commands in one shell, in a folder that looks like the checkout's root."""
    (folder / "examples").symlink_to(ROOT / "examples")
    # Not the real ./dev, which may set things up first: what it runs in the end. In one tier,
    # for what it says of memory is not the same in each.
    dev = folder / "dev"
    run = f"exec {shlex.quote(sys.executable)} -m stockade.cli.main"
    in_tier = f'if [ "$1" = run ]; then shift; {run} run {shlex.join(TIER)} "$@"; fi'
    dev.write_text(f'#!/bin/sh\n{in_tier}\n{run} "$@"\n')
    dev.chmod(0o755)
    script = "code=0\n" + "".join(
        f"(exit $code); {step.command}\ncode=$?; printf '\\036'\n" for step in steps
    )
    completed = subprocess.run(
        ["bash", "-c", script],
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return completed.stdout.split(MARK)[:-1]


def compare(steps: list[Step], outputs: list[str]) -> None:
    """Fail where a command printed something else than the page says."""
    assert len(outputs) == len(steps)
    for step, output in zip(steps, outputs, strict=True):
        pattern = ".*".join(map(re.escape, step.expected.split("...")))
        agrees = re.fullmatch(pattern, output, re.DOTALL) is not None
        assert agrees, f"$ {step.command}\n{output}"
