"""One sandbox as the executor holds it: its walls and its wire."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stockade.executor.boundary import Boundary
from stockade.executor.link import Link
from stockade.port import MIB, SandboxRequest, Tier

# What a machine's own kernel, the agent and page tables take beside a guest's memory.
_KERNEL_BYTES: Final = 128 * MIB
_RAM_STEP: Final = 64 * MIB
_MACHINES: Final = frozenset({Tier.MICROVM, Tier.VM})


@dataclass(frozen=True, slots=True)
class Profile:
    """What is fixed when a sandbox is made. Sandboxes of one profile are interchangeable."""

    tier: Tier
    tenant: str
    disk_bytes: int
    inodes: int
    cpus: float
    machine_bytes: int
    """RAM of a machine of its own, which stays as it is; 0 where there is none."""
    memory_bytes: int = field(compare=False)
    """The ceiling to start with; like ``processes`` it can be set again before an execution."""
    processes: int = field(compare=False)

    @classmethod
    def of(cls, tier: Tier, request: SandboxRequest) -> "Profile":
        """What a request asks for, of the tier that was chosen for it."""
        limits = request.limits
        return cls(
            tier=tier,
            tenant=request.tenant,
            disk_bytes=limits.disk_bytes,
            inodes=limits.inodes,
            cpus=limits.cpus,
            machine_bytes=_ram(limits.memory_bytes) if tier in _MACHINES else 0,
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
        )


def _ram(memory_bytes: int) -> int:
    """For a guest with so much, its kernel and its agent; few different sizes."""
    return -(-(memory_bytes + _KERNEL_BYTES) // _RAM_STEP) * _RAM_STEP


class Sandbox:
    """A live sandbox whose receipt was checked. It serves one execution or one session."""

    def __init__(self, profile: Profile, boundary: Boundary, link: Link) -> None:
        self.profile = profile
        self.boundary = boundary
        self.link = link
        self.made_at = time.monotonic()
        self.frozen = False
        """Whether all that the guest runs stands still."""
        self._at_release: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Sandbox {self.boundary.tier} {self.profile.tenant} {self.link!r}>"

    @property
    def alive(self) -> bool:
        """Whether its wire still stands."""
        return not self.link.broken.done()

    async def freeze(self) -> None:
        """Stop all that the guest runs."""
        self.frozen = True
        await self.boundary.freeze()
        if not self.frozen:
            # Its program was ended meanwhile, and what waits for the next one is not to stand still.
            await self.boundary.thaw()

    async def thaw(self) -> None:
        """Let it go on."""
        if self.frozen:
            self.frozen = False
            await self.boundary.thaw()

    def thaw_to_end(self) -> None:
        """Where it is frozen, let its program be ended."""
        if self.frozen:
            self.frozen = False
            self.boundary.thaw_to_end()

    async def end(self) -> None:
        """Kill what lives inside; return when it is gone and the last byte was read."""
        self.boundary.kill()
        await self.boundary.gone()
        # Every writer is dead: the pipe's rest comes, then its end.
        if not self.link.broken.done():
            await asyncio.shield(self.link.broken)

    def at_release(self, callback: Callable[[], None]) -> None:
        """Call back once nothing of it is held any more, or cannot be given back."""
        self._at_release = callback

    async def release(self) -> None:
        """Give back what it held on the host."""
        self.link.close()
        try:
            await self.boundary.release()
        finally:
            callback, self._at_release = self._at_release, None
            if callback is not None:
                callback()

    async def destroy(self) -> None:
        """``end`` and ``release``, also when the waiter is cancelled."""
        await self.end()
        await self.release()
