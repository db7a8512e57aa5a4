"""``stockade tool``: programs of a tenant that are called with JSON and answer with JSON."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from stockade.cli import exit_codes, report
from stockade.cli.asking import ask
from stockade.cli.failure import Failure
from stockade.cli.options import FileName
from stockade.port import EgressRule, InvalidRequest, Limits, Tier, TrustLevel

if TYPE_CHECKING:
    from stockade.api.answers import ExecutionSummary
    from stockade.api.tools import ToolCallAnswer, ToolMessage, ToolTestAnswer
    from stockade.client.remote import RemoteEnvironment
    from stockade.tools.definition import Tool

_MOST_BYTES = 32 * 1024 * 1024
_LANGUAGES = {".py": "python", ".java": "java", ".js": "javascript", ".cel": "expression"}
_FORMS = ("openai", "anthropic", "mcp")


@click.group("tool")
def tool() -> None:
    """Store, test and call tools: programs from JSON to JSON, each in a sandbox.

    \b
    stockade --url URL tool add vat vat.py --input in.json --output out.json
    stockade --url URL tool call vat '{"net": 100}'
    """


@tool.command("add")
@click.argument("name")
@click.argument("source", type=FileName())
@click.option("--input", "input_schema", required=True, metavar="JSON|FILE",
              help="JSON Schema of its input, an object.")  # fmt: skip
@click.option("--output", "output_schema", default="true", metavar="JSON|FILE",
              help="JSON Schema of its output; anything by default.")  # fmt: skip
@click.option("--examples", default="[]", metavar="JSON|FILE",
              help='A list of {"input": ..., "output": ...}: run before it is called by anybody.')  # fmt: skip
@click.option("--description", default="", help="For whoever chooses among tools.")
@click.option("--language", type=click.Choice(sorted(_LANGUAGES.values())),
              help="By default what the file's name ends with: " + ", ".join(_LANGUAGES) + ".")  # fmt: skip
@click.option("--trust", type=click.Choice([level.value for level in TrustLevel]),
              default=TrustLevel.UNTESTED.value, show_default=True)  # fmt: skip
@click.option("--tier", type=click.Choice(["auto", *(each.value for each in Tier)]), default="auto",
              show_default=True, help="auto: the lightest that will do.")  # fmt: skip
@click.option("--egress", "rules", multiple=True, metavar="RULE",
              help="What it may reach; repeatable.")  # fmt: skip
@click.option("--credential", "credentials", multiple=True, metavar="NAME",
              help="What a broker shows there for it; repeatable.")  # fmt: skip
@click.option("--need", "needs", multiple=True, type=click.Choice(["subprocess", "packages"]))
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE",
              help="As wall_seconds=5; repeatable.")  # fmt: skip
@click.pass_context
def add(
    ctx: click.Context,
    name: str,
    source: str,
    input_schema: str,
    output_schema: str,
    examples: str,
    description: str,
    language: str | None,
    trust: str,
    tier: str,
    rules: tuple[str, ...],
    credentials: tuple[str, ...],
    needs: tuple[str, ...],
    limits: tuple[str, ...],
) -> int:
    """Store a version: looked at and tested first, and called from then on.

    Prints its number, the tier it is called in, and why.
    """
    from stockade.tools.definition import Example, Language, Need, Tool

    if language is None:
        language = next((lang for end, lang in _LANGUAGES.items() if source.endswith(end)), None)
        if language is None:
            raise click.UsageError("--language: the file's name does not tell it")
    try:
        made = Tool(
            name=name,
            description=description,
            language=Language(language),
            source=_text(source, _bytes(source)),
            input_schema=_json("--input", input_schema),
            output_schema=_json("--output", output_schema),
            limits=_limits(limits),
            egress=tuple(map(EgressRule.parse, rules)),
            credentials=credentials,
            trust=TrustLevel(trust),
            tier=None if tier == "auto" else Tier(tier),
            needs=tuple(map(Need, needs)),
            examples=tuple(Example(each["input"], each["output"]) for each in _examples(examples)),
        )
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from None
    stored = ask(ctx, _storing(made))
    click.echo(f"{stored.name} version {stored.version} in {stored.chosen_tier}")
    report.say(f"{stored.reason}; {stored.tested} examples passed")
    return exit_codes.OK


def _storing(made: "Tool") -> "Callable[[RemoteEnvironment], Awaitable[ToolMessage]]":
    return lambda environment: environment.tools.store(made)


@tool.command("call")
@click.argument("name")
@click.argument("given", metavar="[JSON|FILE]", default="-")
@click.option("--version", type=click.IntRange(1), help="By default the live one.")
@click.option("--idempotency-key", help="The same call with the same key runs once.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer, not its output.")
@click.pass_context
def call(
    ctx: click.Context,
    name: str,
    given: str,
    version: int | None,
    idempotency_key: str | None,
    as_json: bool,
) -> int:
    """Call it with JSON, `-` or nothing for standard input; print its output as JSON."""
    value = _json("the input", given)

    async def work(environment: "RemoteEnvironment") -> "ToolCallAnswer":
        return await environment.tools.called(
            name, value, version=version, idempotency_key=idempotency_key
        )

    answer = ask(ctx, work)
    # ASCII: a guest's text does not steer the terminal.
    click.echo(json.dumps(answer.model_dump(mode="json") if as_json else answer.output))
    return exit_codes.OK


@tool.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool) -> int:
    """List them: the version that is called, where, and what it is for."""

    async def work(environment: "RemoteEnvironment") -> "list[ToolMessage]":
        return [each async for each in environment.tools.each()]

    for found in ask(ctx, work):
        _line(found, as_json)
    return exit_codes.OK


@tool.command("versions")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def versions(ctx: click.Context, name: str, as_json: bool) -> int:
    """List the versions that are kept, the latest first."""
    for found in ask(ctx, lambda environment: environment.tools.versions(name)):
        _line(found, as_json)
    return exit_codes.OK


@tool.command("show")
@click.argument("name")
@click.option("--version", type=click.IntRange(1), help="By default the live one.")
@click.option("--source", "only_source", is_flag=True, help="Print its source alone.")
@click.pass_context
def show(ctx: click.Context, name: str, version: int | None, only_source: bool) -> int:
    """Print a version, whole, as JSON."""
    found = ask(ctx, lambda environment: environment.tools.get(name, version))
    if only_source and found.definition is not None:
        click.echo(found.definition.source, nl=False)
    else:
        click.echo(json.dumps(found.model_dump(mode="json"), indent=2))
    return exit_codes.OK


@tool.command("test")
@click.argument("name")
@click.option("--version", type=click.IntRange(1), help="By default the live one.")
@click.pass_context
def test(ctx: click.Context, name: str, version: int | None) -> int:
    """Run its examples once more. Exits with 114 where one fails."""

    def work(environment: "RemoteEnvironment") -> "Awaitable[ToolTestAnswer]":
        return environment.tools.test(name, version)

    answer = ask(ctx, work)
    for each in answer.examples:
        click.echo(report.neutral(f"example {each.example}: {each.failure or 'passed'}"))
    if not answer.examples:
        report.say(f"version {answer.version} has no examples")
    return exit_codes.OK if answer.passed else exit_codes.TOOL


@tool.command("logs")
@click.argument("name")
@click.option(
    "-n", "count", type=click.IntRange(1, 500), default=50, show_default=True, help="At most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def logs(ctx: click.Context, name: str, count: int, as_json: bool) -> int:
    """List the executions that were for it, newest first; `stockade jobs show ID` has each."""

    def work(environment: "RemoteEnvironment") -> "Awaitable[tuple[ExecutionSummary, ...]]":
        return environment.tools.logs(name, count)

    for each in ask(ctx, work):
        if as_json:
            click.echo(json.dumps(each.model_dump(mode="json")))
            continue
        begun = each.begun.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        of = "-" if each.tool_version is None else str(each.tool_version)
        outcome = str(each.outcome or each.state)
        click.echo(report.neutral(f"{each.id}  {begun}  {of:>4}  {each.purpose:<8}{outcome}"))
    return exit_codes.OK


@tool.command("rollback")
@click.argument("name")
@click.argument("version", type=click.IntRange(1))
@click.pass_context
def rollback(ctx: click.Context, name: str, version: int) -> int:
    """Call this version from now on. Calls that run go on."""
    ask(ctx, lambda environment: environment.tools.make_live(name, version))
    return exit_codes.OK


@tool.command("disable")
@click.argument("name")
@click.pass_context
def disable(ctx: click.Context, name: str) -> int:
    """Call it no more, until it is enabled."""
    ask(ctx, lambda environment: environment.tools.disable(name))
    return exit_codes.OK


@tool.command("enable")
@click.argument("name")
@click.pass_context
def enable(ctx: click.Context, name: str) -> int:
    """Call it again: the version that was live."""
    ask(ctx, lambda environment: environment.tools.enable(name))
    return exit_codes.OK


@tool.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def remove(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Remove them, with all of their versions."""

    async def work(environment: "RemoteEnvironment") -> None:
        for name in names:
            await environment.tools.remove(name)

    ask(ctx, work)
    return exit_codes.OK


@tool.command("export")
@click.option("--form", type=click.Choice(_FORMS), default="openai", show_default=True)
@click.pass_context
def export(ctx: click.Context, form: str) -> int:
    """Print all that are enabled as a model is told of them, as one JSON list."""
    from stockade.tools.exporting import Form

    found = ask(ctx, lambda environment: environment.tools.export(Form(form)))
    click.echo(json.dumps(found, indent=2))
    return exit_codes.OK


def _line(found: "ToolMessage", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json", exclude={"definition"})))
        return
    state = "disabled" if found.disabled else "live" if found.live else "-"
    label = f"{found.name}@{found.version}"
    told = f"{label:<24}{state:<10}{found.language:<12}{found.chosen_tier:<12}"
    click.echo(report.neutral(f"{told}{found.description.partition(chr(10))[0]}".rstrip()))


def _json(what: str, given: str) -> Any:
    """JSON as it stands there, of a file, or of standard input."""
    from stockade.tools import json_text

    text = given.strip()
    # No file is called so; everything else that JSON can be begins in one of these ways.
    inline = text[:1] in ("{", "[", '"') or text in ("true", "false", "null")
    data = text.encode("utf-8", "surrogateescape") if inline else _bytes(given)
    try:
        return json_text.load(data, _MOST_BYTES)
    except json_text.NoJson as error:
        raise click.UsageError(f"{what} {error}") from None


def _examples(given: str) -> list[dict[str, Any]]:
    found = _json("--examples", given)
    if not isinstance(found, list) or not all(
        isinstance(each, dict) and set(each) == {"input", "output"} for each in found
    ):
        raise click.UsageError('--examples: it is no list of {"input": ..., "output": ...}')
    return found


def _limits(given: tuple[str, ...]) -> Limits:
    values: dict[str, Any] = {}
    for each in given:
        name, _, value = each.partition("=")
        if name not in Limits.__slots__:
            raise click.UsageError(f"--limit: {name!r} is none of {', '.join(Limits.__slots__)}")
        try:
            values[name] = float(value) if "." in value else int(value)
        except ValueError:
            raise click.UsageError(f"--limit: {name}: {value!r} is no number") from None
    return Limits(**values)


def _bytes(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123 - a path need not be valid UTF-8
                data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Failure(f"{path!r}: {error.strerror}", exit_codes.NO_INPUT) from None
    if len(data) > _MOST_BYTES:
        raise Failure(f"{path!r}: it has more than {_MOST_BYTES} bytes", exit_codes.NO_INPUT)
    return data


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Failure(
            f"{path!r}: it is not UTF-8, at byte {error.start}", exit_codes.NO_INPUT
        ) from None
