"""The fixtures of this suite."""

from .fixtures import bare, port, real

__all__ = ["bare", "port", "real"]
