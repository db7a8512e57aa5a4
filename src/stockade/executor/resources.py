"""What the tiers of one executor share on the host."""

import asyncio

from stockade.executor.cgroups import CgroupTree, find_cgroups
from stockade.executor.namespace.identity import Identities, open_identities


class Resources:
    """User ids and cgroups, each found when a tier first asks for it.

    Names of cgroups are one tier's among all of them: a tier begins its own with a word of
    its own.
    """

    def __init__(self) -> None:
        self._identities: Identities | None = None
        self._probing: asyncio.Task[CgroupTree] | None = None

    def __repr__(self) -> str:
        return f"<Resources {self._identities!r}, cgroups {'asked for' if self._probing else '-'}>"

    def identities(self) -> Identities:
        """Host user ids. Raises :class:`~stockade.port.Unavailable`."""
        if self._identities is None:
            self._identities = open_identities()
        return self._identities

    async def cgroups(self) -> CgroupTree:
        """The tree; probing the host for it takes tens of milliseconds, once."""
        if self._probing is None:
            self._probing = asyncio.create_task(asyncio.to_thread(find_cgroups))
        return await asyncio.shield(self._probing)

    async def close(self) -> None:
        """Give all of it back; nothing that used it may live any more.

        Raises :class:`~stockade.executor.cgroups.CgroupError` if something stays.
        """
        if self._identities is not None:
            self._identities.close()
        if self._probing is not None:
            # A thread cannot be cancelled: what it made is to be removed.
            await asyncio.wait({self._probing})
            if not self._probing.cancelled() and self._probing.exception() is None:
                self._probing.result().close()
