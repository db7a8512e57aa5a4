"""``stockade run``."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from stockade.cli import exit_codes, files, report
from stockade.cli.egress_options import lines_of, policy_of, print_event
from stockade.cli.failure import Failure
from stockade.cli.host import Host
from stockade.cli.options import (
    TIER,
    TRUST_LEVEL,
    FileName,
    RunCommand,
    SectionedOption,
    limit_option,
    limits,
    refusal,
)
from stockade.cli.package_options import Asked, Prepare, preparation
from stockade.cli.package_options import failure as packages_failure
from stockade.cli.service import failure
from stockade.port import (
    PROFILES,
    Command,
    EgressSink,
    Execution,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    JavaScriptSource,
    Outcome,
    Program,
    PythonScript,
    PythonSource,
    Refused,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    Tier,
    TrustLevel,
    Unavailable,
    WasmModule,
)
from stockade.port.policy import refusal as refusal_of
from stockade.port.program import MAX_SOURCE_BYTES

if TYPE_CHECKING:
    from stockade.cli.conduct import Conducted

# A script's ending to the interpreter of the image that runs it; Python has a program of its own.
_INTERPRETERS = {".js": "node", ".mjs": "node", ".sh": "sh"}
_TRUST = SandboxRequest().trust
_SOURCE_RULE = "the most that source may have"
_INPUT_RULE = "the most that a job may be given"


def _option(*names: str, section: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(*names, cls=SectionedOption, section=section, **attributes)


@click.command(
    "run",
    cls=RunCommand,
    # What follows the program is the program's, whatever it looks like.
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.argument(
    "words", nargs=-1, type=FileName(), metavar="SCRIPT | -c CODE | -- PROGRAM  [ARGUMENTS]..."
)
@_option("-c", "code", metavar="CODE", section="Program", help="Run this Python source.")
@_option(
    "-e",
    "expression",
    metavar="EXPRESSION",
    section="Program",
    help="Evaluate this expression: `input` is the JSON on standard input, its value is printed.",
)
@_option(
    "--fresh",
    is_flag=True,
    section="Program",
    help="Execute Python anew: its own address layout and hash seed, not a warm interpreter's.",
)
@_option(
    "--input",
    "input_file",
    type=FileName(),
    section="Program",
    help="Standard input from this file.",
)
@_option(
    "--tty/--no-tty",
    "tty",
    default=None,
    section="Program",
    help="Give the program a terminal.  [default: when standard input and output are one]",
)
@_option(
    "--file",
    "sources",
    multiple=True,
    metavar="SRC[:DEST]",
    type=FileName(),
    section="Files and variables",
    help="Put a file into /workspace before the start; the last ':' splits.  (repeatable)",
)
@_option(
    "--artefact",
    "artefacts",
    multiple=True,
    metavar="NAME[:DEST]",
    section="Files and variables",
    help="Bring a file out of /workspace after the end, to DEST, a file or a folder; "
    "the first ':' splits.  (repeatable)",
)
@_option(
    "--result",
    "result",
    metavar="FILE",
    type=FileName(),
    section="Files and variables",
    help="Put what the program wrote on descriptor 3 into this file; '-' for standard output.",
)
@_option(
    "--force",
    is_flag=True,
    section="Files and variables",
    help="Let --artefact and --result replace files that exist.",
)
@_option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    section="Files and variables",
    help="Set a variable; without a value, to the one it has here.  (repeatable)",
)
@limit_option("wall_seconds", "Time from start to end, like 30s or 2m.")
@limit_option("cpu_seconds", "CPU time of all processes together.")
@limit_option("cpus", "CPUs that may be used at once.")
@limit_option("memory_bytes", "Memory, the workspace included, like 512M or 1.5G.")
@limit_option("processes", "Processes and threads alive at once.")
@limit_option("open_files", "Open files per process.")
@limit_option("disk_bytes", "Bytes in /workspace and /tmp.")
@limit_option("inodes", "Files and folders in /workspace and /tmp.")
@limit_option("output_bytes", "Bytes on standard output and error together.")
@limit_option("result_bytes", "Bytes on descriptor 3.")
@limit_option("artefact_bytes", "Bytes of all artefacts together.")
@limit_option("record_bytes", "Bytes of each stream kept for --json.")
@_option(
    "--trust",
    type=TRUST_LEVEL,
    default=_TRUST,
    section="Sandbox",
    help=f"How far the program is trusted: {', '.join(TrustLevel)}. It decides which "
    f"boundaries are strong enough.  [default: {_TRUST}]",
)
@_option(
    "--tier",
    type=TIER,
    section="Sandbox",
    help="This boundary and no other.  [default: the strongest that can be started; but "
    f"{Tier.VM}, which boots a machine for each call, must be named]",
)
@_option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="RULE",
    section="Network",
    help="Let it reach this, and nothing else: api.example.com:443, *.example.com, "
    "'GET https://api.example.com/v1/', tcp://db.example.com:5432, 10.1.0.0/16:443.  (repeatable)",
)
@_option(
    "--egress-profile",
    "profiles",
    multiple=True,
    metavar="NAME",
    section="Network",
    help=f"Let it reach what a common need takes: {', '.join(sorted(PROFILES))}.  (repeatable)",
)
@_option(
    "--egress-policy",
    "policy_file",
    metavar="FILE",
    type=FileName(),
    section="Network",
    help="Let it reach what this file says.",
)
@_option(
    "--credential",
    "credentials",
    multiple=True,
    metavar="NAME",
    section="Network",
    help="Of a service: put this credential into requests to where it was granted for; the program "
    "never has it.  (repeatable)",
)
@_option(
    "--egress-log",
    is_flag=True,
    section="Network",
    help="Say on standard error what becomes of each connection, as it happens.",
)
@_option(
    "--requirements",
    metavar="FILE",
    type=FileName(),
    section="Packages",
    help="Install these Python packages first, in a sandbox that reaches their index alone; the "
    "program has them, and no network for it.",
)
@_option(
    "--package-json",
    metavar="FILE",
    type=FileName(),
    section="Packages",
    help="Likewise those of npm, with the package-lock.json beside it.",
)
@_option(
    "--install-scripts",
    is_flag=True,
    section="Packages",
    help="Let packages run code while they are installed: source distributions, npm's scripts.",
)
@_option(
    "--reinstall",
    is_flag=True,
    section="Packages",
    help="Resolve and install again what is kept from an earlier run.",
)
@_option("--index-url", metavar="URL", section="Packages", help="The Python index.")
@_option(
    "--index-host",
    "index_hosts",
    multiple=True,
    metavar="HOST",
    section="Packages",
    help="A host that the Python index leads to for its files.  (repeatable)",
)
@_option("--npm-registry", metavar="URL", section="Packages", help="The registry of npm.")
@_option(
    "--detach",
    is_flag=True,
    section="Output",
    help="Of a service: do not wait, print the job's id; `stockade jobs` has the rest.",
)
@_option(
    "--json",
    "as_json",
    is_flag=True,
    section="Output",
    help="Print the whole record as one JSON object; output is not copied as it comes.",
)
@_option(
    "-v",
    "--verbose",
    is_flag=True,
    section="Output",
    help="Say on standard error where it ran, how long, and what it used.",
)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    code: str | None,
    expression: str | None,
    fresh: bool,
    input_file: str | None,
    tty: bool | None,
    sources: tuple[str, ...],
    artefacts: tuple[str, ...],
    result: str | None,
    force: bool,
    variables: tuple[str, ...],
    trust: TrustLevel,
    tier: Tier | None,
    allowed: tuple[str, ...],
    profiles: tuple[str, ...],
    policy_file: str | None,
    credentials: tuple[str, ...],
    egress_log: bool,
    requirements: str | None,
    package_json: str | None,
    install_scripts: bool,
    reinstall: bool,
    index_url: str | None,
    index_hosts: tuple[str, ...],
    npm_registry: str | None,
    detach: bool,
    as_json: bool,
    verbose: bool,
    **ceilings: float | None,
) -> int:
    """Run a program that nobody reviewed in a sandbox of its own, like a plain command.

    Options come first: everything after the program belongs to the program. Its input,
    output and exit code are passed through; when it is not allowed to end by itself, one
    line on standard error says why, and which option raises the limit.

    \b
    stockade run script.py --its own --options
    stockade run -c 'import sys; print(sys.argv)' a b
    stockade run app.js                      also .mjs and .sh
    stockade run -- node -p 6*7              any program of the image
    stockade run --tier wasm app.js          in WebAssembly; .py too, and module.wasm
    stockade run -e 'input.total > 100.0' < order.json
    stockade run --allow api.example.com:443 fetch.py
    stockade run --requirements requirements.txt script.py
    generate | stockade run -                Python source from standard input
    stockade run --memory 1G --timeout 2m heavy.py < data > out
    stockade run --file data.csv --artefact plot.png:figures/ draw.py
    stockade run --json -c 'print(1)' | jq -r .stdout.head.text
    """
    host = ctx.find_object(Host) or Host()
    packages = Asked(
        requirements, package_json, install_scripts, reinstall, index_url, index_hosts, npm_registry
    )
    if detach:
        _require_detachable(host, tty, artefacts, result, as_json, packages)
    chosen = limits(ceilings)
    if packages.anything and host.service is not None:
        raise click.UsageError(
            "--requirements, --package-json: are for sandboxes of this machine; a service gives no "
            "workspace out that packages were installed in"
        )
    if credentials and host.service is None:
        raise click.UsageError(
            "--credential: a broker lends them, by a service: stockade --url URL run --credential ..."
        )
    egress = policy_of(allowed, profiles, policy_file, credentials, log=egress_log)
    shown = expression is not None and result is None and not as_json
    targets = _targets(artefacts, "-" if shown else result, force, as_json)
    targets = targets._replace(result_ending=b"\n" if shown else b"")
    script = _script(
        words,
        code,
        expression,
        fresh,
        dashes=ctx.meta["stockade.dashes"],
        in_wasm=tier is Tier.WASM,
        host=host,
    )
    given = script.files | _sources(sources, chosen.disk_bytes, taken=script.name)
    environment = _variables(variables)
    # Nobody types the JSON of an expression that may have no need of any.
    typed = expression is not None and os.isatty(host.stdin)
    stdin = _stdin(host, input_file, used_up=script.from_stdin or typed)
    size = None
    has_terminal = expression is None and not (
        tier is Tier.WASM or isinstance(script.program, WasmModule)
    )
    if tty and not has_terminal and expression is None:
        raise click.UsageError("--tty: a program in WebAssembly has no terminal")
    if has_terminal and not detach and _wants_terminal(host, tty, stdin, as_json):
        from stockade.cli import terminal

        size = terminal.size(host.stdout)
        name = terminal.kind()
        environment = ({"TERM": name} if name else {}) | environment
    try:
        request = ExecutionRequest(
            script.program,
            environment=environment,
            files=given,
            artefacts=tuple(targets.artefacts),
            terminal=size,
        )
        sandbox = SandboxRequest(limits=chosen, trust=trust, tier=tier, egress=egress)
    except InvalidRequest as error:
        raise click.UsageError(refusal(error)) from None
    if detach:
        content = b""
        if stdin is not None and input_file is not None:
            # Nobody waits whom it could be asked of later.
            content = files.read_bounded(stdin, "--input", MAX_SOURCE_BYTES, _INPUT_RULE)
        return _submit(ctx, host, request, sandbox, content)
    told = print_event if egress_log else None
    prepare = preparation(packages, sandbox, told)
    conducted = _conduct(
        host, request, sandbox, stdin, live=not as_json, on_egress=told, prepare=prepare
    )
    return _finish(host, conducted, targets, as_json=as_json, verbose=verbose)


def _require_detachable(
    host: Host,
    tty: bool | None,
    artefacts: tuple[str, ...],
    result: str | None,
    as_json: bool,
    packages: Asked,
) -> None:
    if host.service is None:
        raise click.UsageError("--detach: is for a service: stockade --url URL run --detach ...")
    for option, given in (
        ("--tty", bool(tty)),
        ("--artefact", bool(artefacts)),
        ("--result", result is not None),
        ("--json", as_json),
    ):
        if given:
            raise click.UsageError(f"--detach: nobody waits for what {option} is to deliver")
    if packages.anything:
        raise click.UsageError("--detach: a job has a sandbox of its own, without packages")


def _submit(
    ctx: click.Context,
    host: Host,
    request: ExecutionRequest,
    sandbox: SandboxRequest,
    stdin: bytes,
) -> int:
    from stockade.cli.asking import ask

    identity = ask(ctx, lambda environment: environment.jobs.submit(request, sandbox, stdin=stdin))
    _print(host, identity.encode() + b"\n")
    return exit_codes.OK


class _Script(NamedTuple):
    """The program, and the file it needs in the workspace."""

    program: Program
    files: dict[str, bytes]
    name: str = ""
    """The workspace name that the program takes up; empty for none."""
    from_stdin: bool = False


def _script(
    words: tuple[str, ...],
    code: str | None,
    expression: str | None,
    fresh: bool,
    *,
    dashes: bool,
    in_wasm: bool,
    host: Host,
) -> _Script:
    try:
        if expression is not None:
            if words or code is not None or fresh:
                raise click.UsageError("-e: an expression is a program of its own")
            return _Script(ExpressionSource(expression), {})
        if code is not None:
            return _Script(PythonSource(code, words, fresh), {})
        if not words:
            raise click.UsageError("there is no program: give SCRIPT, or -c CODE, or -- PROGRAM")
        if dashes:
            return _Script(Command(words), {})
        first, rest = words[0], words[1:]
        if first == "-":
            source = files.read_bounded(host.stdin, "the source", MAX_SOURCE_BYTES, _SOURCE_RULE)
            return _Script(PythonSource(source, rest, fresh), {}, from_stdin=True)
        name = os.path.basename(first)  # noqa: PTH119 - a name need not be valid UTF-8
        ending = os.path.splitext(name)[1]  # noqa: PTH122
        if ending == ".py":
            source = files.read_input(first, MAX_SOURCE_BYTES, _SOURCE_RULE)
            return _Script(PythonScript(name, source, rest, fresh), {}, name)
        if ending == ".wasm":
            module = files.read_input(first, MAX_SOURCE_BYTES, _SOURCE_RULE)
            return _Script(WasmModule(module, rest), {})
        if in_wasm and ending == ".js":
            source = files.read_input(first, MAX_SOURCE_BYTES, _SOURCE_RULE)
            return _Script(JavaScriptSource(source, rest), {})
        if ending in _INTERPRETERS:
            source = files.read_input(first, MAX_SOURCE_BYTES, _SOURCE_RULE)
            # A name like -x.sh would be an option to the interpreter.
            spelled = f"./{name}" if name.startswith("-") else name
            argv = (_INTERPRETERS[ending], spelled, *rest)
            return _Script(Command(argv), {name: source}, name)
    except InvalidRequest as error:
        raise click.UsageError(refusal(error)) from None
    remedy = f"for a program of the image put -- in front of it: stockade run -- {' '.join(words)}"
    if os.path.isdir(first):  # noqa: PTH112
        raise Failure(f"{first!r} is a folder; a file is needed here", exit_codes.NO_INPUT)
    if not os.path.lexists(first):
        raise Failure(f"{first!r}: there is no such file; {remedy}", exit_codes.NO_INPUT)
    raise click.UsageError(f"{first!r} is no .py, .js, .mjs, .sh or .wasm file; {remedy}")


def _sources(sources: tuple[str, ...], ceiling: int, *, taken: str) -> dict[str, bytes]:
    given: dict[str, bytes] = {}
    for text in sources:
        # The last colon: a host's path may have some itself.
        source, _, destination = text.rpartition(":") if ":" in text else (text, "", "")
        if not source:
            raise click.UsageError(f"--file {text!r}: names no file; it is SRC or SRC:DEST")
        base = os.path.basename(source)  # noqa: PTH119
        inside = _inside(destination) or base
        if inside.endswith("/"):
            inside += base
        rule = "the workspace may hold no more, --disk raises it"
        content = files.read_input(source, ceiling, rule)
        if inside in given or inside == taken:
            raise click.UsageError(f"--file {text!r}: /workspace/{inside} would be written twice")
        given[inside] = content
    return given


def _inside(path: str) -> str:
    """A workspace path, which may be spelled with ``/workspace/`` in front."""
    return path.removeprefix("/workspace/")


class _Targets(NamedTuple):
    """Where on the host files will go, settled before anything runs."""

    artefacts: dict[str, files.Target]
    result: files.Target | None
    result_on_stdout: bool
    result_ending: bytes = b""


def _targets(
    artefacts: tuple[str, ...], result: str | None, force: bool, as_json: bool
) -> _Targets:
    chosen: dict[str, files.Target] = {}
    for text in artefacts:
        name, _, destination = text.partition(":")
        name = _inside(name)
        base = os.path.basename(name)  # noqa: PTH119
        if not base:
            raise click.UsageError(f"--artefact {text!r}: names no file; it is NAME or NAME:DEST")
        if name in chosen:
            raise click.UsageError(f"--artefact {text!r}: {name!r} is asked for twice")
        chosen[name] = files.target("--artefact", destination or base, base, force)
    if result == "-":
        if as_json:
            raise click.UsageError("--result '-': the JSON object has the result already")
        return _Targets(chosen, None, True)
    into = files.target("--result", result, "result", force) if result is not None else None
    paths = [str(target) for target in chosen.values()] + ([str(into)] if into else [])
    for path in paths:
        if [os.path.abspath(other) for other in paths].count(os.path.abspath(path)) > 1:  # noqa: PTH100
            raise click.UsageError(f"{path!r} would be written twice; give different names")
    return _Targets(chosen, into, False)


def _variables(variables: tuple[str, ...]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for text in variables:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"--env {text!r}: names no variable; it is NAME or NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise click.UsageError(
                    f"--env {name!r}: is not set here; give it a value: --env {name}=VALUE"
                )
            value = os.environ[name]
        environment[name] = value
    return environment


def _stdin(host: Host, input_file: str | None, *, used_up: bool) -> int | None:
    if input_file is not None and input_file != "-":
        return files.open_input(input_file)
    if used_up:
        return None
    if os.isatty(host.stdin):
        from stockade.cli import terminal

        # A background job that reads its terminal is stopped for good.
        return host.stdin if terminal.in_foreground(host.stdin) else None
    return host.stdin


def _wants_terminal(host: Host, tty: bool | None, stdin: int | None, as_json: bool) -> bool:
    possible = stdin is not None and os.isatty(stdin) and os.isatty(host.stdout) and not as_json
    if tty and not possible:
        raise click.UsageError(
            "--tty: standard input and output must both be a terminal, in the foreground, "
            "without --json"
        )
    return possible and tty is not False


def _conduct(
    host: Host,
    request: ExecutionRequest,
    sandbox: SandboxRequest,
    stdin: int | None,
    *,
    live: bool,
    on_egress: EgressSink | None,
    prepare: Prepare | None,
) -> "Conducted":
    from stockade.cli.conduct import conduct

    try:
        return conduct(
            host, request, sandbox, stdin=stdin, live=live, on_egress=on_egress, prepare=prepare
        )
    except Unavailable as error:
        # Whether the executor could not be opened or refused the request, it is said alike.
        missing = error.missing
        why = refusal_of(sandbox.trust, sandbox.tier, missing) if missing else str(error)
        _fail(host, Execution(Outcome.UNAVAILABLE, why), as_json=not live)
    except InvalidRequest as error:
        if error.field in ("url", "key", "ca", "client_certificate"):
            raise failure(error) from None
        raise click.UsageError(refusal(error)) from None
    except Refused as error:
        raise failure(error) from None
    except SandboxLost as error:
        _fail(host, Execution(Outcome.LOST, str(error)), as_json=not live)
    except OSError as error:
        raise Failure(f"no sandbox could be made: {error}", exit_codes.HOST_IO) from None
    except StockadeError as error:
        # Of packages: what was not installed, or is not what it was.
        raise packages_failure(error) from None


def _fail(host: Host, execution: Execution, *, as_json: bool) -> NoReturn:
    """Nothing ran: say why, also to who reads the record."""
    code = report.exit_code(execution)
    if as_json:
        _print_record(host, execution, code)
    raise Failure(report.line(execution, here=host.service is None) or "", code)


def _print_record(host: Host, execution: Execution, code: int) -> None:
    from stockade.cli.record import as_json

    _print(host, as_json(execution, code).encode() + b"\n")


def _finish(
    host: Host,
    conducted: "Conducted",
    targets: _Targets,
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Deliver what was asked for, say what there is to say, and settle the exit code."""
    from stockade.cli.conduct import Cause

    execution = conducted.execution
    if not conducted.at_line_start and os.isatty(host.stderr):
        click.echo(err=True)
    if execution is None:
        report.say("cancelled before the program started")
        return exit_codes.CANCELLED
    code = _code(conducted, execution)
    if as_json:
        _print_record(host, execution, code)
    if targets.result_on_stdout and execution.result and conducted.cause is None:
        _print(host, execution.result + targets.result_ending)
    code = _deliver(execution, targets, code)
    if conducted.cause is Cause.OUTPUT_CLOSED:
        return code  # quietly: whoever went away does not want to hear of it
    if conducted.cause is Cause.HOST_FAILED:
        report.say(conducted.failure)
    elif conducted.cause is Cause.TERMINATED:
        report.say("cancelled by a signal to stockade")
    elif conducted.cause is Cause.INTERRUPTED:
        report.say("cancelled by Ctrl-C")
    elif (said := report.line(execution)) is not None:
        report.say(said)
    if verbose:
        for line in report.verbose_lines(execution):
            report.say(line)
        for line in lines_of(execution.egress) if execution.egress is not None else ():
            report.say(line)
    return code


def _code(conducted: "Conducted", execution: Execution) -> int:
    from stockade.cli.conduct import Cause

    if conducted.cause is Cause.OUTPUT_CLOSED:
        return exit_codes.CLOSED_OUTPUT
    if conducted.cause is Cause.HOST_FAILED:
        return exit_codes.HOST_IO
    if conducted.cause is not None:
        # Even where the program ended first by a hair: its output may have been cut.
        return exit_codes.CANCELLED
    return report.exit_code(execution)


def _deliver(execution: Execution, targets: _Targets, code: int) -> int:
    """Write artefacts and the result. What is absent or fails counts where all else went well."""
    for artefact in execution.artefacts:
        if artefact.name in targets.artefacts:
            code = _write(targets.artefacts[artefact.name], artefact.data, code)
    for missing in execution.missing_artefacts:
        report.say(f"artefact {missing.name!r} is not there: {missing.reason}")
        code = code or exit_codes.NO_INPUT
    if targets.result is not None or targets.result_on_stdout:
        if execution.result is None:
            report.say("the program wrote no result on descriptor 3")
            code = code or exit_codes.NO_INPUT
        elif targets.result is not None:
            code = _write(targets.result, execution.result, code)
    return code


def _write(target: files.Target, data: bytes, code: int) -> int:
    try:
        target.write(data)
    except OSError as error:
        report.say(f"{str(target)!r} cannot be written: {error.strerror}")
        return code or exit_codes.HOST_IO
    return code


def _print(host: Host, data: bytes) -> None:
    try:
        files.write_all(host.stdout, data)
    except BrokenPipeError:
        raise click.exceptions.Exit(exit_codes.CLOSED_OUTPUT) from None
    except OSError as error:
        _fail_output(error)


def _fail_output(error: OSError) -> NoReturn:
    raise Failure(f"standard output: {error.strerror}", exit_codes.HOST_IO) from None
