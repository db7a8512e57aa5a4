"""Driving runsc: one supervised process per sandbox, reached by two pipes."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stockade.executor.gvisor.runsc import Runsc
from stockade.executor.namespace.image import Bind
from stockade.executor.owners import Owners
from stockade.executor.supervised import (
    Supervised,
    Supervisor,
    keep_the_last,
    on_one_line,
    readable,
)
from stockade.port import Unavailable

START_SECONDS: Final = 60.0
CHECKPOINT_SECONDS: Final = 60.0
READY: Final = b"."
"""The byte by which an agent that booted says that its interpreter waits, and is sent on."""

# directfs: a sandbox restored with it could write through a mount that its bundle calls
# read-only. overlay2: it would keep the guest's files on the host. exclusive: nothing else
# writes to the image while the executor runs, so gVisor may remember what it has seen.
FLAGS: Final = (
    "--platform=systrap",
    "--network=none",
    "--overlay2=none",
    "--directfs=false",
    "--file-access-mounts=exclusive",
    "--ignore-cgroups",
)


# runsc starts itself several times; more than one processor costs each start more than it
# gains. The guest's kernel then sets the number of its own.
_ENVIRONMENT: Final = {"GOMAXPROCS": "1"}

# What runsc opens of the host's, beside its own files and a sandbox's.
_DEVICES: Final = (Path("/dev/null"), Path("/dev/zero"), Path("/dev/urandom"))


class Guest(Supervised):
    """One process tree of runsc's: a kernel, the agent in it, and the two pipes to that."""

    program = "runsc"
    from_guest = to_guest = -1

    async def ready(self) -> None:
        """Wait for the agent's byte. Raises :class:`~stockade.port.Unavailable`."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await readable(self.from_guest)
        except TimeoutError:
            raise Unavailable(
                f"gVisor's guest was not ready within {START_SECONDS:g} s: {self.words}"
            ) from None
        data = os.read(self.from_guest, 512)
        if data != READY:
            said = "".join(c for c in data.decode("utf-8", "replace") if c.isprintable())
            words = await self.last_words()
            raise Unavailable(f"gVisor's guest did not start: {said} {words}".strip())

    def send_on(self) -> None:
        """Let the agent say HELLO, or the restored copy of one."""
        os.write(self.to_guest, READY)

    def close(self) -> None:
        """Close the pipes and the pidfd, as far as nobody has taken them over."""
        for descriptor in (self.from_guest, self.to_guest):
            if descriptor >= 0:
                os.close(descriptor)
        self.from_guest = self.to_guest = -1
        super().close()


class Runtime:
    """runsc with the executor's flags and folders."""

    def __init__(self, runsc: Runsc, folder: Path, owners: Owners | None) -> None:
        """``owners``: none for a plain user, whose one id every sandbox has."""
        self._runsc = runsc
        self._folder = folder
        self._supervisor = Supervisor(folder, owners)
        self._seen = [*_DEVICES, folder]

    def __repr__(self) -> str:
        return f"<Runtime {self._runsc.path} {self._runsc.version}>"

    def see(self, mounts: Sequence[Bind]) -> None:
        """Leave to runsc, of the host's files, the sources of these as well."""
        self._seen += [bind.source for bind in mounts]

    def close(self) -> None:
        """Let others have the ids, once every guest is gone."""
        self._supervisor.close()

    async def run(
        self, name: str, bundle: Path, doors: Sequence[int] = (), cpus: Sequence[int] = ()
    ) -> Guest:
        """Start a kernel anew. Raises :class:`~stockade.port.Unavailable`.

        ``doors``: of cgroups, the caller's. ``cpus``: those it may run on; none: any.
        """
        return await self._start(name, ["run", "-bundle", str(bundle)], doors, cpus)

    async def restore(
        self,
        name: str,
        bundle: Path,
        snapshot: Path,
        doors: Sequence[int] = (),
        cpus: Sequence[int] = (),
    ) -> Guest:
        """Start a copy of a kernel that was saved. Raises :class:`~stockade.port.Unavailable`."""
        arguments = ["restore", "-detach", "-bundle", str(bundle), "-image-path", str(snapshot)]
        return await self._start(name, arguments, doors, cpus)

    async def checkpoint(self, name: str, snapshot: Path) -> None:
        """Save a guest, which ends, into an empty folder. Raises Unavailable."""
        process = await asyncio.create_subprocess_exec(
            *self._command(
                name, ["checkpoint", "-compression", "none", "-image-path", str(snapshot)]
            ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={},
        )
        assert process.stderr is not None
        words = bytearray()
        try:
            async with asyncio.timeout(CHECKPOINT_SECONDS):
                await keep_the_last(process.stderr, words)
                code = await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"runsc did not save the warm guest within {CHECKPOINT_SECONDS:g} s: "
                    f"{on_one_line(words)}"
                ) from None
            raise
        if code != 0:
            raise Unavailable(f"runsc could not save the warm guest: {on_one_line(words)}")

    def _command(self, name: str, arguments: Sequence[str]) -> list[str]:
        state = self._folder / name
        # A plain user's runsc is root of nothing but the user namespace of its supervisor.
        user = () if os.geteuid() == 0 else ("--rootless",)
        return [str(self._runsc.path), f"--root={state}", *FLAGS, *user, *arguments, name]

    async def _start(
        self, name: str, arguments: Sequence[str], doors: Sequence[int], cpus: Sequence[int]
    ) -> Guest:
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            guest_in, to_guest, from_guest, guest_out = pipes
            guest = await self._supervisor.start(
                Guest,
                name,
                self._command(name, arguments),
                stdin=guest_in,
                stdout=guest_out,
                doors=doors,
                cpus=cpus,
                seen=self._seen,
                environment=_ENVIRONMENT,
                seconds=START_SECONDS,
            )
        except BaseException as error:
            for descriptor in pipes:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise Unavailable(f"runsc cannot be started: {error}") from error
            raise
        os.close(guest_in)
        os.close(guest_out)
        guest.from_guest, guest.to_guest = from_guest, to_guest
        os.set_blocking(from_guest, False)
        return guest
