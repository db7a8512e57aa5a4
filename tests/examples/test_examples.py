"""The examples, typed as their README says; what comes out is compared."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "examples/README.md"
# Between the outputs of two commands; no example prints it.
MARK = "\x1e"


class Step(NamedTuple):
    """A command, and what it prints on both streams."""

    command: str
    expected: str


def blocks() -> dict[str, list[Step]]:
    """Heading to the console block below it."""
    found: dict[str, list[Step]] = {}
    sections = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        for block in re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            steps = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            found[section.splitlines()[0]] = [Step(*step.split("\n", 1)) for step in steps]
    return found


def type_in(steps: list[Step], folder: Path) -> list[str]:
    """Run the commands in one shell, in a folder that looks like the checkout's root."""
    (folder / "examples").symlink_to(ROOT / "examples")
    # Not the real ./dev, which may set things up first: what it runs in the end.
    dev = folder / "dev"
    dev.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m stockade.cli.main "$@"\n')
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


def agrees(expected: str, found: str) -> bool:
    """Whether it is the same, ``...`` standing for anything."""
    pattern = ".*".join(map(re.escape, expected.split("...")))
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def record_of_nothing() -> dict[str, dict[str, str]]:
    """The record of a program that does nothing, for how limits are kept here."""
    completed = subprocess.run(
        [sys.executable, "-m", "stockade.cli.main", "run", "--json", "-c", ""],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    record = json.loads(completed.stdout)
    assert isinstance(record, dict)
    return record


@pytest.mark.tier("namespace")
@pytest.mark.parametrize("heading", [heading for heading in blocks() if "data" not in heading])
def test_the_readme_tells_what_comes_out(heading: str, tmp_path: Path) -> None:
    """Every command of every block prints what the page says that it prints."""
    steps = blocks()[heading]
    commands = "\n".join(step.command for step in steps)
    if ".js " in commands and not Path("/usr/bin/node").exists():
        pytest.skip("there is no node in /usr: JavaScript cannot run")
    if "--memory" in commands and record_of_nothing()["enforcement"]["memory_bytes"] != "enforced":
        pytest.skip("memory is kept for each process alone here: there are no cgroups")
    outputs = type_in(steps, tmp_path)
    assert len(outputs) == len(steps)
    for step, output in zip(steps, outputs, strict=True):
        assert agrees(step.expected, output), f"$ {step.command}\n{output}"


def test_every_example_is_on_the_page() -> None:
    """No program is there that nobody runs, and every block has one."""
    typed = "\n".join(step.command for steps in blocks().values() for step in steps)
    programs = {
        path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".js", ".sh")
    }
    assert len(programs) >= 5
    for program in programs:
        assert f"examples/{program.name}" in typed
    for data in (ROOT / "examples/data").iterdir():
        assert f"`data/{data.name}`" in README.read_text()


@pytest.mark.tier("namespace")
def test_artefacts_of_the_table_are_whole(tmp_path: Path) -> None:
    """The chart is an SVG with a dot for each flower, the numbers are JSON."""
    type_in(blocks()["A table, a chart and the numbers"], tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["virginica"] == {
        "flowers": 50,
        "means": {
            "sepal_length": 6.588,
            "sepal_width": 2.974,
            "petal_length": 5.552,
            "petal_width": 2.026,
        },
    }
    chart = ElementTree.fromstring((tmp_path / "chart.svg").read_text())
    circles = chart.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 150
