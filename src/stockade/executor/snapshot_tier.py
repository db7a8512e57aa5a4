"""What the tiers have in common whose sandboxes are copies of a saved kernel."""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from stockade.executor.affinity import CpuRotation
from stockade.executor.cgroups import CgroupError, CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.link import Link
from stockade.executor.proof import abandon, check_receipt
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.state import StateFolder
from stockade.executor.supervised_boundary import ProcessTree, SupervisedBoundary
from stockade.executor.templates import Removable, Templates
from stockade.port import SandboxLost, Tier, Unavailable

HELLO_SECONDS: Final = 60.0
_PROOF_SECONDS: Final = 10.0
"""How long the sandbox that proved the tier may serve a call: the pool does not know its age."""


class Guest(ProcessTree, Protocol):
    """A kernel that was started, and the agent in it."""

    from_guest: int
    to_guest: int

    @property
    def words(self) -> str:
        """What it said beside the wire: the last of it, on one line."""
        ...

    async def ready(self) -> None:
        """Wait until the agent is to be sent on. Raises :class:`Unavailable`."""
        ...

    async def last_words(self) -> str:
        """``words``, when it is ending."""
        ...


class Template(Removable, Protocol):
    """What sandboxes of one profile are started from."""

    @property
    def saved(self) -> bool:
        """Whether guests are restored rather than started cold."""
        ...

    async def start(self, name: str, doors: Sequence[int], cpus: Sequence[int]) -> Guest:
        """A guest about to say HELLO, or to be ready. Raises Unavailable."""
        ...


T = TypeVar("T", bound=Template)


class SnapshotTier(Generic[T]):
    """A guest is started and warmed once per profile; each sandbox is a copy of it."""

    tier: Tier
    emulated = False
    letter: str
    """Of its sandboxes' names."""

    def __init__(self, state: StateFolder, cgroups: CgroupTree) -> None:
        self._state = state
        self._cgroups = cgroups
        self._cpus = CpuRotation()
        self._numbers = itertools.count(1)
        self._templates: Templates[T] = Templates(self._make_template)
        self._proof: Sandbox | None = None

    # --- what each does in its way ---

    def _fixed(self, profile: Profile) -> Profile:
        """The profile without what its template does not depend on."""
        raise NotImplementedError

    async def _make_template(self, profile: Profile) -> T:
        """Start a guest, warm it, save it. It leaves nothing when it fails."""
        raise NotImplementedError

    def _ceilings(self, profile: Profile) -> GuestCeilings:
        """Of the cgroup, to start with."""
        raise NotImplementedError

    def _boundary(
        self, profile: Profile, cgroup: GuestCgroup, ceilings: GuestCeilings
    ) -> SupervisedBoundary:
        raise NotImplementedError

    def _send_on(self, guest: Any, profile: Profile) -> None:
        """Let the agent say HELLO."""
        raise NotImplementedError

    async def _warm(self, _sandbox: Sandbox) -> None:
        """Let a copy do once what its call will do. Raises Unavailable or SandboxLost."""

    def _faults(self, receipt: Mapping[str, object], cpus: int | None) -> list[str]:
        """What the receipt lacks, a sentence each. ``cpus``: how many it may see; None: any."""
        raise NotImplementedError

    # --- and what all do ---

    async def prove(self, profile: Profile) -> None:
        """Start a sandbox; it is the first that ``create`` gives. Raises what that raises."""
        self._proof = await self._start(profile)

    async def create(self, profile: Profile) -> Sandbox:
        """A sandbox that has proven its walls. Raises :class:`Unavailable` or SandboxLost."""
        proof, self._proof = self._proof, None
        if proof is not None:
            fresh = time.monotonic() - proof.made_at < _PROOF_SECONDS
            if proof.profile == profile and proof.alive and fresh:
                return proof
            await proof.destroy()
        return await self._start(profile)

    async def forget(self, tenant: str) -> None:
        """Remove the tenant's snapshots, but one from which a sandbox is being started."""
        self._templates.forget(tenant)

    async def close(self) -> None:
        """Remove the snapshots. The sandboxes are gone by then."""
        if self._proof is not None:
            await self._proof.destroy()
        await self._templates.close()
        self._state.close()

    async def _start(self, profile: Profile) -> Sandbox:
        async with self._templates.use(self._fixed(profile)) as template:
            return await self._start_from(template, profile)

    async def _start_from(self, template: T, profile: Profile) -> Sandbox:
        name = f"{self.letter}{next(self._numbers)}"
        ceilings = self._ceilings(profile)
        try:
            cgroup = self._cgroups.create(f"{self.tier}-{name}", ceilings)
        except (CgroupError, OSError) as error:
            raise Unavailable(f"no cgroup for a sandbox: {error}") from error
        boundary = self._boundary(profile, cgroup, ceilings)
        link = None
        try:
            cpus = self._cpus.choose(profile.cpus)
            guest = await template.start(name, cgroup.join_fds(), cpus)
            boundary.take(guest)
            cgroup.close_fds()
            if not template.saved:
                await guest.ready()
            self._send_on(guest, profile)
            link = Link(asyncio.get_running_loop(), guest.from_guest, guest.to_guest)
            guest.from_guest = guest.to_guest = -1
            await self._check_receipt(link, guest, len(cpus) or None)
            cgroup.open_counters()
            boundary.count_from_here()
        except OSError as error:
            await asyncio.shield(abandon(boundary, link))
            raise Unavailable(f"no sandbox could be made: {error}") from error
        except BaseException:
            await asyncio.shield(abandon(boundary, link))
            raise
        sandbox = Sandbox(profile, boundary, link)
        if template.saved:
            try:
                await self._warm(sandbox)
            except BaseException:
                await asyncio.shield(sandbox.destroy())
                raise
            boundary.count_from_here()
        return sandbox

    async def _check_receipt(self, link: Link, guest: Guest, cpus: int | None) -> None:
        try:
            await check_receipt(link, HELLO_SECONDS, lambda receipt: self._faults(receipt, cpus))
        except SandboxLost as error:
            words = await guest.last_words()
            raise SandboxLost(f"{error}; it said: {words}" if words else str(error)) from None
