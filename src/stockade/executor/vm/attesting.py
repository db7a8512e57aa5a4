"""Saying what a machine was made of, from the files that were open when it was made.

The VMM's own code is looked up where the kernel tells of it, in the memory of its process: how it
came there, through a script or a loader, is no matter.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import Final

from stockade.executor.microvm.digests import Digests
from stockade.executor.microvm.qemu import Firmware, QemuVmm
from stockade.executor.microvm.vmm import Machine
from stockade.executor.opening import in_thread
from stockade.port import Attestation, Unavailable

_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) ..x. [0-9a-f]+ [0-9a-f:]+ +(\d+) +(/.*)$", re.MULTILINE
)
_IN_MEMORY: Final = "/memfd:"


class Attestor:
    """Attests the machines of one executor."""

    def __init__(self, vmm: QemuVmm, digests: Digests) -> None:
        self._vmm = vmm
        self._digests = digests

    def __repr__(self) -> str:
        return f"<Attestor of {self._vmm!r}, {self._digests!r}>"

    async def check(self, machine: Machine) -> None:
        """Raises :class:`~stockade.port.Unavailable` where the image is not what it was."""
        await in_thread(lambda: machine.image.check(self._digests))

    async def attest(self, machine: Machine, pidfd: int) -> Attestation:
        """Of a machine that is up. ``pidfd``: of the first process of its jail.

        Raises :class:`~stockade.port.Unavailable` where that cannot be said.
        """
        return await in_thread(lambda: self._attest(machine, pidfd))

    def _attest(self, machine: Machine, pidfd: int) -> Attestation:
        # Once more: the kernel and the initramfs were read between the two.
        machine.image.check(self._digests)
        try:
            vmm_files = self._vmm_files(pidfd)
            firmware = self._firmware()
        except OSError as error:
            raise Unavailable(
                f"the machine cannot be attested: what {self._vmm.name} is made of cannot be "
                f"read: {error}"
            ) from error
        words = self._vmm.command_line(machine)
        promised = machine.image.promised
        return Attestation(
            image=machine.image.digest,
            kernel=_named(promised["kernel"]),
            initramfs=_named(promised["initramfs"]),
            disk=_named(promised["disk"]),
            kernel_version=machine.image.kernel_version,
            vmm=self._vmm.name,
            vmm_version=self._vmm.version,
            accelerator=str(self._vmm.accelerator),
            command_line=words,
            command_line_digest=_named(
                hashlib.sha256(b"".join(os.fsencode(word) + b"\0" for word in words)).hexdigest()
            ),
            vmm_files=vmm_files,
            firmware=firmware,
        )

    def _vmm_files(self, pidfd: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for pid in _children_of(_pid_of(pidfd)):
            process = Path(f"/proc/{pid}")
            maps = (process / "maps").read_text(encoding="utf-8", errors="surrogateescape")
            for start, end, inode, path in _MAPPING.findall(maps):
                if path in found or path.startswith(_IN_MEMORY):
                    continue
                descriptor = _open_mapped(process, start, end, int(inode), path)
                try:
                    found[path] = _named(self._digests.of(descriptor))
                finally:
                    os.close(descriptor)
        if not found:
            raise FileNotFoundError("its process has no code of any file")
        return dict(sorted(found.items()))

    def _firmware(self) -> dict[str, str]:
        firmware = self._vmm.firmware
        if firmware is None:
            return {}
        _check_name(firmware)
        return {name: _named(self._digests.of(file)) for name, file in firmware.files.items()}


def _check_name(firmware: Firmware) -> None:
    """QEMU opens this one by its name: what is there must be what is open here."""
    if not os.path.samestat(firmware.option_path.stat(), os.fstat(firmware.option)):
        raise FileNotFoundError(f"{firmware.option_path} was exchanged")


def _open_mapped(process: Path, start: str, end: str, inode: int, path: str) -> int:
    """The very file that is mapped, whatever became of its name."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    # A right that a plain user has not: proc(5). Then by its name in the jail, and compared.
    with contextlib.suppress(PermissionError):
        return os.open(f"{process}/map_files/{start}-{end}", flags)
    descriptor = os.open(f"{process}/root{path}", flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_ino != inode:
        os.close(descriptor)
        raise FileNotFoundError(f"{path} was exchanged")
    return descriptor


def _pid_of(pidfd: int) -> int:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Pid" and int(value) > 0:
            return int(value)
    raise ProcessLookupError("the machine has ended")


def _children_of(init: int) -> list[int]:
    """All that is in its jail: the VMM, and whatever started it and did not become it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found: list[int] = []
    level = {init}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += sorted(level)
    return found


def _named(digest: str) -> str:
    return f"sha256:{digest}"
