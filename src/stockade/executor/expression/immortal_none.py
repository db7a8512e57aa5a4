"""Keeps ``None`` alive, as Python 3.12 does by itself.

cel-expr-python 0.1.3 hands out ``None`` without taking a reference, once for each null of a
result: a tenant whose expression yields enough of them brings the count to nothing, and Python
aborts ("deallocating None"). In Python 3.12 and later the count of ``None`` does not change.
"""

import ctypes
import sys
from typing import Final

_MANY: Final = 1 << 60  # more than can ever be taken away, and far from the end of 64 bits
_IMMORTAL_BY_ITSELF: Final = (3, 12)


def keep_none_alive() -> None:
    """Raise the count once. Raises :class:`RuntimeError` where it did not show."""
    if sys.version_info >= _IMMORTAL_BY_ITSELF or sys.getrefcount(None) > _MANY // 2:
        return
    # Read and written in two steps: what another thread adds or takes in between is lost, and is
    # nothing beside what is added.
    count = ctypes.c_ssize_t.from_address(id(None))
    count.value += _MANY
    if sys.getrefcount(None) < _MANY // 2:
        raise RuntimeError("None cannot be kept alive in this Python: use Python 3.12 or later")
