"""The prison of a VMM: whoever escapes from a guest into its VMM is nobody, and sees nothing.

Two ids of its own, no capability, namespaces of its own, no network, of the host's files those
alone that the VMM itself is made of; a cgroup's ceiling on its memory and its CPU. See
``native/supervise.c``.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from stockade.executor.microvm.vmm import Guest
from stockade.executor.owners import Owners
from stockade.executor.supervised import Supervisor

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
    """Where an executor's VMMs are kept, each in one of its own. All that is writable is ``/tmp``."""

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
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        descriptors: Sequence[int],
        doors: Sequence[int],
        cpus: Sequence[int],
    ) -> G:
        """Start a VMM. Raises Unavailable.

        ``descriptors``: what it inherits beside its streams, by the same numbers.
        """
        return await self._supervisor.start(
            kind,
            name,
            [*program.command, *arguments],
            stdin=stdin,
            stdout=stdout,
            pass_fds=descriptors,
            doors=doors,
            cpus=cpus,
            seen=program.seen,
            rights=False,
            environment={},
        )
