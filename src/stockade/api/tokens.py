"""The internal token: what gateway and executor both take for one, and where they read it."""

import os
import stat
from pathlib import Path
from typing import Final

SHORTEST: Final = 32
LONGEST: Final = 512
_LEAST_DIFFERENT: Final = 8
_LEAST_UNKNOWN: Final = 16
"""Characters that are no part of a well-known word."""
_KNOWN_WORDS: Final = (
    "changeme", "change-me", "secret", "password", "default", "example", "token", "stockade", "test",
)  # fmt: skip
_MAKE_ONE: Final = "`openssl rand -hex 32` makes one"


class TokenFault(ValueError):
    """It is none; the message says what to change, without the token itself."""


def check_token(token: str) -> str:
    """The token without blanks around it. Raises :class:`TokenFault` for one to be guessed."""
    token = token.strip()
    if not token:
        raise TokenFault(
            f"there is no token: it is {SHORTEST} random characters or more; {_MAKE_ONE}"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise TokenFault("the token has characters that no header takes: use letters and digits")
    unknown = lowered = token.lower()
    for word in _KNOWN_WORDS:
        unknown = unknown.replace(word, "")
    if (
        len(token) < SHORTEST
        or len(set(lowered)) < _LEAST_DIFFERENT
        or len(unknown) < _LEAST_UNKNOWN
    ):
        raise TokenFault(
            f"the token can be guessed: it has fewer than {SHORTEST} characters, or few different "
            f"ones, or a well-known word; {_MAKE_ONE}"
        )
    if len(token) > LONGEST:
        raise TokenFault(f"the token has more than {LONGEST} characters")
    return token


def read_token(path: Path) -> str:
    """What is in a file that only its owner and group can read. Raises :class:`TokenFault`."""
    try:
        # Of a pipe that nobody writes, the opening would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise TokenFault(f"{path} is no regular file")
            if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise TokenFault(f"others can read or change {path}: chmod 640 it, or 600")
            return file.read(LONGEST + 100).decode("ascii", "replace")
    except OSError as error:
        raise TokenFault(f"{path} cannot be read: {error.strerror}") from None
