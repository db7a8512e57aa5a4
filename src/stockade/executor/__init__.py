"""The execution service: it owns sandboxes, and holds no secret and no database."""

from stockade.executor.local import AuthMode, open_local

__all__ = ["AuthMode", "open_local"]
