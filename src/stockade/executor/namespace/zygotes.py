"""Each tenant's zygote, started when the tenant first needs it."""

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from stockade.executor.namespace.identity import Identities
from stockade.executor.namespace.image import HostImage
from stockade.executor.namespace.zygote import BOOT, Zygote


class Zygotes:
    """One zygote per tenant, never shared; a dead one is replaced when it is asked for."""

    def __init__(
        self,
        image: HostImage,
        identities: Identities,
        preloaded: Sequence[str],
        boot: str = BOOT,
    ) -> None:
        self._image = image
        self._boot = boot
        self._identities = identities
        self._preloaded = tuple(preloaded)
        self._of_tenant: dict[str, Zygote] = {}
        # A lock lives as long as somebody has it or waits for it.
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Zygotes of {len(self._of_tenant)} tenants>"

    async def get(self, tenant: str) -> Zygote:
        """The tenant's. Raises :class:`Unavailable` where it cannot be started."""
        zygote = self._of_tenant.get(tenant)
        if zygote is not None and not zygote.dead:
            return zygote
        async with self._lock(tenant):
            zygote = self._of_tenant.get(tenant)
            if zygote is not None and not zygote.dead:
                return zygote
            if zygote is not None:
                await self._end(tenant)
            identity = self._identities.slice()
            try:
                zygote = await Zygote.start(self._image, identity, self._preloaded, self._boot)
            except BaseException:
                self._identities.give_back(identity)
                raise
            self._of_tenant[tenant] = zygote
            return zygote

    async def forget(self, tenant: str) -> None:
        """End the tenant's, unless a sandbox of it exists or is being made.

        Whoever asks for it meanwhile waits for its end, and gets a new one.
        """
        async with self._lock(tenant):
            zygote = self._of_tenant.get(tenant)
            # An id is taken in the same turn of the loop in which the zygote was asked for.
            if zygote is not None and not zygote.identity.in_use:
                await self._end(tenant)

    async def close(self) -> None:
        """End all, with every sandbox of theirs."""
        for tenant in list(self._of_tenant):
            await self._end(tenant)

    def _lock(self, tenant: str) -> asyncio.Lock:
        return self._changing.setdefault(tenant, asyncio.Lock())

    async def _end(self, tenant: str) -> None:
        zygote = self._of_tenant.pop(tenant)
        await zygote.end()
        self._identities.give_back(zygote.identity)
