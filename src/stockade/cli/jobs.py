"""``stockade jobs``: executions that a service runs, and nobody waits for."""

import asyncio
import errno
import json
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes, report
from stockade.cli.asking import ask
from stockade.cli.failure import Failure
from stockade.cli.host import Host
from stockade.port import Execution, Stream

if TYPE_CHECKING:
    from stockade.api.answers import ExecutionMessage, ExecutionSummary
    from stockade.client.remote import RemoteEnvironment


@click.group("jobs")
def jobs() -> None:
    """List, show, watch and cancel the executions of a service.

    `stockade --url URL run --detach ...` begins one, and prints its id.
    """


@jobs.command("list")
@click.option("--running", is_flag=True, help="Only those that run.")
@click.option(
    "-n", "count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def list_jobs(ctx: click.Context, running: bool, count: int, as_json: bool) -> int:
    """List them, newest first."""

    async def work(environment: "RemoteEnvironment") -> "list[ExecutionSummary]":
        found = environment.jobs.each(running=True if running else None, most=count)
        return [summary async for summary in found]

    for summary in ask(ctx, work):
        if as_json:
            click.echo(json.dumps(summary.model_dump(mode="json")))
            continue
        begun = summary.begun.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        outcome = str(summary.outcome or "")
        click.echo(
            report.neutral(f"{summary.id}  {begun}  {summary.state:<8}{outcome:<14}").rstrip()
        )
    return exit_codes.OK


@jobs.command("show")
@click.argument("id")
@click.pass_context
def show(ctx: click.Context, id: str) -> int:  # noqa: A002
    """Print its state, and its record when it has ended, as JSON."""

    async def work(environment: "RemoteEnvironment") -> "ExecutionMessage":
        return await environment.jobs.show(id)

    message = ask(ctx, work)
    # ASCII only: no guest can steer a terminal through it.
    click.echo(json.dumps(message.model_dump(mode="json", exclude_none=True), indent=2))
    return exit_codes.OK


@jobs.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.pass_context
def cancel(ctx: click.Context, ids: tuple[str, ...]) -> int:
    """End them; a record then says `cancelled`."""

    async def work(environment: "RemoteEnvironment") -> None:
        for id in ids:  # noqa: A001
            await environment.jobs.cancel(id)

    ask(ctx, work)
    return exit_codes.OK


@jobs.command("watch")
@click.argument("id")
@click.pass_context
def watch(ctx: click.Context, id: str) -> int:  # noqa: A002
    """Copy its output, what was kept of it first, and exit with its code, as `run` does.

    Ctrl-C ends the watching and not the job.
    """
    from stockade.cli.streams import Outlet

    host = ctx.find_object(Host) or Host()

    async def work(environment: "RemoteEnvironment") -> Execution:
        outlets = {Stream.STDOUT: Outlet(host.stdout), Stream.STDERR: Outlet(host.stderr)}
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def copy(stream: Stream, data: bytes) -> None:
            await outlets[stream].write(data, never)

        try:
            return await environment.jobs.watch(id, copy)
        finally:
            for outlet in outlets.values():
                outlet.close()

    try:
        execution = ask(ctx, work)
    except OSError as error:
        if error.errno == errno.EPIPE:
            return exit_codes.CLOSED_OUTPUT
        raise Failure(f"standard output: {error.strerror}", exit_codes.HOST_IO) from None
    said = report.line(execution)
    if said is not None:
        report.say(said)
    return report.exit_code(execution)
