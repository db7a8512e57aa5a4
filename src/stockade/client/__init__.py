"""The thin library that a platform imports."""

from stockade.client.blocking import BlockingEnvironment, BlockingSession

__all__ = ["BlockingEnvironment", "BlockingSession"]
