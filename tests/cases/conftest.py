"""The fixtures of the contract's suite."""

from tests.contract.fixtures import bare, real, traits

__all__ = ["bare", "real", "traits"]
