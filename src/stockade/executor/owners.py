"""Who runsc's processes are on the host: two user ids for each sandbox, and none of them root's."""

from dataclasses import dataclass
from pathlib import Path

from stockade.executor.namespace.identity import Identities, IdentitySlice


@dataclass(frozen=True, slots=True)
class Owner:
    """The ids of one sandbox: inside, the first is root's and the second nobody's."""

    root: int
    nobody: int
    group: int
    """Of all sandboxes of an executor: the files that they are started from may be read by it."""
    offsets: tuple[int, int]


class Owners:
    """The ids of one executor's sandboxes; no two that live at the same time share one."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        taken = identities.slice()
        if not isinstance(taken, IdentitySlice):
            raise TypeError(f"{identities!r} has no ids to give")
        self._slice = taken

    def __repr__(self) -> str:
        return f"<Owners {self._slice!r}>"

    @property
    def group(self) -> int:
        """The host id of their group."""
        return self._slice.host_id(0)

    def take(self) -> Owner:
        """Ids for a sandbox. Raises :class:`~stockade.port.Unavailable`."""
        root = self._slice.acquire()
        try:
            nobody = self._slice.acquire()
        except BaseException:
            self._slice.release(root)
            raise
        host_id = self._slice.host_id
        return Owner(host_id(root), host_id(nobody), self.group, (root, nobody))

    def give_back(self, owner: Owner) -> None:
        """Once nothing that has them lives."""
        for offset in owner.offsets:
            self._slice.release(offset)

    def close(self) -> None:
        """Once every sandbox is gone."""
        self._identities.give_back(self._slice)


def make_readable(folder: Path) -> None:
    """Let all who may enter it read what is below; who may is said by a folder above."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
