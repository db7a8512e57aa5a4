import pytest

from bench import blocks, costs, page
from bench.machine import ROOT
from bench.report import Report, Table

PAGE = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"


def test_a_block_is_replaced_and_nothing_else() -> None:
    """What stands around it stays."""
    anew = blocks.replace(PAGE, "x", "new\n\n")
    assert anew == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n"
    assert blocks.read(anew, "x") == "new\n"


@pytest.mark.parametrize(
    "text", ["", "<!-- x: begin -->\n", "<!-- x: end -->", PAGE.replace("x", "y")]
)
def test_a_page_without_the_block(text: str) -> None:
    """It is not written beside the page's end, or nowhere."""
    with pytest.raises(ValueError, match="no block 'x'"):
        blocks.replace(text, "x", "new")
    with pytest.raises(ValueError, match="no block 'x'"):
        blocks.read(text, "x")


def test_tables_of_tiers_are_on_their_page_alone() -> None:
    """With the date and the command; the other page has the rest."""
    table = Table("What it costs", ("what", "times"), (("stat", "2.00"),))
    reports = [Report("costs", (table,)), Report("latency", (Table("Latency", ("what",), ()),))]
    text = page.fill_tiers(
        "<!-- costs: begin -->\n<!-- costs: end -->", "2001-02-03", "do", reports
    )
    assert "| stat | 2.00 |" in text
    assert "`do` on 2001-02-03" in text
    assert "Latency" not in text
    performance = page.render("2001-02-03", "do", {}, reports)
    assert "Latency" in performance
    assert "What it costs" not in performance


def test_the_page_has_the_rows_of_costs() -> None:
    """`./dev bench --write` fills it: every row and tier."""
    lines = blocks.read((ROOT / "docs/tiers.md").read_text(), "costs").splitlines()
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert header == list(costs.COLUMNS)
    assert [row[0] for row in rows] == list(costs.WHAT.values())
