"""One thing done with a service, for a command that is about nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from stockade.cli.host import Host
from stockade.cli.service import failure
from stockade.port import StockadeError

if TYPE_CHECKING:
    from stockade.client.remote import RemoteEnvironment

T = TypeVar("T")


def ask(ctx: click.Context, work: "Callable[[RemoteEnvironment], Awaitable[T]]") -> T:
    """Do something with the service, which must be named."""
    host = ctx.find_object(Host) or Host()
    service = host.service
    if service is None:
        raise click.UsageError(
            "it is about a service: name it with `stockade --url URL ...`, or in STOCKADE_URL", ctx
        )

    async def call() -> T:
        async with service.open() as environment:
            return await work(environment)

    try:
        return asyncio.run(call())
    except StockadeError as error:
        raise failure(error) from None
