"""How an execution ended: one of a closed list."""

from enum import StrEnum


class Outcome(StrEnum):
    """Made by the host from its own evidence, never from what a guest printed."""

    OK = "ok"
    NONZERO_EXIT = "nonzero_exit"
    SIGNAL = "signal"
    WALL_CLOCK = "wall_clock"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    PROCESSES = "processes"
    OPEN_FILES = "open_files"
    DISK = "disk"
    INODES = "inodes"
    OUTPUT = "output"
    EGRESS_DENIED = "egress_denied"
    INVALID = "invalid"
    CANCELLED = "cancelled"
    LOST = "lost"
    UNAVAILABLE = "unavailable"
