"""Names that tenants give, and what may stand in them."""

import re

from stockade.port import InvalidRequest

_WORKSPACE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def is_workspace(name: str) -> bool:
    """Whether a workspace may have this name."""
    return _WORKSPACE.fullmatch(name) is not None


def check_workspace(name: str) -> None:
    """Raises :class:`InvalidRequest`."""
    if not is_workspace(name):
        raise InvalidRequest(
            "workspace",
            f"{name[:140]!r} is no name: 1 to 128 of letters, digits, '.', '-' and '_', "
            "a letter or digit at each end",
        )
