"""The fixtures of this suite."""

from .fixtures import bare, port, real, traits

__all__ = ["bare", "port", "real", "traits"]
