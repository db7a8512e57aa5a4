"""The recipe of a microVM's image: from names of packages to files in the store."""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from stockade.executor.namespace.image import Copy, guest_copies, native_folder
from stockade.images.apt import Archive, Package, check_names, find_cached, open_archive
from stockade.images.commands import Unpacked, run
from stockade.images.errors import CannotBuild
from stockade.images.initramfs import make_initramfs
from stockade.images.kernel import read_kernel, read_modules
from stockade.images.resolved import Request, Resolved, recall, remember, resolve
from stockade.images.root import furnish, lay_in
from stockade.images.store import PARTS, SCRATCH, Image, Store, describe, file_digest
from stockade.images.unpack import unpack

# Raised when the same packages are to become another image.
_RECIPE = 3
_MAKING_SECONDS = 300.0
# What is unpacked is about four times what is fetched, and the disk once more.
_ROOM = 6
_BUILT_FROM = ".built-from"
_PACKAGES = ".packages"
_RESOLVED = ".resolved"


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that an image is made of, by content."""

    resolved: Resolved
    copies: tuple[Copy, ...]
    init: Path

    def key_of_base(self) -> str:
        """What the tree is made of before our own part is laid into it."""
        return _digest([f"base {_RECIPE}", *(each.sha256 for each in self.resolved.root)])

    def key(self) -> str:
        """Of the whole image."""
        ours = (f"{copy.target} {file_digest(copy.source)}" for copy in self.copies)
        parts = (each.sha256 for each in (self.resolved.kernel, *self.resolved.tools))
        return _digest([self.key_of_base(), *parts, file_digest(self.init), *ours])


def build(
    request: Request, folder: Path, tell: Callable[[str], None] = lambda _: None
) -> tuple[Image, bool]:
    """The image, in the store at ``folder``, and whether it is another than before.

    Raises :class:`CannotBuild`.
    """
    architecture = request.architecture()
    check_names(request.packages)
    init = native_folder() / "stockade-init"
    if not init.exists():
        raise CannotBuild(f"{init} is missing: the package was installed without its C part")
    store = Store(folder)
    with store.locked(), ExitStack() as stack:
        # Modes are part of the disk.
        stack.callback(os.umask, os.umask(0o022))
        cache = store.folder / _PACKAGES
        resolved = recall(store.folder / _RESOLVED, request)
        files = find_cached(resolved.packages(), cache) if resolved else None
        archive = None
        if resolved is None or files is None:
            archive = stack.enter_context(open_archive(architecture, request.mirror))
            resolved = resolve(archive, request)
        plan = _Plan(resolved, guest_copies(), init)
        known = _find_same(store, plan)
        if archive:
            if not known:
                files = _fetch(archive, resolved, store, cache, tell)
            remember(store.folder / _RESOLVED, request, resolved, time.time())
        if known:
            return known, False
        assert files is not None
        scratch = stack.enter_context(TemporaryDirectory(prefix=SCRATCH, dir=store.folder))
        return _make(plan, files, request.machine, store, Path(scratch), tell), True


def _fetch(
    archive: Archive, resolved: Resolved, store: Store, cache: Path, tell: Callable[[str], None]
) -> dict[Package, Path]:
    packages = resolved.packages()
    size = sum(package.size for package in packages)
    if shutil.disk_usage(store.folder).free < size * _ROOM:
        raise CannotBuild(
            f"{store.folder} has no room: {(size * _ROOM) >> 20} MiB are needed for a while"
        )
    tell(f"{len(packages)} packages of Debian {archive.suite}, {size >> 20} MiB")
    files = archive.fetch(packages, cache)
    for path in set(cache.iterdir()) - set(files.values()):
        path.unlink()
    return files


def _find_same(store: Store, plan: _Plan) -> Image | None:
    """The current image, where it was made of the very same and is still whole."""
    key = plan.key()
    for image in store.images():
        made_of = image.folder / _BUILT_FROM
        if image.current and made_of.is_file() and made_of.read_text(encoding="ascii") == key:
            return image if store.is_whole(image) else None
    return None


def _make(
    plan: _Plan,
    files: Mapping[Package, Path],
    machine: str,
    store: Store,
    scratch: Path,
    tell: Callable[[str], None],
) -> Image:
    triplet = f"{machine}-linux-gnu"
    tools = Unpacked(scratch / "tools", triplet)
    unpack((files[package] for package in plan.resolved.tools), tools.folder)
    made = scratch / "image"
    made.mkdir()

    unpack([files[plan.resolved.kernel]], scratch / "kernel")

    def unzstd(data: bytes) -> bytes:
        return _filter([*tools.command("usr/bin/zstd"), "-d", "-c"], data)

    (made / "kernel").write_bytes(read_kernel(scratch / "kernel", unzstd))
    modules = read_modules(scratch / "kernel")
    (made / "initramfs").write_bytes(
        make_initramfs(plan.init.read_bytes(), modules.always, modules.for_disk)
    )

    base = _base(plan, files, triplet, store, tell)
    tree = scratch / "root"
    # Hard links: what is in the base is never written again.
    shutil.copytree(base, tree, symlinks=True, copy_function=os.link)
    lay_in(tree, triplet, plan.copies)
    tell("making the disk")
    _make_disk(tools, tree, made / "disk")

    (made / _BUILT_FROM).write_text(plan.key(), encoding="ascii")
    parts = {name: file_digest(made / name) for name in PARTS}
    return store.publish(made, describe(machine, parts, plan.resolved.kernel, plan.resolved.root))


def _base(
    plan: _Plan,
    files: Mapping[Package, Path],
    triplet: str,
    store: Store,
    tell: Callable[[str], None],
) -> Path:
    """The tree without our own part, kept for the next build: it is what takes time."""
    bases = store.folder / ".bases"
    base = bases / plan.key_of_base()
    if not base.is_dir():
        shutil.rmtree(bases, ignore_errors=True)  # one, not one for each build that ever was
        fresh = bases / ".new"
        tell("unpacking")
        unpack((files[package] for package in plan.resolved.root), fresh)
        tell("compiling what Python imports")
        furnish(fresh, triplet)
        os.sync()  # a machine that goes down must not leave it half empty under its name
        fresh.rename(base)
    return base


def _make_disk(tools: Unpacked, tree: Path, disk: Path) -> None:
    """The same bytes for the same tree: no times, owners, labels or chance."""
    stated = ("-T0", f"-U{UUID(int=0)}", "--all-root", "-x-1")
    command = [*tools.command("usr/bin/mkfs.erofs"), *stated, str(disk), str(tree)]
    run(command, seconds=_MAKING_SECONDS)


def _filter(command: Sequence[str], data: bytes) -> bytes:
    done = subprocess.run(
        command, input=data, capture_output=True, timeout=_MAKING_SECONDS, check=False
    )
    if done.returncode:
        raise CannotBuild(f"the kernel cannot be decompressed: {done.stderr.decode()[-200:]}")
    return done.stdout


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
