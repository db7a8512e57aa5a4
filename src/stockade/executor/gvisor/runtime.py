"""Driving runsc: one supervised process per sandbox, reached by two pipes."""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stockade.executor.gvisor.owners import Owners
from stockade.executor.gvisor.runsc import Runsc
from stockade.executor.namespace.image import Bind, native_folder
from stockade.port import Unavailable

START_SECONDS: Final = 60.0
CHECKPOINT_SECONDS: Final = 60.0
_MOST_WORDS: Final = 4096
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


class Guest:
    """One process tree of runsc's: a kernel, the agent in it, and the two pipes to that."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        state: Path,
        give_back: Callable[[], None],
    ) -> None:
        self.name = name
        self._process = process
        self._state = state
        self._give_back: Callable[[], None] | None = give_back
        self._words = bytearray()
        self._listening = asyncio.create_task(self._listen())
        self.from_guest = self.to_guest = self.pidfd = -1

    def __repr__(self) -> str:
        return f"<Guest {self.name} of runsc, supervisor {self._process.pid}>"

    @property
    def words(self) -> str:
        """What runsc said on standard error: the last of it, on one line."""
        return _on_one_line(self._words)

    async def last_words(self) -> str:
        """The same, when it is ending: its words come a little after its end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), 1.0)
        return self.words

    async def ready(self) -> None:
        """Wait for the agent's byte. Raises :class:`~stockade.port.Unavailable`."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await _readable(self.from_guest)
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

    async def ended(self) -> None:
        """Wait until nothing of it lives, then remove runsc's files about it."""
        await self._process.wait()
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        shutil.rmtree(self._state, ignore_errors=True)
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def close(self) -> None:
        """Close the pipes and the pidfd, as far as nobody has taken them over."""
        for descriptor in (self.from_guest, self.to_guest, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.from_guest = self.to_guest = self.pidfd = -1

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        await _keep_the_last(self._process.stderr, self._words)


class Runtime:
    """runsc with the executor's flags and folders."""

    def __init__(self, runsc: Runsc, folder: Path, owners: Owners | None) -> None:
        """``owners``: none for a plain user, whose one id every sandbox has."""
        self._runsc = runsc
        self._folder = folder
        self._owners = owners
        self._seen = [*_DEVICES, folder]

    def __repr__(self) -> str:
        return f"<Runtime {self._runsc.path} {self._runsc.version}>"

    def see(self, mounts: Sequence[Bind]) -> None:
        """Leave to runsc, of the host's files, the sources of these as well."""
        self._seen += [bind.source for bind in mounts]

    def close(self) -> None:
        """Let others have the ids, once every guest is gone."""
        if self._owners is not None:
            self._owners.close()

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
                await _keep_the_last(process.stderr, words)
                code = await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"runsc did not save the warm guest within {CHECKPOINT_SECONDS:g} s: "
                    f"{_on_one_line(words)}"
                ) from None
            raise
        if code != 0:
            raise Unavailable(f"runsc could not save the warm guest: {_on_one_line(words)}")

    def _command(self, name: str, arguments: Sequence[str]) -> list[str]:
        state = self._folder / name
        # A plain user's runsc is root of nothing but the user namespace of its supervisor.
        user = () if os.geteuid() == 0 else ("--rootless",)
        return [str(self._runsc.path), f"--root={state}", *FLAGS, *user, *arguments, name]

    async def _start(
        self, name: str, arguments: Sequence[str], doors: Sequence[int], cpus: Sequence[int]
    ) -> Guest:
        owner = None if self._owners is None else self._owners.take()

        def give_back() -> None:
            if self._owners is not None and owner is not None:
                self._owners.give_back(owner)

        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            give_back()
            raise Unavailable(f"runsc cannot be started: {error}") from error
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            guest_in, to_guest, from_guest, guest_out = pipes
            command = [
                str(native_folder() / "stockade-supervise"),
                *("--parent", str(os.getpid()), "--control", str(theirs.fileno())),
            ]
            for door in doors:
                command += ["--door", str(door)]
            for cpu in cpus:
                command += ["--cpu", str(cpu)]
            for path in self._seen:
                command += ["--see", str(path)]
            if owner is not None:
                command += ["--root-id", str(owner.root), "--nobody-id", str(owner.nobody)]
                command += ["--group-id", str(owner.group)]
                (self._folder / name).mkdir(mode=0o700)
                os.chown(self._folder / name, owner.root, owner.group)
            process = await asyncio.create_subprocess_exec(
                *command,
                "--",
                *self._command(name, arguments),
                stdin=guest_in,
                stdout=guest_out,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(), *doors),
                start_new_session=True,
                env=_ENVIRONMENT,
            )
        except BaseException as error:
            ours.close()
            for descriptor in pipes:
                os.close(descriptor)
            shutil.rmtree(self._folder / name, ignore_errors=True)
            give_back()
            if isinstance(error, OSError):
                raise Unavailable(f"runsc cannot be started: {error}") from error
            raise
        finally:
            theirs.close()
        os.close(guest_in)
        os.close(guest_out)
        guest = Guest(name, process, self._folder / name, give_back)
        guest.from_guest, guest.to_guest = from_guest, to_guest
        os.set_blocking(from_guest, False)
        try:
            async with asyncio.timeout(START_SECONDS):
                await _readable(ours.fileno())
            _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
            if not descriptors:
                words = await guest.last_words()
                raise Unavailable(f"the supervisor of a guest did not start: {words}")
            guest.pidfd = descriptors[0]
            os.set_inheritable(guest.pidfd, False)
        except BaseException as error:
            # The supervisor's end is the end of all that it started.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            guest.close()
            await asyncio.shield(guest.ended())
            if isinstance(error, OSError):
                why = (
                    f"no word in {START_SECONDS:g} s" if isinstance(error, TimeoutError) else error
                )
                raise Unavailable(f"the supervisor of a guest did not start: {why}") from None
            raise
        finally:
            ours.close()
        return guest


async def _keep_the_last(stream: asyncio.StreamReader, words: bytearray) -> None:
    """Read it to its end, however much comes."""
    while data := await stream.read(4096):
        words += data
        del words[:-_MOST_WORDS]


def _on_one_line(words: bytearray) -> str:
    text = words.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)[-500:].strip()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
