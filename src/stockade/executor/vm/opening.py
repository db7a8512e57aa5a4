"""Opening the tier of dedicated machines: a VMM, an image, its firmware, and no machine yet."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from stockade.executor.cgroups import CgroupTree
from stockade.executor.microvm.digests import Digests
from stockade.executor.microvm.image import Image, find_image
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.opening import choose_accelerator
from stockade.executor.microvm.qemu import Firmware, QemuVmm, find_firmware, find_qemu
from stockade.executor.namespace.identity import Identities
from stockade.executor.opening import in_thread, open_unproven
from stockade.executor.owners import Owners
from stockade.executor.state import StateFolder
from stockade.executor.vm.tier import VmTier


async def open_vm(
    cgroups: Callable[[], Awaitable[CgroupTree]],
    identities: Identities,
    *,
    modules: Sequence[str],
    allow_emulation: bool,
) -> VmTier:
    """Raises :class:`~stockade.port.Unavailable` where what a machine is made of is missing.

    Whether a machine boots its first call finds out: nobody waits for one that is not his.
    """
    qemu = await in_thread(find_qemu)
    accelerator = await choose_accelerator(allow_emulation=allow_emulation)

    async def build(state: StateFolder, owners: Owners | None) -> VmTier:
        digests = Digests()
        with ExitStack() as stack:
            image = await in_thread(lambda: find_image(digests), Image.close)
            stack.callback(image.close)
            firmware = await in_thread(lambda: find_firmware(qemu, image.kernel), Firmware.close)
            stack.callback(firmware.close)
            tier = VmTier(
                QemuVmm(qemu, Jail(state.path, owners), accelerator, firmware),
                state,
                image,
                await cgroups(),
                digests,
                modules=modules,
            )
            stack.pop_all()
            return tier

    return await open_unproven(identities, build)
