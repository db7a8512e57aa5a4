"""The prison of a VMM: whoever escapes from a guest into its VMM is nobody, and sees nothing.

Two ids of its own, no capability, namespaces of its own, no network, of the host's files those
alone that the VMM itself is made of; a cgroup's ceiling on its memory and its CPU. See
``gvisor/native/supervise.c``.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from stockade.executor.microvm.vmm import Guest
from stockade.executor.owners import Owners
from stockade.executor.supervised import Supervisor
from stockade.port import Unavailable

WIRE: Final = 0
CONTROL: Final = 1
"""Numbers of the VMM's descriptors: it has its end of both in place of streams."""

# What programs of the host are started with, beside themselves.
_LIBRARIES: Final = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
_NULL: Final = Path("/dev/null")
_SHEBANG: Final = 256


@dataclass(frozen=True, slots=True)
class Program:
    """How a VMM's program is started where little else is to be seen."""

    command: tuple[str, ...]
    seen: tuple[Path, ...]


def program_of(path: Path) -> Program:
    """For a program, or a script that starts one. Raises OSError.

    All that it needs is below its folder, or where the host's programs and libraries are.
    """
    with path.open("rb") as file:
        first = file.read(_SHEBANG)
    command = [str(path)]
    if first.startswith(b"#!"):
        # By its interpreter: the supervisor starts a descriptor, which no interpreter could open.
        line = os.fsdecode(first[2:].split(b"\n", maxsplit=1)[0]).strip()
        command = [*line.split(maxsplit=1), *command]
    libraries = [Path(name) for name in _LIBRARIES if Path(name).exists()]
    folders = {path.parent, path.resolve().parent}
    own = [each for each in sorted(folders) if not each.is_relative_to("/usr")]
    # The deeper after what is above it, which would hide it.
    return Program(tuple(command), (_NULL, *libraries, *own))


G = TypeVar("G", bound=Guest)


class Jail:
    """Where an executor's VMMs are kept, each in one of its own."""

    def __init__(self, folder: Path, owners: Owners | None) -> None:
        """``folder``: the executor's. ``owners``: none for a plain user."""
        self._supervisor = Supervisor(folder, owners)

    def close(self) -> None:
        """Give the ids back, once every VMM is gone."""
        self._supervisor.close()

    async def start(
        self,
        kind: type[G],
        name: str,
        program: Program,
        arguments: Callable[[int], Sequence[str]],
        *,
        descriptors: Sequence[int],
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> tuple[G, socket.socket]:
        """Start a VMM; return its guest and the host's end of ``CONTROL``. Raises Unavailable.

        ``arguments`` are asked for with the number of the console's descriptor.
        ``descriptors``: what it inherits beside its three sockets, by the same numbers.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                pairs = [socket.socketpair() for _ in range(3)]
            except OSError as error:
                raise Unavailable(f"{kind.program} cannot be started: {error}") from error
            for mine, its in pairs:
                ours.enter_context(mine)
                theirs.enter_context(its)
            (wire, its_wire), (control, its_control), (console, its_console) = pairs
            guest = await self._supervisor.start(
                kind,
                name,
                [*program.command, *arguments(its_console.fileno())],
                stdin=its_wire.fileno(),
                stdout=its_control.fileno(),
                pass_fds=(its_console.fileno(), *descriptors),
                doors=doors,
                cpus=cpus,
                seen=program.seen,
                rights=False,
                environment={},
            )
            guest.attach(wire, console)
            ours.pop_all()
        return guest, control
