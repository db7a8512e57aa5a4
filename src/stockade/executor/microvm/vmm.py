"""What VMMs differ in: starting, saving, restoring. And a machine that one of them runs.

Whatever VMM it is, its machine ends by the pidfd of its jail, is stopped and let go on by a
signal to that, and has one port on which the agent speaks the wire.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from stockade.executor.microvm.image import Image
from stockade.executor.supervised import Supervised, on_one_line, readable
from stockade.port import MIB, Unavailable

BOOT_SECONDS: Final = 180.0
"""For a boot in emulation, on a machine that does other things as well."""
VMM_BYTES: Final = 128 * MIB
"""What a VMM may take of the host's memory beside its guest's RAM."""
READY: Final = b"."
"""The byte by which an agent that booted says that its interpreter waits, and is sent on."""
SEED_BYTES: Final = 32
_CONSOLE_BYTES: Final = 4096
_CONSOLE_PAUSE: Final = 0.02
_OUT_OF_MEMORY: Final = re.compile(rb"Out of memory: Killed process|oom-kill:|deadlocked on memory")


class Accelerator(StrEnum):
    """What runs a guest's instructions."""

    KVM = "kvm"
    EMULATION = "emulation"
    """QEMU's own TCG: no security boundary, and slow. For tests."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a guest is made of: the same for a template and its copies."""

    image: Image
    memory_bytes: int
    """Of its RAM; what the VMM takes beside it is not the guest's. Whole MiB."""
    cpus: int
    disk_bytes: int
    inodes: int
    """Of its scratch disk; 0: as many as there is room for."""
    modules: tuple[str, ...] = ()
    """What the warm interpreter has loaded."""
    own_disk: bool = False
    """Scratch files are on a disk of its own, and not in its RAM: it is nobody's copy."""

    def __post_init__(self) -> None:
        if self.memory_bytes % MIB or self.memory_bytes <= 0:
            raise ValueError(f"{self.memory_bytes} bytes of RAM are not whole MiB")
        if any(
            not name.isascii() or not name.isprintable() or " " in name for name in self.modules
        ):
            raise ValueError("a module whose name no command line takes")

    @property
    def arguments(self) -> tuple[str, ...]:
        """Those of init, then the agent's."""
        agents = ("machine", str(self.disk_bytes), str(self.inodes), *self.modules)
        return ("own-disk", *agents) if self.own_disk else agents


class Guest(Supervised):
    """A machine, its VMM in a jail, and the host's end of the wire to the agent in it."""

    program = "the VMM"
    from_guest = to_guest = -1
    _console: "Console | None" = None
    _at_close: Callable[[], None] | None = None

    def attach_wire(self, wire: socket.socket) -> None:
        """Take over the host's end."""
        wire.setblocking(False)
        self.from_guest = wire.detach()
        self.to_guest = os.dup(self.from_guest)

    def attach_console(self, console: socket.socket) -> None:
        """Take over the host's end."""
        self._console = Console(console)

    def at_close(self, callback: Callable[[], None]) -> None:
        """Call back once, when it is closed: whatever was kept open for it is not needed then."""
        self._at_close = callback

    @property
    def console(self) -> str:
        """The last that the guest's kernel wrote on its console, on one line: hostile bytes."""
        return "" if self._console is None else on_one_line(self._console.tail)

    @property
    def out_of_memory(self) -> bool:
        """Whether the console says so. The guest's kernel writes it, so it is a hint only."""
        return self._console is not None and bool(_OUT_OF_MEMORY.search(self._console.tail))

    async def last_words(self) -> str:
        """The VMM's, then the console's, when it is ending."""
        words = await super().last_words()
        if self._console is not None:
            self._console.drain()
        console = f"the guest's console: {self.console}" if self.console else ""
        return "; ".join(part for part in (words, console) if part)

    async def dying_words(self) -> str:
        """The same of one that is of no use any more, and is killed."""
        self.kill()
        return await self.last_words()

    async def ready(self) -> None:
        """Wait for the agent's byte. Raises :class:`~stockade.port.Unavailable`."""
        try:
            async with asyncio.timeout(BOOT_SECONDS):
                await readable(self.from_guest)
            data = os.read(self.from_guest, 512)
        except TimeoutError:
            raise Unavailable(
                f"the microVM was not ready within {BOOT_SECONDS:g} s: {await self.dying_words()}"
            ) from None
        except OSError as error:
            raise Unavailable(f"the microVM did not start: {error.strerror}") from error
        if data != READY:
            words = (on_one_line(data), await self.dying_words())
            reason = "; ".join(part for part in words if part) or "it ended without a word"
            raise Unavailable(f"the microVM did not start: {reason}")

    def send_on(self, disk_bytes: int, inodes: int) -> None:
        """Let the agent say HELLO: with a seed, the time that it is and a size of its scratch mount.

        A copy has the random numbers and the clock of its template until then.
        """
        now = time.time_ns().to_bytes(8, "big")
        sizes = struct.pack("!QQ", disk_bytes, inodes)
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # its end is heard on the wire
            os.write(self.to_guest, READY + os.urandom(SEED_BYTES) + now + sizes)

    def kill(self) -> None:
        """At once, and its supervisor ends after it."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        else:
            super().kill()

    def close(self) -> None:
        """Close what nobody has taken over."""
        for descriptor in (self.from_guest, self.to_guest):
            if descriptor >= 0:
                os.close(descriptor)
        self.from_guest = self.to_guest = -1
        if self._console is not None:
            self._console.close()
        callback, self._at_close = self._at_close, None
        if callback is not None:
            callback()
        super().close()


class Console:
    """Keeps the last that a guest's console said, and reads it no faster than a person would.

    A guest that writes without end waits, and the executor does not.
    """

    def __init__(self, reader: socket.socket) -> None:
        """Takes the socket over."""
        self.tail = bytearray()
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        reader.setblocking(False)
        self._loop.add_reader(reader.fileno(), self._readable)

    def drain(self) -> None:
        """Take what has come until now, as far as a socket holds it."""
        for _ in range(256):
            if not self._take():
                return

    def close(self) -> None:
        """Read no more."""
        if self._pause is not None:
            self._pause.cancel()
        if self._reader.fileno() >= 0:
            self._loop.remove_reader(self._reader.fileno())
            self._reader.close()

    def _readable(self) -> None:
        self._loop.remove_reader(self._reader.fileno())
        if self._take():
            self._pause = self._loop.call_later(_CONSOLE_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._reader.fileno(), self._readable)

    def _take(self) -> bool:
        """Whether there may be more."""
        if self._reader.fileno() < 0:
            return False
        try:
            data = self._reader.recv(_CONSOLE_BYTES)
        except OSError:
            return False
        self.tail += data
        del self.tail[:-_CONSOLE_BYTES]
        return bool(data)


class Vmm(Protocol):
    """A VMM that was found and tried."""

    @property
    def name(self) -> str:
        """As its makers call it."""
        ...

    @property
    def version(self) -> str:
        """Its own word."""
        ...

    @property
    def accelerator(self) -> Accelerator:
        """What runs its guests."""
        ...

    @property
    def experimental(self) -> bool:
        """Whether nobody has seen it work with this adapter."""
        ...

    async def start(
        self,
        name: str,
        machine: Machine,
        ram: int,
        doors: Sequence[int],
        cpus: Sequence[int],
        *,
        disk: int | None = None,
    ) -> Guest:
        """Boot a machine whose RAM is the file ``ram``. Raises Unavailable.

        ``doors``: of cgroups. ``cpus``: those of the host that it may run on; none: any.
        ``disk``: the file of a machine's own disk.
        """
        ...

    async def save(self, guest: Guest) -> bytes:
        """Stop a machine for good; return what it holds beside RAM. Raises Unavailable."""
        ...

    async def restore(
        self,
        name: str,
        machine: Machine,
        ram: int,
        state: bytes,
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> Guest:
        """A running copy; what it writes to its RAM is its own. Raises Unavailable.

        Raises :class:`StateRefused` where this VMM cannot take the state.
        """
        ...

    def close(self) -> None:
        """Give back what it holds of the host, once its machines are gone."""
        ...


class StateRefused(Unavailable):
    """The VMM is another than the one that saved the state, or finds it damaged."""


async def abandon(guest: Guest) -> None:
    """End a machine that nobody has taken over."""
    guest.kill()
    await guest.ended()
    guest.close()
