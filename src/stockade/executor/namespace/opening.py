"""Opening a tier of namespace sandboxes: the zygote of its first tenant, and its cgroups."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from stockade.executor.cgroups import CgroupTree
from stockade.executor.namespace.image import HostImage
from stockade.executor.namespace.tier import NAMESPACE, Kind, NamespaceTier
from stockade.executor.namespace.zygotes import Zygotes
from stockade.port import SandboxRequest, StockadeError


async def open_namespaces(
    image: HostImage,
    cgroups: Callable[[], Awaitable[CgroupTree]],
    zygotes: Zygotes,
    kind: Kind = NAMESPACE,
) -> NamespaceTier:
    """The tier. It takes over ``zygotes``, and closes them where it cannot be opened."""
    # Both take tens of milliseconds; the first call waits for the slower one only.
    starting = asyncio.create_task(zygotes.get(SandboxRequest().tenant))
    try:
        tree = await cgroups()
        await starting
    except BaseException:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, StockadeError):
            await starting
        await zygotes.close()
        raise
    return NamespaceTier(image, tree, zygotes, kind)
