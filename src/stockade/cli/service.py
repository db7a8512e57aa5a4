"""The service that commands speak to, when there is one: ``--url``, and the key for it."""

import os
import stat
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.port import (
    InvalidRequest,
    Refused,
    SandboxLost,
    StockadeError,
    ToolFailed,
    Unavailable,
)

if TYPE_CHECKING:
    from stockade.client.remote import RemoteEnvironment

_MOST_KEY_BYTES = 4096


class Service(NamedTuple):
    """Where it is, and what shows who asks."""

    url: str
    key: str
    ca: str | None = None
    certificate: str | None = None

    def __repr__(self) -> str:
        return f"<Service {self.url}>"  # without the key

    def open(self) -> "AbstractAsyncContextManager[RemoteEnvironment]":
        """The port over HTTP."""
        try:
            from stockade.client import open_remote
        except ImportError as error:
            raise Failure(
                f"what speaks to a service is not installed ({error}): "
                "pip install 'stockade[client]'",
                exit_codes.UNAVAILABLE,
            ) from None
        return open_remote(self.url, key=self.key, ca=self.ca, client_certificate=self.certificate)


def find(url: str, key_file: str | None, ca: str | None, certificate: str | None) -> Service:
    """The service at this URL, with the key of the file or of the environment."""
    if key_file is not None:
        key = read_key(key_file)
    else:
        key = os.environ.get("STOCKADE_KEY", "").strip()
    if not key:
        raise Failure(
            f"there is no key for {url}: put it into STOCKADE_KEY, or into a file of your own and "
            "name that with --key-file",
            exit_codes.REFUSED,
        )
    return Service(url, key, ca, certificate)


def read_key(path: str) -> str:
    """The key in a file, which other users may not read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path need not be valid UTF-8
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
                raise Failure(
                    f"--key-file {path!r}: every user can read or change it: chmod 600 {path}",
                    exit_codes.NO_INPUT,
                )
            data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise Failure(f"--key-file {path!r}: {error.strerror}", exit_codes.NO_INPUT) from None
    if len(data) > _MOST_KEY_BYTES:
        raise Failure(f"--key-file {path!r}: is longer than a key", exit_codes.NO_INPUT)
    return data.decode("ascii", "replace").strip()


def failure(error: StockadeError) -> click.ClickException:
    """What a command says of an error of the service's, and its exit code."""
    match error:
        case InvalidRequest(field="url"):
            return click.UsageError(f"--url: {str(error).removeprefix('url: ')}")
        case InvalidRequest(field="key"):
            return Failure(
                f"the key for it: {str(error).removeprefix('key: ')}", exit_codes.REFUSED
            )
        case InvalidRequest():
            return click.UsageError(str(error))
        case Refused():
            return Failure(_refused(error), _code(error))
        case SandboxLost():
            return Failure(f"lost: {error}", exit_codes.LOST)
        case ToolFailed():
            more = f"; `stockade jobs show {error.execution}` says more" if error.execution else ""
            return Failure(f"the tool failed ({error.reason}): {error}{more}", exit_codes.TOOL)
        case Unavailable():
            return Failure(f"unavailable: {error}", exit_codes.UNAVAILABLE)
    return Failure(str(error), exit_codes.INTERNAL)


def _code(error: Refused) -> int:
    return exit_codes.LATER if error.code == "budget_exhausted" else exit_codes.REFUSED


def _refused(error: Refused) -> str:
    later = ""
    if error.retry_after is not None:
        later = f"; try again in {error.retry_after:.3g} s"
    return f"refused ({error.code}): {str(error).rstrip('. ')}{later}"
