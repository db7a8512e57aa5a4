"""Room for sandboxes within the limit of open files of this process."""

import resource
from pathlib import Path
from typing import NamedTuple

PER_SANDBOX = 16
"""Descriptors that a sandbox in use may take: about 10 are measured, and a tier may need more."""
_SPARE = 128
"""Left for zygotes, and for all else that this process opens later."""


class Room(NamedTuple):
    """How many sandboxes may be alive, and what it is that allows no more."""

    sandboxes: int
    limited_by: str


def make_room_beside(wanted: int) -> int:
    """Raise the limit by so many descriptors; how many there are for those that want them.

    Where the hard limit leaves less, a quarter of all: then those who want them compete with
    sandboxes, and some is better than none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = soft + wanted if hard == resource.RLIM_INFINITY else min(hard, soft + wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return min(wanted, max(raised - soft, raised // 4))


def make_room(sandboxes: int) -> Room:
    """Room for so many, or for as many as this process may have files open.

    The soft limit is raised as far as that needs. It is low for the sake of select(2) alone,
    and meant to be raised (0pointer.net/blog/file-descriptor-limits.html); a program in a
    sandbox has a limit of its own. Where the hard limit does not suffice either, there is
    less room, and calls wait: that beats a failure in the middle of a start, or of whatever
    else this process opens.
    """
    taken = sum(1 for _ in Path("/proc/self/fd").iterdir()) + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = taken + sandboxes * PER_SANDBOX
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Room(sandboxes, "pool.most_alive")
    return Room(max(1, (soft - taken) // PER_SANDBOX), f"ulimit -n: {soft} open files")
