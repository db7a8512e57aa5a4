"""The execution service: it owns sandboxes, and holds no secret and no database."""

from stockade.executor.local import open_local

__all__ = ["open_local"]
