"""What ends a build."""

from stockade.port import StockadeError


class CannotBuild(StockadeError):
    """The image cannot be built here and now. The message says why and what to do."""
