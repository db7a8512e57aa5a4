"""The examples, typed as their README says; what comes out is compared."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .console import ROOT, TIER, compare, read_blocks, type_in

README = ROOT / "examples/README.md"
BLOCKS = read_blocks(README)


def record_of_nothing() -> dict[str, dict[str, str]]:
    """The record of a program that does nothing, for how limits are kept here."""
    completed = subprocess.run(
        [sys.executable, "-m", "stockade.cli.main", "run", *TIER, "--json", "-c", ""],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    record = json.loads(completed.stdout)
    assert isinstance(record, dict)
    return record


@pytest.mark.tier("namespace")
@pytest.mark.parametrize("heading", BLOCKS)
def test_the_readme_tells_what_comes_out(heading: str, tmp_path: Path) -> None:
    """Every command of every block prints what the page says that it prints."""
    steps = BLOCKS[heading]
    commands = "\n".join(step.command for step in steps)
    if ".js " in commands and not Path("/usr/bin/node").exists():
        pytest.skip("there is no node in /usr: JavaScript cannot run")
    if "--memory" in commands and record_of_nothing()["enforcement"]["memory_bytes"] != "enforced":
        pytest.skip("memory is kept for each process alone here: there are no cgroups")
    compare(steps, type_in(steps, tmp_path))


def test_every_example_is_on_the_page() -> None:
    """No program is there that nobody runs, and every block has one."""
    typed = "\n".join(step.command for steps in BLOCKS.values() for step in steps)
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
    type_in(BLOCKS["A table, a chart and the numbers"], tmp_path)
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
