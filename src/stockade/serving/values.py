"""How many values a body in JSON has, before anything parses it.

A parser takes a moment for 48 MiB of text, and many seconds and gigabytes for 48 MiB of ``[],[],``;
it holds Python's lock meanwhile, in whatever thread it is, and everybody waits.
"""

import re
from typing import Final

from stockade.port import KIB

MOST_VALUES: Final = 100_000
"""Strings, commas and opening brackets together: 30,000 files by name are not more."""
_SMALL_BYTES: Final = 64 * KIB
"""What has so few bytes has few values."""
_MARK: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[,\[{]', re.DOTALL)


class TooManyValues(ValueError):
    """The message says how many may be."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it has more than {most} values: send large content as one string")


class ValueCount:
    """Of a body that comes in pieces, each of which is looked at as it comes."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._count = 0
        self._size = 0
        self._begun = bytearray()
        """What is to be looked at together with what comes next."""

    def __repr__(self) -> str:
        return f"<ValueCount {self._count} in {self._size} bytes>"

    def add(self, piece: bytes) -> None:
        """Raises :class:`TooManyValues`."""
        self._size += len(piece)
        self._begun += piece
        if self._size <= _SMALL_BYTES:
            return
        text = bytes(self._begun)
        self._begun.clear()
        for mark in _MARK.finditer(text):
            if mark[1] == b"":
                # A string that goes on, perhaps in the middle of an escape.
                self._begun += b'"' + text[mark.end() :]
                return
            self._count += 1
            if self._count > self._most:
                raise TooManyValues(self._most)
