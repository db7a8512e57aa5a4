"""The walls of a sandbox whose kernel is its own: a supervised process tree, known by its init."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from stockade.executor.boundary import BoundaryUsage
from stockade.executor.cgroups import GuestCeilings, GuestCgroup
from stockade.executor.descendants import awaits, go_on, stand_still
from stockade.executor.pid_namespace import PidNamespaceBoundary
from stockade.port import Enforcement, Limits, SandboxLost, Tier

# A ceiling of the pids controller would strike the kernel itself, which crashes when it cannot
# start a thread.
NO_CEILING: Final = 1 << 15
_TRIES: Final = 1000
_PAUSE_SECONDS: Final = 0.01


class ProcessTree(Protocol):
    """What a boundary takes over of a guest that was started."""

    pidfd: int
    """Of the init; -1 once it was taken."""

    async def ended(self) -> None:
        """Wait until nothing of it lives, then remove what the host keeps of it."""
        ...

    def close(self) -> None:
        """Close the descriptors that nobody has taken over."""
        ...


class SupervisedBoundary(PidNamespaceBoundary):
    """What runs is one kernel in user space, or one machine: none of its processes is a guest's."""

    def __init__(
        self,
        tier: Tier,
        image: str,
        enforcement: Mapping[str, Enforcement],
        cgroup: GuestCgroup,
        ceilings: GuestCeilings,
        parked_bytes: int,
        counts_processes: bool = False,
    ) -> None:
        super().__init__(
            tier,
            image,
            enforcement,
            cgroup,
            ceilings,
            counts_processes,
            parked_bytes,
            _nothing,
        )
        self._guest: ProcessTree | None = None
        self._spent = 0.0

    def take(self, guest: ProcessTree) -> None:
        """Take over a guest's process tree."""
        self._guest = guest
        self.hold(guest.pidfd)
        guest.pidfd = -1

    def count_from_here(self) -> None:
        """What was used until now was the start's."""
        usage = super().usage()
        self._spent = usage.cpu_seconds or 0.0
        self.parked_bytes = usage.peak_memory_bytes or self.parked_bytes

    def pause(self) -> None:
        """A kernel wakes thousands of times a second though its guest sleeps: it is stopped."""
        self.signal_init(signal.SIGUSR1)

    def resume(self) -> None:
        """The supervisor's init lets all of it go on."""
        self.signal_init(signal.SIGUSR2)

    async def freeze(self) -> None:
        """The kernel stands still, its agent too."""
        # Of two signals that wait for the init the lower comes first, whichever was sent first: the
        # one that let the sandbox out of the pool would undo this.
        await self._until(lambda init: not awaits(init, signal.SIGUSR2))
        await self._until(stand_still, signal.SIGUSR1)

    async def thaw(self) -> None:
        """It goes on."""
        await self._until(go_on, signal.SIGUSR2)

    async def _until(
        self, done: Callable[[int], bool], number: signal.Signals | None = None
    ) -> None:
        """Send a signal until it is so. Raises :class:`SandboxLost` where that takes seconds."""
        for _ in range(_TRIES):
            if number is not None:
                self.signal_init(number)
            if await asyncio.to_thread(done, self.init):
                return
            await asyncio.sleep(_PAUSE_SECONDS)
        raise SandboxLost(f"it did not obey within {_TRIES * _PAUSE_SECONDS:g} s")

    def thaw_to_end(self) -> None:
        """The agent is needed for it."""
        SupervisedBoundary.resume(self)

    def set_ceilings(self, limits: Limits) -> None:
        """As in every tier; and a kernel that waited has spent some time of its own."""
        super().set_ceilings(limits)
        self._spent = super().usage().cpu_seconds or 0.0

    def usage(self) -> BoundaryUsage:
        """The cgroup's counters; processes are known to the guest's kernel only."""
        usage = super().usage()
        cpu = usage.cpu_seconds
        return BoundaryUsage(
            cpu_seconds=None if cpu is None else max(0.0, cpu - self._spent),
            peak_memory_bytes=usage.peak_memory_bytes,
            oom_kills=usage.oom_kills,
        )

    @property
    def stops_whole(self) -> bool:
        """Where there are cgroups to know every process by, and to count it."""
        counted = (self.enforcement["memory_bytes"], self.enforcement["cpu_seconds"])
        return all(kept is Enforcement.ENFORCED for kept in counted)

    def stop(self) -> None:
        """SIGKILL to every process.

        None can return to its own code, nor fork, with that signal pending. What is left is
        the kernel's: freeing a guest's memory takes it milliseconds.
        """
        self._cgroup.kill()

    async def release(self) -> None:
        """Remove what was kept on the host for it, and its cgroups."""
        if self._guest is not None:
            await self._guest.ended()
            self._guest.close()
        await super().release()


def _nothing() -> None:
    pass
