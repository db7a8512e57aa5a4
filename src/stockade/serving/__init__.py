"""Serving HTTP with every bound set: what executor and gateway have in common, and no more."""

from stockade.serving.bounds import Bounds
from stockade.serving.server import BoundedServer, Listening

__all__ = ["BoundedServer", "Bounds", "Listening"]
