"""The execution service: it owns sandboxes, and holds no secret and no database."""

from stockade.executor.local import AuthMode, open_local
from stockade.executor.pool import PoolMetrics, PoolPolicy

__all__ = ["AuthMode", "PoolMetrics", "PoolPolicy", "open_local"]
