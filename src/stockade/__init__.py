"""Stockade runs code that nobody reviewed inside a boundary with stated properties."""

__version__ = "0.1.0"
