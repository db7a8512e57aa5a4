"""The thin library that a platform imports."""

from typing import TYPE_CHECKING, Any

from stockade.client.blocking import BlockingEnvironment, BlockingSession

if TYPE_CHECKING:
    from stockade.client.remote import RemoteEnvironment, open_remote
    from stockade.client.session import RemoteSession
    from stockade.client.transport import Timeouts

__all__ = [
    "BlockingEnvironment",
    "BlockingSession",
    "RemoteEnvironment",
    "RemoteSession",
    "Timeouts",
    "open_remote",
]

# What speaks HTTP is loaded when it is asked for: it needs the extra "client", and some time.
_HOME = {
    "RemoteEnvironment": "remote",
    "RemoteSession": "session",
    "Timeouts": "transport",
    "open_remote": "remote",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
