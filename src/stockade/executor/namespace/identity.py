"""Host user ids for sandboxes: no two that live at the same time share one.

As root, an executor locks a range of ids that nobody else on the host uses, and hands out
slices of it.  A slice belongs to one warm interpreter: its user namespace maps uid 0 to the
slice's first id, and each sandbox started from it takes one of the ids that follow.  The same
numbers serve as group ids.  Without privilege there is only one's own id.
"""

import fcntl
import os
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from stockade.port import Unavailable

# Above what systemd, Docker and Podman give out by default for users and containers
# (systemd.io/UIDS-GIDS), and below what systemd keeps for greeters, which is also where
# numbers no longer fit into 31 bits.
REGION_BASE = 0x6000_0000
REGION_END = 0x7FFE_0000
RANGE_IDS = 1 << 24
SLICE_IDS = 4097
LOCKS = Path("/run/stockade/uids")

# In a container that has only some ids: leave those alone that its own users have.
_CONTAINER_BASE = 8192
_CONTAINER_END = 65_534  # nobody
_SMALLEST_RANGE = 8192

Extent = tuple[int, int]
"""First id, and the one after the last."""


class IdentityError(Unavailable):
    """No ids can be had; the message says what is missing and what to do."""


class IdentitySlice:
    """The ids of one warm interpreter and of the sandboxes started from it."""

    __slots__ = ("_free", "_used", "base", "count")

    def __init__(self, base: int, count: int = SLICE_IDS, first_offset: int = 1) -> None:
        self.base = base
        """The host id of uid 0 in the interpreter's user namespace."""
        self.count = count
        self._free = deque(range(first_offset, count))
        self._used: set[int] = set()

    @property
    def in_use(self) -> int:
        """How many ids sandboxes hold."""
        return len(self._used)

    def acquire(self) -> int:
        """The offset that has been free the longest, so that none is used again at once.

        What an id owned (a file, a keyring, a shared segment) might outlive its sandbox.
        """
        if not self._free:
            raise IdentityError(f"all {self.count - 1} ids from {self.base} are in use")
        offset = self._free.popleft()
        self._used.add(offset)
        return offset

    def release(self, offset: int) -> None:
        """Give an id back once nothing that has it lives."""
        if offset not in self._used:
            raise ValueError(f"offset {offset} is not in use")
        self._used.remove(offset)
        self._free.append(offset)

    def host_id(self, offset: int) -> int:
        """The id on the host."""
        if not 0 <= offset < self.count:
            raise ValueError(f"offset {offset} is outside the slice of {self.count}")
        return self.base + offset

    def __repr__(self) -> str:
        return f"<IdentitySlice {self.base}+{self.count}: {len(self._used)} in use>"


class SoleSlice:
    """The one id that an unprivileged user has; every sandbox shares it."""

    __slots__ = ("_used", "base", "count")

    def __init__(self) -> None:
        self.base = os.geteuid()
        self.count = 1
        self._used = 0

    @property
    def in_use(self) -> int:
        """How many sandboxes hold the id."""
        return self._used

    def acquire(self) -> int:
        """Offset 0, always."""
        self._used += 1
        return 0

    def release(self, offset: int) -> None:
        """Give it back."""
        if offset != 0 or not self._used:
            raise ValueError(f"offset {offset} is not in use")
        self._used -= 1

    def host_id(self, offset: int) -> int:
        """One's own."""
        if offset != 0:
            raise ValueError(f"offset {offset} is outside the slice of 1")
        return self.base

    def __repr__(self) -> str:
        return f"<SoleSlice {self.base}: {self._used} in use>"


class Identities(Protocol):
    """Where slices come from."""

    @property
    def distinct(self) -> bool:
        """Whether sandboxes have ids of their own."""
        ...

    def slice(self) -> IdentitySlice | SoleSlice:
        """Take the ids for one warm interpreter."""
        ...

    def give_back(self, taken: IdentitySlice | SoleSlice) -> None:
        """Return a slice once the interpreter and all that came from it are gone."""
        ...

    def close(self) -> None:
        """Let others have the ids, once everything that has one is gone."""
        ...


class SoleIdentity:
    """For an executor without privilege."""

    distinct = False

    def slice(self) -> SoleSlice:
        """One's own id."""
        return SoleSlice()

    def give_back(self, taken: IdentitySlice | SoleSlice) -> None:
        """Nothing was taken."""

    def close(self) -> None:
        """Nothing is held."""

    def __repr__(self) -> str:
        return f"<SoleIdentity {os.geteuid()}>"


class IdentityRange:
    """The ids of one executor, locked against every other on this host.

    The lock is held by an open file, so it ends with the process, however that ends.  A
    child that inherited the file by a fork keeps it locked: as it should, for such a child
    may hold ids.
    """

    distinct = True

    def __init__(
        self,
        base: int | None = None,
        *,
        end: int | None = None,
        locks: Path = LOCKS,
        uid_map: Path = Path("/proc/self/uid_map"),
        gid_map: Path = Path("/proc/self/gid_map"),
    ) -> None:
        """Lock a range.

        ``base`` and ``end`` bound the region that ranges are cut from; by default
        ``0x60000000`` to ``0x7ffe0000``, or in a container the largest part that it has.
        ``locks`` is the directory of the lock files; executors that share a host (or
        containers with the same id map) must share it.
        """
        if os.geteuid() != 0:
            raise IdentityError("only root can give sandboxes user ids of their own")
        mapped = _mapped(uid_map, gid_map)
        self._region, self.size = _region(mapped, base, end)
        self._locks = locks
        self._held: dict[int, int] = {}
        self._free: deque[int] = deque()
        self._taken: set[int] = set()
        self._lock_one()

    @property
    def ranges(self) -> tuple[int, ...]:
        """The first id of each range that is held: one, but in a container that has few ids."""
        return tuple(index * self.size for index in self._held)

    def slice(self) -> IdentitySlice:
        """Take the slice that has been free the longest."""
        if not self._free:
            self._lock_one()
        base = self._free.popleft()
        self._taken.add(base)
        return IdentitySlice(base)

    def give_back(self, taken: IdentitySlice | SoleSlice) -> None:
        """Return a slice once the interpreter and all that came from it are gone."""
        if taken.base not in self._taken:
            raise ValueError(f"{taken!r} is not of this range")
        self._taken.remove(taken.base)
        self._free.append(taken.base)

    def close(self) -> None:
        """Unlock, once everything that has one of the ids is gone."""
        self._free.clear()
        self._taken.clear()
        while self._held:
            _, fd = self._held.popitem()
            os.close(fd)

    def _lock_one(self) -> None:
        try:
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self._locks, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise IdentityError(
                f"cannot keep the locks of user ids in {self._locks}: {error.strerror}"
            ) from error
        try:
            self._lock_in(directory)
        finally:
            os.close(directory)

    def _lock_in(self, directory: int) -> None:
        first, end = self._region
        lowest = -(-first // self.size)
        count = end // self.size - lowest
        # Containers do not see one another's locks unless they share the directory. A
        # start at random makes it unlikely, no more, that two of them take the same.
        start = random.SystemRandom().randrange(count)
        for step in range(count):
            # Counted from id 0, so that one file means the same ids whatever the region.
            index = lowest + (start + step) % count
            if index in self._held:
                continue
            name = str(index) if self.size == RANGE_IDS else f"{index}-of-{self.size}"
            try:
                fd = os.open(
                    name,
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                    dir_fd=directory,
                )
            except OSError as error:
                raise IdentityError(f"{self._locks / name}: {error.strerror}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            # Never removed: a new file under the same name would be a second lock.
            self._held[index] = fd
            base = index * self.size
            self._free.extend(range(base, base + self.size - SLICE_IDS + 1, SLICE_IDS))
            return
        raise IdentityError(
            f"all {count} ranges of user ids from {first} to {end - 1} are locked in "
            f"{self._locks} by other executors"
        )

    def __repr__(self) -> str:
        held = " ".join(f"{base:#x}" for base in self.ranges)
        return f"<IdentityRange {held}: {len(self._taken)} slices taken>"


def open_identities(locks: Path = LOCKS) -> Identities:
    """As root a range of ids; else one's own."""
    return IdentityRange(locks=locks) if os.geteuid() == 0 else SoleIdentity()


def _mapped(uid_map: Path, gid_map: Path) -> list[Extent]:
    """Ids that exist in this user namespace both as user and as group."""
    return [
        (max(low, other_low), min(high, other_high))
        for low, high in _extents(uid_map)
        for other_low, other_high in _extents(gid_map)
        if max(low, other_low) < min(high, other_high)
    ]


def _extents(path: Path) -> Iterator[Extent]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error
    spans = []
    for line in lines:
        inside, _, count = (int(word) for word in line.split())
        spans.append((inside, inside + count))
    joined: list[Extent] = []
    for low, high in sorted(spans):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    yield from joined


def _region(mapped: list[Extent], base: int | None, end: int | None) -> tuple[Extent, int]:
    """The region that ranges are cut from, and their size."""
    if base is not None:
        region = (base, REGION_END if end is None else end)
        if base <= 0 or not any(low <= base and region[1] <= high for low, high in mapped):
            raise IdentityError(
                f"the ids {region[0]} to {region[1] - 1} are not all in this user namespace, "
                f"which has {_spell(mapped)}"
            )
        if base % RANGE_IDS or region[1] - base < RANGE_IDS:
            raise IdentityError(
                f"the ids {base} to {region[1] - 1} must start at a multiple of {RANGE_IDS} and "
                "be at least as many"
            )
        return region, RANGE_IDS
    if any(low <= REGION_BASE and high >= REGION_END for low, high in mapped):
        return (REGION_BASE, REGION_END), RANGE_IDS
    # What was mapped for a container above its ordinary users, else below "nobody".
    parts = [(max(low, _CONTAINER_END + 2), high) for low, high in mapped]
    parts += [(max(low, _CONTAINER_BASE), min(high, _CONTAINER_END)) for low, high in mapped]
    low, high = max(parts, key=lambda part: part[1] - part[0], default=(0, 0))
    size = RANGE_IDS
    # Several ranges, so that a second executor finds one; not so small as to hold no slice.
    while size > _SMALLEST_RANGE and high // size - -(-low // size) < 4:
        size //= 2
    if high // size - -(-low // size) < 1:
        raise IdentityError(
            f"this user namespace has too few ids ({_spell(mapped)}): sandboxes need {size} in "
            f"a row, from {_CONTAINER_BASE} on; map more into the container (Docker: userns-remap "
            "with 65536 in /etc/subuid and /etc/subgid; Podman: --userns=auto:size=65536)"
        )
    return (low, high), size


def _spell(mapped: list[Extent]) -> str:
    return ", ".join(f"{low} to {high - 1}" for low, high in mapped) or "none"
