"""The tree that becomes a guest's root: packages, less what no program reads, and our own part."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from stockade.executor.namespace.image import Copy
from stockade.executor.root import FOLDERS, LINKS, USERS
from stockade.images.commands import Unpacked, run
from stockade.images.errors import CannotBuild

INTERPRETER = "usr/bin/python3"
_OURS = "opt/stockade/stockade_guest"
_COMPILING_SECONDS = 600.0

# For a system that runs, and for its readers: a guest is one program.
_UNUSED = (
    *("boot", "home", "media", "mnt", "root", "srv", "var"),
    *("etc/cron.d", "etc/cron.daily", "etc/init.d", "etc/logrotate.d", "etc/pam.d", "etc/systemd"),
    *("usr/lib/systemd", "usr/share/bug", "usr/share/doc", "usr/share/doc-base", "usr/share/info"),
    *("usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/zsh"),
)
# Links that the packages' scripts would make (update-alternatives(1)): where there is none, it
# leads to the first of these that is there.
_CHOICES: dict[str, tuple[str, ...]] = {
    "usr/bin/awk": ("gawk", "mawk"),
    "usr/bin/nawk": ("gawk", "mawk"),
    "usr/bin/which": ("which.debianutils",),
    "usr/bin/cc": ("gcc",),
    "usr/bin/c++": ("g++",),
    "usr/bin/java": ("../lib/jvm/default-java/bin/java",),
    "usr/bin/javac": ("../lib/jvm/default-java/bin/javac",),
    "usr/bin/pager": ("less", "more"),
    "usr/bin/vi": ("vim.basic", "vim.tiny"),
    "usr/bin/lzma": ("xz",),
}
# The same for libraries, in the folder of the machine's own.
_CHOICES_OF_LIBRARIES: dict[str, tuple[str, ...]] = {
    "libblas.so.3": ("openblas-pthread/libblas.so.3", "blas/libblas.so.3"),
    "liblapack.so.3": ("openblas-pthread/liblapack.so.3", "lapack/liblapack.so.3"),
    "libopenblas.so.0": ("openblas-pthread/libopenblas.so.0",),
}


def furnish(tree: Path, triplet: str) -> None:
    """What packages are, made a root: before our own part is laid into it."""
    for name in _UNUSED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name, target in LINKS.items():
        (tree / name).symlink_to(target)
    for name, text in USERS.items():
        path = tree / "etc" / name
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="ascii")
    for name, choices in _CHOICES.items():
        _link(tree / name, choices)
    for name, choices in _CHOICES_OF_LIBRARIES.items():
        _link(tree / "usr/lib" / triplet / name, choices)
    if not (tree / INTERPRETER).exists():
        raise CannotBuild(f"the packages bring no /{INTERPRETER}, which every guest needs")
    _compile(tree, triplet, sorted(path for path in tree.glob("usr/lib/python3*") if path.is_dir()))


def lay_in(tree: Path, triplet: str, copies: Sequence[Copy]) -> None:
    """Our own part."""
    for copy in copies:
        target = tree / copy.target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(copy.source, target)
        target.chmod(0o755 if os.access(copy.source, os.X_OK) else 0o644)
    _compile(tree, triplet, [tree / _OURS])


def _link(path: Path, choices: Sequence[str]) -> None:
    if path.exists() or path.is_symlink() or not path.parent.is_dir():
        return
    for choice in choices:
        if (path.parent / choice).exists():
            path.symlink_to(choice)
            return


def _compile(tree: Path, triplet: str, folders: Sequence[Path]) -> None:
    """Compile what Python imports, as its packages' scripts would: a guest cannot keep it.

    By the image's own Python. Neither the files' times nor the order of hashes are in the outcome,
    so that the same packages make the same disk.
    """
    python = Unpacked(tree, triplet).command(os.path.realpath(tree / INTERPRETER))
    stated = ("--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/")
    run(
        # -qq: a file that is not for this Python is left as it is.
        [*python, "-S", "-s", "-m", "compileall", "-qq", "-j", "1", *stated, *folders],
        seconds=_COMPILING_SECONDS,
        folder=tree,
        environment={
            "PYTHONHOME": str(tree / "usr"),
            "PYTHONPATH": "",
            "PYTHONOPTIMIZE": "",
            "PYTHONHASHSEED": "0",
        },
    )
