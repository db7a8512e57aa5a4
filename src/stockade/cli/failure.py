"""A command that cannot go on: one sentence, and the exit code."""

import click


class Failure(click.ClickException):
    """Anything but a usage error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
