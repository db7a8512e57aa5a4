"""Opening an executor inside the calling process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stockade.executor.cgroups import find_cgroups
from stockade.executor.environment import LocalEnvironment
from stockade.executor.namespace.image import find_host_image
from stockade.executor.namespace.tier import NamespaceTier
from stockade.executor.namespace.zygote import PRELOADED

PARKED = 4
"""Sandboxes parked per profile: enough for a burst of calls on two cores."""


@asynccontextmanager
async def open_local(*, warm: bool = True, parked: int = PARKED) -> AsyncIterator[LocalEnvironment]:
    """The tiers of this machine, behind the port; everything ends with the context.

    ``warm=False`` parks and preloads nothing, for a process that makes one call.
    Raises :class:`~stockade.port.Unavailable` where no boundary can be had.
    """
    image = find_host_image()
    tier = NamespaceTier(image, find_cgroups(), PRELOADED if warm else ())
    environment = LocalEnvironment(tier, parked if warm else 0)
    try:
        yield environment
    finally:
        await environment.close()
