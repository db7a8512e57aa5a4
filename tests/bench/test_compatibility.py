import pytest

from bench import blocks
from bench.compatibility import measure
from bench.compatibility.rows import PROGRAMS, ROWS, Row, fault_of_chart
from bench.compatibility.trial import Verdict, absent, try_bare, try_in
from bench.machine import ROOT
from stockade.executor import open_local
from stockade.port import Limits, Tier

# A shared machine may take long; the table itself is made with the defaults.
PATIENT = Limits(wall_seconds=90, cpu_seconds=90)
TIERS = [pytest.param(tier, marks=pytest.mark.tier(tier.value)) for tier in measure.TIERS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.program.removesuffix(".py"))
@pytest.mark.parametrize("tier", TIERS)
async def test_it_works(tier: Tier, row: Row) -> None:
    """Each program of the table, in each tier, to the output that it must have."""
    if lacks := absent(row):
        pytest.skip(f"{row.what}: {lacks} is not installed here")
    async with open_local(warm=False, tiers={tier}) as stockade:
        trial = await try_in(stockade, tier, row, PATIENT)
    assert (trial.verdict, trial.reason) == (Verdict.WORKS, "")


def test_a_program_that_fails_does_not_work() -> None:
    """With the last line that it said; so too one that ends well without its output."""
    broken = Row("broken", "use_pip.py", "skipped three times\n", modules=("pip",))
    if lacks := absent(broken):
        pytest.skip(f"{lacks} is not installed here")
    trial = try_bare(broken)  # without its wheel
    assert trial.verdict is Verdict.FAILS
    assert trial.reason.startswith("exit code 1: ")
    silent = Row("silent", "use_threads.py", "something else\n")
    assert (try_bare(silent).verdict, try_bare(silent).reason) == (
        Verdict.FAILS,
        "it printed b'5000\\n'",
    )


@pytest.mark.tier("namespace")
async def test_a_failure_in_a_tier_is_told() -> None:
    """The outcome and the last line of the error; and never as a pass."""
    broken = Row("broken", "use_sqlite.py", "1002\n")
    limits = Limits(processes=1)
    async with open_local(warm=False, tiers={Tier.NAMESPACE}) as stockade:
        unequal = await try_in(stockade, Tier.NAMESPACE, broken)
        limited = await try_in(stockade, Tier.NAMESPACE, broken, limits)
    assert (unequal.verdict, unequal.reason) == (Verdict.FAILS, "it printed b'1001\\n'")
    assert limited.verdict is Verdict.FAILS
    assert limited.reason.startswith("processes: ")


async def test_what_is_not_installed_is_no_pass() -> None:
    """Nothing is run; the table says what is absent."""
    command = Row("a", "use_git.py", "", commands=("git-of-nobody",))
    module = Row("b", "use_numpy.py", "", modules=("numpy_of_nobody",))
    assert {try_bare(row).verdict for row in (command, module)} == {Verdict.ABSENT}
    report = await measure.measure([command, module])
    first, second = report.tables[0].rows
    assert (first[1], second[1]) == (
        "not installed here: git-of-nobody",
        "not installed here: numpy_of_nobody",
    )
    assert not any("works" in cell for cell in first + second)


@pytest.mark.parametrize(
    ("data", "fault"),
    [(b"GIF89a", "signature"), (b"\x89PNG\r\n\x1a\n", "0 by 0")],
)
def test_what_is_no_chart(data: bytes, fault: str) -> None:
    """The artefact's check can fail."""
    assert fault in fault_of_chart(data)


def test_every_program_has_a_row() -> None:
    """None is there that nobody runs."""
    assert {row.program for row in ROWS} == {path.name for path in PROGRAMS.glob("use_*.py")}


def test_the_page_has_the_same_rows() -> None:
    """`./dev bench --write` fills it: every row and tier, and none besides."""
    lines = blocks.read((ROOT / "docs/tiers.md").read_text(), "compatibility").splitlines()
    table = [line.strip("|").split(" | ") for line in lines if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in row] for row in table]
    assert header == list(measure.COLUMNS)
    assert [row[0] for row in rows] == [row.what for row in ROWS]
    for row in rows:
        assert len(row) == len(header)
        for cell in row[1:]:
            assert cell.startswith(tuple(Verdict)), cell
