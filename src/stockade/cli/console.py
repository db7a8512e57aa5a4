"""Tables on standard output. Imports rich: for those commands only that print one."""

import errno
import sys

from rich.console import Console

from stockade.cli.report import coloured


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Leave what it means that the reader went away to the command: rich would exit with 1."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def open_console(width: int) -> Console:
    """Standard output. ``width`` is for a pipe or a file; a terminal has its own."""
    terminal = sys.stdout.isatty()
    return _Output(
        no_color=not coloured(sys.stdout), width=None if terminal else width, highlight=False
    )
