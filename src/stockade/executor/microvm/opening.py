"""Opening the microVM tier: a machine monitor, an image, and the proof that a guest boots."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stockade.executor.cgroups import CgroupTree
from stockade.executor.kvm import why_no_kvm
from stockade.executor.microvm.image import find_image
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.qemu import QemuVmm, find_qemu
from stockade.executor.microvm.tier import MicrovmTier
from stockade.executor.microvm.vmm import Accelerator
from stockade.executor.namespace.identity import Identities
from stockade.executor.owners import Owners
from stockade.executor.sandbox import Profile
from stockade.executor.state import StateFolder
from stockade.port import Unavailable

T = TypeVar("T")


async def open_microvm(
    cgroups: Callable[[], Awaitable[CgroupTree]],
    identities: Identities,
    *,
    first: Profile,
    modules: Sequence[str],
    snapshots: bool,
    allow_emulation: bool,
) -> MicrovmTier:
    """Raises :class:`~stockade.port.Unavailable` where no guest can be started.

    As :func:`~stockade.executor.gvisor.opening.open_gvisor`; and where the CPU runs no guests,
    only with ``allow_emulation``.
    """
    # The order is that of what they cost, the cheapest first.
    qemu = await _in_thread(find_qemu)
    accelerator = Accelerator.KVM
    if why := await _in_thread(why_no_kvm):
        if not allow_emulation:
            raise Unavailable(
                f"{why}; in software emulation it would start, which is no boundary and is off "
                "unless allow_emulation is set"
            )
        accelerator = Accelerator.EMULATION
    image = await _in_thread(find_image)
    state = StateFolder()
    owners = None
    try:
        if identities.distinct:
            owners = Owners(identities)
            state.share_with(owners.group)
        tier = MicrovmTier(
            QemuVmm(qemu, Jail(state.path, owners), accelerator),
            state,
            image,
            await cgroups(),
            modules=modules,
            snapshots=snapshots,
        )
    except BaseException:
        image.close()
        state.close()
        if owners is not None:
            owners.close()
        raise
    try:
        await tier.prove(first)
    except BaseException:
        # What is being started ends before its folder and its ids are given back.
        await asyncio.shield(tier.close())
        raise
    return tier


async def _in_thread(find: Callable[[], T]) -> T:
    """A thread is not cancelled: who gives up waits for it, for it may hold a process."""
    finding = asyncio.create_task(asyncio.to_thread(find))
    try:
        return await asyncio.shield(finding)
    except asyncio.CancelledError:
        with contextlib.suppress(BaseException):
            found = await finding
            if hasattr(found, "close"):
                found.close()
        raise
