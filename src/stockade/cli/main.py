"""The command ``stockade``. Its parts are imported when they are asked for."""

import errno
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

import stockade
from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.host import Host
from stockade.cli.report import discard, say

# Name, module with a click command of that name, the line for `stockade --help`.
COMMANDS = {
    "run": ("stockade.cli.run", "Run a program that nobody reviewed in a sandbox of its own."),
    "doctor": ("stockade.cli.doctor", "Say what this machine can start, and how limits are kept."),
    "attack": ("stockade.cli.attack.command", "Try what the boundary must stop, on this machine."),
    "egress": ("stockade.cli.egress", "Say what a sandbox may reach, and why not."),
    "up": ("stockade.cli.up", "Start executor and gateway, and show their state."),
    "gateway": ("stockade.cli.gateway", "Serve the HTTP API to tenants, by way of executors."),
    "broker": ("stockade.cli.broker", "Hold the secrets of tools, and put them into requests."),
    "executor": ("stockade.cli.executor", "Serve executions over HTTP, to a gateway."),
    "jobs": ("stockade.cli.jobs", "List, show, watch and cancel executions of a service."),
    "sandboxes": ("stockade.cli.sandboxes", "List and close sandboxes of a service."),
    "credential": ("stockade.cli.credential", "Store what tools show to the services they call."),
    "tool": ("stockade.cli.tool", "Store, test and call tools: programs from JSON to JSON."),
    "image": ("stockade.cli.image", "Build what microVMs start from, and list what was built."),
    "config": ("stockade.cli.config", "Check the services' configuration, and show its values."),
    "tenant": ("stockade.cli.tenant", "Say who may use the gateway, for what, and how much."),
    "key": ("stockade.cli.key", "Make and revoke the keys that callers have."),
    "audit": ("stockade.cli.audit", "Read the audit trail, and verify that nobody changed it."),
    "completion": ("stockade.cli.completion", "Print the completion script for a shell."),
}

AT_A_SERVICE = ("run", "jobs", "sandboxes", "credential", "tool")
"""The commands that --url is for."""


class Stockade(click.Group):
    """The group. A command's module is imported only when that command runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command; there are: {', '.join(COMMANDS)}", ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(COMMANDS[cmd_name][0])
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "stockade":
                raise
            raise Failure(
                f"`stockade {cmd_name}` needs {error.name}: pip install 'stockade[service]'",
                exit_codes.UNAVAILABLE,
            ) from error
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and exit: with sentences for errors, and codes that a script can tell."""
        extra["standalone_mode"] = False
        extra["prog_name"] = extra.get("prog_name") or "stockade"
        sys.exit(_guarded(lambda: super(Stockade, self).main(*args, **extra)))


def _guarded(run: Callable[[], object]) -> int:
    stdout = sys.stdout
    try:
        try:
            code = run()
            if stdout is not None:
                stdout.flush()
        except click.UsageError as error:
            say(error.format_message())
            if error.ctx is not None:
                say(f"`{error.ctx.command_path} --help` says more")
            return exit_codes.USAGE
        except Failure as error:
            say(error.message)
            return error.code
        except (click.Abort, KeyboardInterrupt):
            return exit_codes.CANCELLED
        else:
            return code if isinstance(code, int) else exit_codes.OK
    except SystemExit as leaving:
        # click meets a reader that went away by swapping sys.stdout and leaving with 1.
        if sys.stdout is not stdout:
            return exit_codes.CLOSED_OUTPUT
        return leaving.code if isinstance(leaving.code, int) else exit_codes.OK
    except OSError as error:
        # Of standard output: what else a command reads and writes is named by its own sentence.
        discard(1)
        if error.errno == errno.EPIPE:
            return exit_codes.CLOSED_OUTPUT
        say(f"standard output: {error.strerror or error}")
        return exit_codes.HOST_IO
    except Exception:  # noqa: BLE001 - a code of its own, so that it is not taken for the program's
        import traceback

        traceback.print_exc()
        say("this is a fault of Stockade itself, not of the program")
        return exit_codes.INTERNAL


@click.group(
    cls=Stockade,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`stockade run --help` has examples. The exit codes are in the documentation.",
)
@click.version_option(stockade.__version__, prog_name="stockade", message="%(prog)s %(version)s")
@click.option(
    "--url", metavar="URL", help="Run at this service, not on this machine; or STOCKADE_URL."
)
@click.option(
    "--key-file", metavar="FILE", help="Has the key for it; else STOCKADE_KEY has the key itself."
)
@click.option("--ca", metavar="FILE", help="Certificates to trust instead of the system's.")
@click.option(
    "--client-certificate", metavar="FILE", help="A certificate to show, and its key, in one file."
)
@click.pass_context
def cli(
    ctx: click.Context,
    url: str | None,
    key_file: str | None,
    ca: str | None,
    client_certificate: str | None,
) -> None:
    """Run code that nobody reviewed, inside a boundary with stated properties.

    \b
    stockade run script.py
    stockade run -c 'print(6 * 7)'
    stockade run -- node --version
    stockade doctor
    stockade --url https://stockade.example run script.py
    """
    command = ctx.invoked_subcommand
    if command not in AT_A_SERVICE:
        for option in ("url", "key_file", "ca", "client_certificate"):
            if ctx.params[option] is not None:
                raise click.UsageError(
                    f"--{option.replace('_', '-')} is for {', '.join(AT_A_SERVICE)}; "
                    f"{command} is about this machine",
                    ctx,
                )
        return
    url = url or os.environ.get("STOCKADE_URL")
    if not url:
        if key_file or ca or client_certificate:
            raise click.UsageError("there is no --url that the key and certificates are for", ctx)
        return
    from stockade.cli import service

    host = ctx.find_object(Host) or Host()
    if ctx.resilient_parsing or host.service is not None:
        return
    found = service.find(url, key_file, ca, client_certificate)
    ctx.obj = host._replace(service=found, open_environment=lambda _tiers: found.open())


def main(host: Host | None = None) -> NoReturn:
    """The entry point. ``host`` is for tests of the whole process."""
    _hold_standard_descriptors()
    cli.main(obj=host)


def _hold_standard_descriptors() -> None:
    """Fill standard descriptors that are closed, or the next file opened would become one.

    Opened the wrong way round, so that reading or writing still fails as on a closed one.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDWR)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)


if __name__ == "__main__":
    main()
