"""A warm guest saved once per profile, and started as many times as there are calls."""

import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from stockade.executor.gvisor.bundle import write_bundle
from stockade.executor.gvisor.runtime import Guest, Runtime
from stockade.executor.namespace.image import Bind
from stockade.executor.owners import make_readable


class Template:
    """What sandboxes of one profile are started from: a bundle and, with it, a snapshot.

    A snapshot fixes what the bundle says: a restore takes no other environment, limit or mount.
    It holds the agent and a warm interpreter, and nothing of anybody's. Its copies share the
    seed of ``hash()`` and the layout of their memory, so it serves one tenant only.
    """

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._bundle = folder / "bundle"
        self._snapshot: Path | None = None

    def __repr__(self) -> str:
        return f"<Template {self._folder.name} {'saved' if self._snapshot else 'cold'}>"

    def write(
        self, root: Path, mounts: Sequence[Bind], disk_bytes: int, modules: Sequence[str]
    ) -> None:
        """Write the bundle."""
        self._folder.mkdir()
        (self._folder / "snapshot").mkdir()
        write_bundle(self._bundle, root, mounts, disk_bytes, modules)
        make_readable(self._folder)

    async def save(self, cpus: Sequence[int]) -> None:
        """Start a guest, wait until it is warm, save it. Raises Unavailable."""
        name = f"{self._folder.name}-warm"
        guest = await self._runtime.run(name, self._bundle, cpus=cpus)
        try:
            await guest.ready()
            snapshot = self._folder / "snapshot"
            await self._runtime.checkpoint(name, snapshot)
            make_readable(snapshot)
            self._snapshot = snapshot
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(guest.pidfd, signal.SIGKILL)
            await guest.ended()
            guest.close()

    async def start(self, name: str, doors: Sequence[int], cpus: Sequence[int]) -> Guest:
        """A guest about to say HELLO. Raises Unavailable."""
        if self._snapshot is not None:
            return await self._runtime.restore(name, self._bundle, self._snapshot, doors, cpus)
        return await self._runtime.run(name, self._bundle, doors, cpus)

    @property
    def saved(self) -> bool:
        """Whether guests are restored rather than started cold."""
        return self._snapshot is not None

    @property
    def bytes_on_disk(self) -> int:
        """The snapshot's size."""
        if self._snapshot is None:
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self._snapshot))

    def remove(self) -> None:
        """Remove its files; guests that were started live on."""
        shutil.rmtree(self._folder, ignore_errors=True)
