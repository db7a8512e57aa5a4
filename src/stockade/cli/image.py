"""``stockade image``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.report import neutral, say
from stockade.cli.sizes import format_size

if TYPE_CHECKING:
    from stockade.images.store import Image

Result = TypeVar("Result")

_STORE = "Images are kept below STOCKADE_IMAGES, or else ~/.cache/stockade/images."


@click.group("image", epilog=_STORE)
def image() -> None:
    """Build what guests start from, and list what was built."""


@image.command("build", epilog=_STORE)
@click.option(
    "--for",
    type=click.Choice(["microvm"]),
    required=True,
    expose_value=False,
    help="The tier whose guests start from it.",
)
@click.option(
    "--package",
    "packages",
    metavar="NAME",
    multiple=True,
    help="A Debian package more, with what it depends on; may be repeated.",
)
@click.option("--mirror", metavar="URL", help="Of Debian.  [default: the system's own]")
@click.option(
    "--update", is_flag=True, help="Ask for newer packages, though that was done within a day."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def build(packages: tuple[str, ...], mirror: str | None, update: bool, as_json: bool) -> int:
    """Build the image from Debian's packages, and make it the current one.

    Packages are fetched by apt with folders of its own: nothing is installed, and no root is
    needed. The same packages make the same image. Where nothing has changed, the one that is
    there stays.
    """
    from stockade.images.build import build
    from stockade.images.resolved import Request

    request = Request(packages, mirror, update)
    made, fresh = _carry_out(lambda: build(request, _store(), say))
    if as_json:
        click.echo(json.dumps({**_as_data(made), "changed": fresh}))
    else:
        click.echo(neutral(f"{made.digest}  {made.folder}"))
    return exit_codes.OK


@image.command("list", epilog=_STORE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_images(as_json: bool) -> int:
    """List what was built; the current one, which guests start from, is first."""
    from stockade.images.store import Store

    found = _carry_out(lambda: Store(_store()).images())
    if as_json:
        click.echo(json.dumps({"images": [_as_data(each) for each in found]}))
        return exit_codes.OK
    for each in found:
        mark = "*" if each.current else " "
        size = format_size(each.size)
        click.echo(neutral(f"{mark} {each.digest}  {size}  {each.kernel}  {each.folder}"))
    if not found:
        say("there is no image: `stockade image build --for microvm` makes one")
    return exit_codes.OK


def _store() -> Path:
    from stockade.executor.microvm.image import image_store

    return image_store()


def _carry_out(work: Callable[[], Result]) -> Result:
    from stockade.port import StockadeError

    try:
        return work()
    except StockadeError as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from error
    except OSError as error:
        raise Failure(
            f"{error.filename or 'the image'}: {error.strerror}", exit_codes.HOST_IO
        ) from error


def _as_data(found: "Image") -> dict[str, object]:
    """One image for a program."""
    return {
        "digest": found.digest,
        "for": "microvm",
        "machine": found.machine,
        "kernel": found.kernel,
        "packages": found.packages,
        "bytes": found.size,
        "folder": str(found.folder),
        "current": found.current,
    }
