"""Which CPUs a sandbox may run on: the count that it sees is the one it was granted."""

import math
import os


class CpuRotation:
    """Hands out the executor's CPUs in turn."""

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next = 0

    def choose(self, cpus: float) -> list[int]:
        """As many CPUs as the share needs; none: no restriction."""
        count = math.ceil(cpus)
        if count >= len(self._cpus):
            return []
        first = self._next
        self._next = (first + count) % len(self._cpus)
        return [self._cpus[(first + index) % len(self._cpus)] for index in range(count)]
