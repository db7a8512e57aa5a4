"""What a process that lives for months gives back to its machine."""

import ctypes
from typing import Final

from stockade.port import KIB, MIB

# mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 128 * KIB
_LEFT_BYTES: Final = 4 * MIB


def give_large_memory_back() -> bool:
    """Let what is large be mapped by itself, and go back to the kernel as it is freed.

    glibc does so at first, and no more from the first such end on: then an output of megabytes goes
    between what is small and stays, and what it leaves is a hole that the process keeps. With twelve
    callers that was 170 MiB of nothing. False where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(
        mallopt(parameter, value) == 1
        for parameter, value in (
            (_M_MMAP_THRESHOLD, _LARGE_BYTES),
            (_M_TRIM_THRESHOLD, _LEFT_BYTES),
        )
    )
