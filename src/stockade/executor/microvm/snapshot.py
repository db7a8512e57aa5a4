"""A warm machine saved once per profile, and restored as many times as there are calls."""

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stockade.executor.microvm.image import SEALS
from stockade.executor.microvm.vmm import Guest, Machine, StateRefused, Vmm, abandon
from stockade.executor.templates import TemplateDamaged
from stockade.port import Unavailable

FORMAT: Final = 1
_LARGEST_DESCRIPTION: Final = 1 << 20
_SEAL_TRIES: Final = 50


class Template:
    """What sandboxes of one profile are restored from: RAM, and the state of the devices.

    It holds the agent and a warm interpreter, and nothing of anybody's. Its copies share the
    seed of ``hash()`` and the layout of their memory, so it serves one tenant only.

    RAM is a file without a name, sealed once it is saved: all copies map it, and a VMM that was
    taken over by its guest cannot change what the next copy starts from (memfd_create(2)).
    """

    def __init__(self, vmm: Vmm, machine: Machine, folder: Path) -> None:
        """``folder``: for ``state`` and ``template.json``; it does not exist yet."""
        self._vmm = vmm
        self._machine = machine
        self._folder = folder
        self._ram = -1

    def __repr__(self) -> str:
        return f"<Template {self._folder.name} {'saved' if self.saved else 'cold'}>"

    async def save(self, cpus: Sequence[int]) -> None:
        """Boot a guest, wait until it is warm, save it. Raises Unavailable."""
        ram = make_ram(self._machine.memory_bytes)
        try:
            guest = await self._vmm.start(f"{self._folder.name}-warm", self._machine, ram, (), cpus)
            try:
                await guest.ready()
                state = await self._vmm.save(guest)
            finally:
                await asyncio.shield(abandon(guest))
            await _seal(ram)
            self._write(state)
        except BaseException:
            os.close(ram)
            raise
        self._ram = ram

    async def start(self, name: str, doors: Sequence[int], cpus: Sequence[int]) -> Guest:
        """A guest that runs: about to say HELLO where it is ``saved``, else about to be ready.

        Raises :class:`TemplateDamaged`, or another Unavailable.
        """
        if not self.saved:
            ram = make_ram(self._machine.memory_bytes)
            try:
                return await self._vmm.start(name, self._machine, ram, doors, cpus)
            finally:
                os.close(ram)
        state = self._read()
        try:
            return await self._vmm.restore(name, self._machine, self._ram, state, doors, cpus)
        except StateRefused as error:
            raise TemplateDamaged(str(error)) from error

    @property
    def saved(self) -> bool:
        """Whether guests are restored rather than started cold."""
        return self._ram >= 0

    @property
    def bytes_on_disk(self) -> int:
        """Of its files."""
        if not self.saved:
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self._folder))

    @property
    def ram_bytes(self) -> int:
        """Of the host's memory that its RAM takes: what the guest has used of it."""
        return os.fstat(self._ram).st_blocks * 512 if self.saved else 0

    def remove(self) -> None:
        """Remove its files; guests that were started live on."""
        if self.saved:
            os.close(self._ram)
            self._ram = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def _describe(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "vmm": self._vmm.name,
            "version": self._vmm.version,
            "accelerator": str(self._vmm.accelerator),
            "image": self._machine.image.digest,
            "memory_bytes": self._machine.memory_bytes,
            "cpus": self._machine.cpus,
            "arguments": list(self._machine.arguments),
        }

    def _write(self, state: bytes) -> None:
        description = self._describe()
        description["state"] = {
            "bytes": len(state),
            "sha256": hashlib.sha256(state).hexdigest(),
        }
        try:
            self._folder.mkdir(mode=0o700)
            (self._folder / "state").write_bytes(state)
            (self._folder / "template.json").write_text(
                json.dumps(description, indent=1), encoding="ascii"
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise Unavailable(f"the warm guest could not be kept: {error}") from error

    def _read(self) -> bytes:
        """The state, if all is as it was saved."""
        description = self._read_description()
        kept = description.pop("state", None)
        expected = self._describe()
        for name in (*expected, *description):
            if description.get(name) != expected.get(name):
                raise TemplateDamaged(
                    f"a template with {name} {description.get(name)!r} is none for "
                    f"{expected.get(name)!r}"
                )
        path = self._folder / "state"
        try:
            with path.open("rb") as file:
                state = file.read()
        except OSError as error:
            raise TemplateDamaged(f"the template's state cannot be read: {error}") from error
        if not isinstance(kept, dict) or len(state) != kept.get("bytes"):
            raise TemplateDamaged(f"{path} has {len(state)} bytes, and was saved with others")
        if hashlib.sha256(state).hexdigest() != kept.get("sha256"):
            raise TemplateDamaged(f"{path} is not what was saved: it was changed")
        if os.fstat(self._ram).st_size != self._machine.memory_bytes:
            raise TemplateDamaged("the template's RAM is not what was saved")
        return state

    def _read_description(self) -> dict[str, Any]:
        path = self._folder / "template.json"
        try:
            with path.open("rb") as file:
                description = json.loads(file.read(_LARGEST_DESCRIPTION))
        except OSError as error:
            raise TemplateDamaged(f"a template cannot be read: {error}") from error
        except (ValueError, RecursionError) as error:
            raise TemplateDamaged(f"{path} describes no template") from error
        if not isinstance(description, dict):
            raise TemplateDamaged(f"{path} describes no template")
        return description


def make_ram(size: int) -> int:
    """A file without a name for a machine's RAM. Raises Unavailable."""
    try:
        ram = os.memfd_create("stockade-ram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise Unavailable(f"no memory for a microVM: {error}") from error
    try:
        os.ftruncate(ram, size)
    except OSError as error:
        os.close(ram)
        raise Unavailable(f"no memory for a microVM: {error}") from error
    return ram


async def _seal(ram: int) -> None:
    """Let nobody write to it, its owner included. Its last writer has ended."""
    for _ in range(_SEAL_TRIES):
        try:
            fcntl.fcntl(ram, fcntl.F_ADD_SEALS, SEALS)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise Unavailable(f"a template's RAM cannot be sealed: {error}") from error
        await asyncio.sleep(0.02)
    raise Unavailable("a template's RAM is still written to, and cannot be sealed")
