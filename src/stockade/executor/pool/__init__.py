"""Sandboxes started ahead of need. Each serves once, then is destroyed."""

from stockade.executor.pool.metrics import PoolMetrics, ShelfMetrics
from stockade.executor.pool.policy import PoolPolicy
from stockade.executor.pool.pool import Pool

__all__ = ["Pool", "PoolMetrics", "PoolPolicy", "ShelfMetrics"]
