"""The user's terminal, lent to the program."""

import os
import re
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from stockade.port import TerminalSize

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def in_foreground(descriptor: int) -> bool:
    """Whether this process may use the terminal; a background job is stopped when it tries."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal: there is no job control on it


def size(descriptor: int) -> TerminalSize:
    """The terminal's size; 24 by 80 where it does not know its own."""
    columns, rows = os.get_terminal_size(descriptor)
    return TerminalSize(rows or 24, columns or 80)


def kind() -> str | None:
    """``TERM``, for the program, where it is a plain name."""
    name = os.environ.get("TERM", "")
    return name if _PLAIN_NAME.fullmatch(name) else None


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Pass every key through as bytes; put the terminal back however the block ends.

    ``TCSADRAIN``: what was typed ahead stays, for the program and for the shell after it.
    """
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        try:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        except termios.error:
            pass  # it hung up: there is nothing to put back
