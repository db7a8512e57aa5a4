"""Other people's programs under ``stockade-supervise``: started, heard, ended as one.

What that is, and what it leaves of the host, is told in ``native/supervise.c``.
"""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from stockade.executor.namespace.image import native_folder
from stockade.executor.owners import Owners
from stockade.port import Unavailable

START_SECONDS: Final = 60.0
_MOST_WORDS: Final = 4096


class Supervised:
    """One process tree: the supervisor's, by whose end it all ends."""

    program = "the program"
    """What is started, to those who read of it."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        state: Path,
        give_back: Callable[[], None],
    ) -> None:
        """``state``: a folder of this tree alone. ``give_back``: told once nothing lives."""
        self.name = name
        self.pidfd = -1
        self._process = process
        self._state = state
        self._give_back: Callable[[], None] | None = give_back
        self._words = bytearray()
        self._listening = asyncio.create_task(self._listen())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.program}, {self._process.pid}>"

    @property
    def words(self) -> str:
        """What the program said on standard error: the last of it, on one line."""
        return on_one_line(self._words)

    async def last_words(self) -> str:
        """The same, when it is ending: its words come a little after its end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), 1.0)
        return self.words

    def kill(self) -> None:
        """The supervisor's end is the end of all that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        """Wait until nothing of it lives, then remove the files about it."""
        await self._process.wait()
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        shutil.rmtree(self._state, ignore_errors=True)
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def close(self) -> None:
        """Close the pidfd, if nobody has taken it over."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = -1

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        await keep_the_last(self._process.stderr, self._words)


Kind = TypeVar("Kind", bound=Supervised)


class Supervisor:
    """Starts process trees, each with ids and a folder of its own."""

    def __init__(self, folder: Path, owners: Owners | None) -> None:
        """``owners``: none for a plain user, whose one id every tree has."""
        self._folder = folder
        self._owners = owners

    def close(self) -> None:
        """Let others have the ids, once every tree is gone."""
        if self._owners is not None:
            self._owners.close()

    async def start(
        self,
        kind: type[Kind],
        name: str,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        pass_fds: Sequence[int] = (),
        doors: Sequence[int] = (),
        cpus: Sequence[int] = (),
        seen: Sequence[Path] = (),
        rights: bool = True,
        environment: Mapping[str, str],
        seconds: float = START_SECONDS,
    ) -> Kind:
        """Start a command. Raises :class:`~stockade.port.Unavailable`.

        The descriptors stay the caller's. ``doors``: of cgroups. ``cpus``: those it may run
        on; none: any. ``seen``: what it keeps of the host's files. ``rights``: whether it has
        a root's within its own namespaces.
        """
        owner = None if self._owners is None else self._owners.take()

        def give_back() -> None:
            if self._owners is not None and owner is not None:
                self._owners.give_back(owner)

        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            give_back()
            raise Unavailable(f"{kind.program} cannot be started: {error}") from error
        try:
            arguments = ["--parent", str(os.getpid()), "--control", str(theirs.fileno())]
            for door in doors:
                arguments += ["--door", str(door)]
            for cpu in cpus:
                arguments += ["--cpu", str(cpu)]
            for path in seen:
                arguments += ["--see", str(path)]
            if not rights:
                arguments += ["--rights", "0"]
            if owner is not None:
                arguments += ["--root-id", str(owner.root), "--nobody-id", str(owner.nobody)]
                arguments += ["--group-id", str(owner.group)]
                (self._folder / name).mkdir(mode=0o700)
                os.chown(self._folder / name, owner.root, owner.group)
            process = await asyncio.create_subprocess_exec(
                str(native_folder() / "stockade-supervise"),
                *arguments,
                "--",
                *command,
                stdin=stdin,
                stdout=stdout,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(), *doors, *pass_fds),
                start_new_session=True,
                env=environment,
            )
        except BaseException as error:
            ours.close()
            shutil.rmtree(self._folder / name, ignore_errors=True)
            give_back()
            if isinstance(error, OSError):
                raise Unavailable(f"{kind.program} cannot be started: {error}") from error
            raise
        finally:
            theirs.close()
        tree = kind(name, process, self._folder / name, give_back)
        try:
            tree.pidfd = await _receive_pidfd(ours, tree, seconds)
        except BaseException:
            tree.kill()
            tree.close()
            await asyncio.shield(tree.ended())
            raise
        finally:
            ours.close()
        return tree


async def _receive_pidfd(control: socket.socket, tree: Supervised, seconds: float) -> int:
    try:
        async with asyncio.timeout(seconds):
            await readable(control.fileno())
        _, descriptors, _, _ = socket.recv_fds(control, 16, 1)
    except TimeoutError:
        raise Unavailable(
            f"the supervisor of a guest did not start: no word in {seconds:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(f"the supervisor of a guest did not start: {error}") from None
    if not descriptors:
        words = await tree.last_words()
        raise Unavailable(f"the supervisor of a guest did not start: {words}")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


async def keep_the_last(stream: asyncio.StreamReader, words: bytearray) -> None:
    """Read it to its end, however much comes."""
    while data := await stream.read(4096):
        words += data
        del words[:-_MOST_WORDS]


def on_one_line(words: bytes | bytearray) -> str:
    """The last of it, without what a terminal would obey."""
    text = words.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)[-500:].strip()


async def readable(descriptor: int) -> None:
    """Wait until something can be read, an end included."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
