"""What the pages show runs, what they name exists, and what they count is counted right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.console import ROOT, compare, read_blocks, type_in

from stockade.cli.exit_codes import OF_OUTCOME, OPTION_OF_LIMIT
from stockade.cli.run import run
from stockade.port import Outcome
from stockade.port.policy import WEAKEST

from .tables import CLI, filled

PAGES = sorted(
    [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "examples/README.md", *ROOT.glob("docs/*.md")]
)
# Written by the benchmarks, which not every checkout has run.
MADE_LATER = {ROOT / "docs/performance.md"}


def python_blocks() -> list[tuple[str, str]]:
    """Page and source of each example in Python."""
    return [
        (f"{page.name}, block {number}", source)
        for page in (ROOT / "README.md", ROOT / "docs/port.md")
        for number, source in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1
        )
    ]


@pytest.mark.tier("namespace")
@pytest.mark.parametrize(
    "source", [pytest.param(source, id=name) for name, source in python_blocks()]
)
def test_examples_in_python_run(source: str, tmp_path: Path) -> None:
    """Each is a whole program; a comment behind ``print`` is what it prints."""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", source, re.MULTILINE)
    assert promised
    assert completed.stdout.splitlines() == promised


@pytest.mark.tier("namespace")
def test_the_readmes_commands_print_what_it_says(tmp_path: Path) -> None:
    """The first thing that a visitor types."""
    (steps,) = read_blocks(ROOT / "README.md").values()
    compare(steps, type_in(steps, tmp_path))


def test_the_tables_of_the_command_line_are_fresh() -> None:
    """Exit codes and limits; ``python -m tests.docs.tables`` writes them."""
    assert CLI.read_text() == filled(CLI.read_text())


def test_every_exit_code_is_in_the_table() -> None:
    """Of every outcome that has one of its own."""
    page = CLI.read_text()
    assert set(OF_OUTCOME) | {"nonzero_exit", "signal"} == set(Outcome)
    for outcome, code in OF_OUTCOME.items():
        assert f"| {code} | `{outcome}` |" in page


def test_every_option_is_on_the_page() -> None:
    """None is there that nobody can find."""
    page = CLI.read_text()
    for parameter in run.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert f"`{option}" in page
    for option in OPTION_OF_LIMIT.values():
        assert f"`{option}`" in page


def test_every_outcome_is_explained() -> None:
    """In the table of the port's page."""
    page = (ROOT / "docs/port.md").read_text()
    for outcome in Outcome:
        assert f"`{outcome}`" in page


def test_the_trust_levels_are_the_policys() -> None:
    """Each with the weakest tier that may serve it."""
    page = (ROOT / "docs/tiers.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| `(\w+)` \|$", page, re.MULTILINE)
    assert dict(rows) == {level.value: tier.value for level, tier in WEAKEST.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    """Files of this repository in backticks, tests in them, and links."""
    text = page.read_text()
    for path, test in re.findall(r"`((?:tests|fuzz|docs|src)/[\w./-]+)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), path
        if test:
            assert re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        target = (page.parent / link).resolve()
        assert target.exists() or target in MADE_LATER, link


def test_every_threat_has_a_line() -> None:
    """Techniques 1 to 87, each with a test, or said to be pending."""
    text = (ROOT / "docs/threats.md").read_text()
    general, heading, of_gvisor = text.partition("### The gVisor tier\n")
    assert heading
    assert _threats(general) == [*range(1, 88)]
    assert _threats(of_gvisor)


def _threats(text: str) -> list[int]:
    """The numbers of the lines of its tables."""
    numbers: list[int] = []
    for line in text.splitlines():
        if not re.match(r"\| \d", line):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 4, line
        numbers += [int(number) for number in cells[0].split(",")]
        kept = re.search(r"`(tests|fuzz)/", cells[3])
        assert kept or cells[3] in ("`[pending]`", "not applicable"), line
    return numbers


def test_every_promise_names_a_test() -> None:
    """The README's table."""
    section = (ROOT / "README.md").read_text().split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 10
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py(::\w+)?`", row), row
