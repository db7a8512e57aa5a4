"""The tables of the docs that are made from data. Run as a script it writes them.

python -m tests.docs.tables
"""

from dataclasses import fields
from pathlib import Path

from stockade.cli.exit_codes import OPTION_OF_LIMIT, TABLE
from stockade.cli.options import limits
from stockade.cli.report import quantity
from stockade.cli.run import run
from stockade.port import Limits
from stockade.port.limits import _LARGEST, _SMALLEST

CLI = Path(__file__).parents[2] / "docs/cli.md"


def exit_codes() -> str:
    """``exit_codes.TABLE`` as Markdown."""
    lines = ["| code | outcome | meaning | raised by |", "| --- | --- | --- | --- |"]
    for code, outcome, meaning, option in TABLE:
        spelled = [f"`{name}`" if name else "" for name in (outcome, option)]
        lines.append(
            f"| {code} | {spelled[0]} | {meaning.replace('|', chr(92) + '|')} | {spelled[1]} |"
        )
    return "\n".join(lines)


def limit_table() -> str:
    """Every field of ``Limits``: its option, default and range."""
    helps = {parameter.name: getattr(parameter, "help", "") for parameter in run.params}
    defaults = limits({})
    lines = ["| option | limits | default | from | to |", "| --- | --- | --- | --- | --- |"]
    for field in fields(Limits):
        name = field.name
        meaning = helps[name].split("  [")[0].rstrip(".")
        values = [getattr(defaults, name), _SMALLEST[name], _LARGEST[name]]
        cells = [
            f"`{OPTION_OF_LIMIT[name]}`",
            meaning,
            *(quantity(name, value) for value in values),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with both tables as they should be."""
    for name, table in (("limits", limit_table()), ("exit codes", exit_codes())):
        before, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        assert begin
        assert end
        page = before + begin + table + "\n" + end + after
    return page


if __name__ == "__main__":
    CLI.write_text(filled(CLI.read_text()))
