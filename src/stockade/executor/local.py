"""Opening an executor inside the calling process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stockade.executor.cgroups import find_cgroups
from stockade.executor.environment import LocalEnvironment
from stockade.executor.namespace.identity import open_identities
from stockade.executor.namespace.image import find_host_image
from stockade.executor.namespace.tier import NamespaceTier
from stockade.executor.namespace.zygote import PRELOADED
from stockade.executor.namespace.zygotes import Zygotes
from stockade.port import SandboxRequest, StockadeError

PARKED = 4
"""Sandboxes parked per profile: enough for a burst of calls on two cores."""


@asynccontextmanager
async def open_local(*, warm: bool = True, parked: int = PARKED) -> AsyncIterator[LocalEnvironment]:
    """The tiers of this machine, behind the port; everything ends with the context.

    ``warm=False`` parks and preloads nothing, for a process that makes one call.
    Raises :class:`~stockade.port.Unavailable` where no boundary can be had.
    """
    image = find_host_image()
    zygotes = Zygotes(image, open_identities(), PRELOADED if warm else ())
    # Both take tens of milliseconds; the first call waits for the slower one only.
    starting = asyncio.create_task(zygotes.get(SandboxRequest().tenant))
    probing = asyncio.create_task(asyncio.to_thread(find_cgroups))
    try:
        tier = NamespaceTier(image, await asyncio.shield(probing), zygotes)
    except BaseException:
        await _abandon(starting, zygotes)
        # A thread cannot be cancelled: what it made is to be removed.
        (await probing).close()
        raise
    environment = LocalEnvironment(tier, parked if warm else 0)
    try:
        await starting
        yield environment
    finally:
        await environment.close()


async def _abandon(starting: "asyncio.Task[object]", zygotes: Zygotes) -> None:
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError, StockadeError):
        await starting
    await zygotes.close()
