"""Options of ``stockade run``: their types, and help in sections."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from stockade.cli import sizes
from stockade.cli.exit_codes import OPTION_OF_LIMIT
from stockade.cli.report import quantity
from stockade.port import InvalidRequest, Limits, Tier, TrustLevel
from stockade.port.limits import _LARGEST, _SMALLEST

SECTIONS = ("Program", "Files and variables", "Limits", "Sandbox", "Network", "Packages", "Output")

_DEFAULTS = Limits()

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # generic only in newer versions of click
    ParamType = click.ParamType


class SectionedOption(click.Option):
    """An option that is listed under a heading of its own in the help."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        assert section in SECTIONS
        self.section = section


class LimitValue(ParamType):
    """A value of one field of ``Limits``, checked against its range."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._parse: Callable[[str], float]
        if field.endswith("_bytes"):
            self.name = "size"
            self._parse = lambda text: sizes.parse_size(text, zero=not _SMALLEST[field])
        elif field.endswith("_seconds"):
            self.name, self._parse = "duration", sizes.parse_duration
        elif field == "cpus":
            self.name, self._parse = "number", sizes.parse_number
        else:
            self.name, self._parse = "count", sizes.parse_count

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = self._parse(value.strip())
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        low, high = _SMALLEST[self.field], _LARGEST[self.field]
        if not low <= number <= high:
            bounds = f"{quantity(self.field, low)} to {quantity(self.field, high)}"
            self.fail(f"{value!r}: it must be {bounds}", param, ctx)
        return number


def limit_option(field: str, help_text: str) -> Callable[[Any], Any]:
    """The option of one limit; its default is the one of ``Limits``."""
    default = quantity(field, getattr(_DEFAULTS, field))
    return click.option(
        OPTION_OF_LIMIT[field],
        field,
        cls=SectionedOption,
        section="Limits",
        type=LimitValue(field),
        help=f"{help_text}  [default: {default}]",
    )


def limits(given: dict[str, float | None]) -> Limits:
    """The limits from the options that were given."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    memory = chosen.get("memory_bytes", _DEFAULTS.memory_bytes)
    if "disk_bytes" not in chosen:
        # The workspace lives in memory: less memory alone must not be a contradiction.
        chosen["disk_bytes"] = min(_DEFAULTS.disk_bytes, memory)
    elif chosen["disk_bytes"] > memory:
        raise click.UsageError(
            f"--disk {sizes.format_size(chosen['disk_bytes'])} exceeds --memory "
            f"({sizes.format_size(memory)}): the workspace lives in memory and counts towards it; "
            "raise --memory too"
        )
    try:
        return Limits(**chosen)
    except InvalidRequest as error:
        raise click.UsageError(refusal(error)) from None


_OPTION_OF_FIELD = {
    **{f"limits.{field}": option for field, option in OPTION_OF_LIMIT.items()},
    "files": "--file",
    "artefacts": "--artefact",
    "environment": "--env",
    "tier": "--tier",
}


def refusal(error: InvalidRequest) -> str:
    """The message of a refusal by the port, with the option in place of the field."""
    message = str(error).removeprefix(f"{error.field}: ")
    if error.field in _OPTION_OF_FIELD:
        return f"{_OPTION_OF_FIELD[error.field]}: {message}"
    return f"{error.field.removeprefix('program.')}: {message}"


class MemberName(ParamType):
    """A member of one of the port's lists of names, such as the tiers."""

    def __init__(self, members: type[StrEnum], name: str) -> None:
        self._members = members
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StrEnum:
        try:
            return self._members(value)
        except ValueError:
            self.fail(f"{value!r} is none of: {', '.join(self._members)}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name.value) for name in self._members if name.startswith(incomplete)]


TIER = MemberName(Tier, "tier")
TRUST_LEVEL = MemberName(TrustLevel, "level")


class FileName(ParamType):
    """A path of the host; a shell completes it."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class RunCommand(click.Command):
    """``run``: help in sections, and a memory of the ``--`` that click drops."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._end_options_at_code(ctx, args)
        before = list(args)
        rest = super().parse_args(ctx, args)
        words: Sequence[str] = ctx.params.get("words") or ()
        # Everything from the first word on is the program's, so a "--" that ended the options
        # is the argument just in front of it.
        cut = len(before) - len(words)
        ctx.meta["stockade.dashes"] = cut > 0 and before[cut - 1] == "--"
        return rest

    def _end_options_at_code(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``-c CODE`` is the program: as with python3 itself, what follows is the program's.

        click would go on looking for options of ours.
        """
        with_value = {
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        place = 0
        while place < len(args) and len(args[place]) > 1 and args[place][0] == "-":
            word = args[place]
            place += 1
            if word == "--":
                break
            if word.startswith("--"):
                place += word in with_value
                continue
            # Short options may be joined, the last with its value.
            for end, letter in enumerate(word[1:], 2):
                if f"-{letter}" in with_value:
                    place += end == len(word)
                    if letter == "c" and place <= len(args):
                        return [*args[:place], "--", *args[place:]]
                    break
        return args

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        others: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None and isinstance(param, SectionedOption):
                rows[param.section].append(row)
            elif row is not None and isinstance(param, click.Option):
                others.append(row)
        for section, lines in rows.items():
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)
        with formatter.section("Help"):
            formatter.write_dl(others)
