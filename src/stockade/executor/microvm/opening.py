"""Opening the microVM tier: a machine monitor, an image, and the proof that a guest boots."""

from collections.abc import Awaitable, Callable, Sequence

from stockade.executor.cgroups import CgroupTree
from stockade.executor.kvm import why_no_kvm
from stockade.executor.microvm.image import Image, find_image
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.qemu import QemuVmm, find_qemu
from stockade.executor.microvm.tier import MicrovmTier
from stockade.executor.microvm.vmm import Accelerator
from stockade.executor.namespace.identity import Identities
from stockade.executor.opening import in_thread, open_and_prove
from stockade.executor.owners import Owners
from stockade.executor.sandbox import Profile
from stockade.executor.state import StateFolder
from stockade.port import Unavailable


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
    qemu = await in_thread(find_qemu)
    accelerator = await choose_accelerator(allow_emulation=allow_emulation)

    async def build(state: StateFolder, owners: Owners | None) -> MicrovmTier:
        image = await in_thread(find_image, Image.close)
        try:
            return MicrovmTier(
                QemuVmm(qemu, Jail(state.path, owners), accelerator),
                state,
                image,
                await cgroups(),
                modules=modules,
                snapshots=snapshots,
            )
        except BaseException:
            image.close()
            raise

    return await open_and_prove(identities, first, build)


async def choose_accelerator(*, allow_emulation: bool) -> Accelerator:
    """The CPU where it runs guests. Raises :class:`~stockade.port.Unavailable`."""
    why = await in_thread(why_no_kvm)
    if why is None:
        return Accelerator.KVM
    if not allow_emulation:
        raise Unavailable(
            f"{why}; in software emulation it would start, which is no boundary and is off "
            "unless allow_emulation is set (of the command line: STOCKADE_ALLOW_EMULATION=1)"
        )
    return Accelerator.EMULATION
