"""Ceilings on what one sandbox may use."""

import math
from dataclasses import dataclass, fields

from stockade.port.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# The highest value that can be meant seriously, per field. A larger one is a mistake of unit.
_LARGEST: dict[str, float] = {
    "wall_seconds": 24 * 3600,
    "cpu_seconds": 24 * 3600 * 256,
    "cpus": 256,
    "memory_bytes": 1024 * GIB,
    "processes": 32_768,
    "open_files": 1_048_576,
    "disk_bytes": 1024 * GIB,
    "inodes": 100_000_000,
    "output_bytes": 1024 * GIB,
    "result_bytes": GIB,
    "artefact_bytes": GIB,
    "record_bytes": 256 * MIB,
}
_SMALLEST: dict[str, float] = {
    "wall_seconds": 0.01,
    "cpu_seconds": 0.01,
    "cpus": 0.01,
    # A Python interpreter that is already warm needs a few MiB of its own.
    "memory_bytes": 16 * MIB,
    "processes": 1,
    "open_files": 16,
    "disk_bytes": 64 * KIB,
    "inodes": 16,
    "output_bytes": 0,
    "result_bytes": 0,
    "artefact_bytes": 0,
    "record_bytes": 0,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use at the most.

    A value outside the range of its field raises :class:`InvalidRequest`; nothing is
    clamped. There is no value for "unlimited".
    """

    wall_seconds: float = 30.0
    """Time from the program's start to its end, on a monotonic clock."""
    cpu_seconds: float = 60.0
    """CPU time of all processes of the execution together."""
    cpus: float = 2.0
    """How many CPUs' worth of time may be used at once; ``nproc`` inside says it rounded up."""
    memory_bytes: int = 512 * MIB
    """Memory of all processes together, the workspace (a tmpfs) included."""
    processes: int = 256
    """Processes and threads alive at once."""
    open_files: int = 1024
    """Open descriptors per process."""
    disk_bytes: int = 128 * MIB
    """Bytes in ``/workspace`` and ``/tmp`` together."""
    inodes: int = 16_384
    """Files and folders in ``/workspace`` and ``/tmp`` together."""
    output_bytes: int = 16 * MIB
    """Bytes on standard output and standard error together; one more ends the execution."""
    result_bytes: int = 1 * MIB
    """Bytes on the result channel (descriptor 3 inside)."""
    artefact_bytes: int = 64 * MIB
    """Bytes of all artefacts of one execution together."""
    record_bytes: int = 1 * MIB
    """Bytes of each output stream kept in the record, half head and half tail."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            name = f"limits.{field.name}"
            whole = field.type in (int, "int")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise InvalidRequest(name, f"{value!r} is not {kind}")
            low, high = _SMALLEST[field.name], _LARGEST[field.name]
            if not math.isfinite(value) or not low <= value <= high:
                raise InvalidRequest(name, f"{value!r} is outside {low:g} to {high:g}")
        if self.disk_bytes > self.memory_bytes:
            raise InvalidRequest(
                "limits.disk_bytes",
                f"{self.disk_bytes} exceeds limits.memory_bytes ({self.memory_bytes}): the workspace "
                "lives in memory and counts towards it; raise memory_bytes too",
            )
