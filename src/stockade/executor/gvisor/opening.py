"""Opening the gVisor tier: finding runsc, and proving that guests start with it."""

import os
from collections.abc import Awaitable, Callable, Sequence

from stockade.executor.cgroups import CgroupTree
from stockade.executor.gvisor.runsc import find_runsc
from stockade.executor.gvisor.runtime import Runtime
from stockade.executor.gvisor.tier import GvisorTier
from stockade.executor.namespace.identity import Identities
from stockade.executor.namespace.image import find_host_image
from stockade.executor.opening import in_thread, open_and_prove
from stockade.executor.owners import Owners
from stockade.executor.sandbox import Profile
from stockade.executor.state import StateFolder


async def open_gvisor(
    cgroups: Callable[[], Awaitable[CgroupTree]],
    identities: Identities,
    *,
    first: Profile,
    modules: Sequence[str],
    snapshots: bool,
) -> GvisorTier:
    """Raises :class:`~stockade.port.Unavailable` where no guest can be started.

    runsc refuses a plain user's ``restore``: without root each sandbox is started cold.

    ``first``: what is asked for first, most likely. A sandbox of it is started as the proof,
    and kept for that call. ``snapshots=False`` starts each sandbox cold, which is cheaper
    for a process that makes one call. ``cgroups`` are asked for last, for they take longest.
    """
    image = find_host_image()
    runsc = await in_thread(find_runsc)

    async def build(state: StateFolder, owners: Owners | None) -> GvisorTier:
        return GvisorTier(
            Runtime(runsc, state.path, owners),
            state,
            image,
            await cgroups(),
            modules=modules,
            snapshots=snapshots and os.geteuid() == 0,
        )

    return await open_and_prove(identities, first, build)
