"""The build hook: compiles the C part of the namespace tier into the package.

`launch.c` becomes the executable `stockade-launch` and `sandbox.c` the shared library
`libstockade.so`, beside their sources. Both are loaded by path, never by Python's import, so
a wheel fits every Python 3 of its platform.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/stockade/executor/namespace/native")

COMMON_FLAGS = (
    "-std=c11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wformat=2",
    "-fstack-protector-strong",
    # Ubuntu's gcc defines its own level; to define another one over it is an error.
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
)
LINK_FLAGS = ("-Wl,-z,relro,-z,now,-z,noexecstack",)

# output: (source, flags of its own)
PRODUCTS = {
    "stockade-launch": ("launch.c", ("-fPIE", "-pie")),
    "libstockade.so": ("sandbox.c", ("-fPIC", "-shared")),
}
# What the products were built from: a digest of the sources, the flags and the compiler.
STAMP = ".built"

MACHINES = ("x86_64", "aarch64")
NO_COMPILER = "no C compiler ({0}): apt-get install gcc libc6-dev"


class NativeBuildHook(BuildHookInterface[Any]):
    """Builds the native part for wheels and for editable installs alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what is not up to date, and tag the wheel for this platform only."""
        if self.target_name != "wheel":
            return
        machine = platform.machine()
        if sys.platform != "linux" or machine not in MACHINES:
            refuse(f"stockade needs Linux on {' or '.join(MACHINES)}, not {sys.platform} {machine}")
        build_native(Path(self.root) / NATIVE)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"

    def clean(self, versions: list[str]) -> None:
        """Remove what was compiled."""
        for name in (*PRODUCTS, STAMP):
            (Path(self.root) / NATIVE / name).unlink(missing_ok=True)


def build_native(folder: Path) -> None:
    """Compile every product in `folder` unless all are there, built from these very sources."""
    missing = [source for source, _ in PRODUCTS.values() if not (folder / source).is_file()]
    if missing:
        refuse(f"the C sources are missing from {folder}: {', '.join(missing)}")

    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    stamp = folder / STAMP
    digest = digest_of_inputs(folder, compiler)
    if all((folder / name).is_file() for name in PRODUCTS) and read_stamp(stamp) == digest:
        return

    if shutil.which(compiler[0]) is None:
        refuse(NO_COMPILER.format(f"{compiler[0]} is not there"))
    # Removed first: an interrupted build must not look like a finished one.
    stamp.unlink(missing_ok=True)
    for name, (source, flags) in PRODUCTS.items():
        compile_product(compiler, flags, folder / source, folder / name)
    stamp.write_text(digest + "\n", encoding="ascii")


def compile_product(
    compiler: list[str], flags: tuple[str, ...], source: Path, product: Path
) -> None:
    """Compile one source into one product, which appears whole or not at all."""
    scratch = product.with_name(f".{product.name}.{os.getpid()}")
    command = [*compiler, *COMMON_FLAGS, *flags, "-o", str(scratch), str(source), *LINK_FLAGS]
    try:
        # The compiler's own words go to our standard error, unchanged.
        if subprocess.run(command, check=False).returncode != 0:
            refuse(f"{compiler[0]} failed on {source.name}; {advice(compiler)}")
        # Over a running launcher too: the old one keeps its own inode.
        scratch.replace(product)
    finally:
        scratch.unlink(missing_ok=True)


def advice(compiler: list[str]) -> str:
    """Say whether the compiler works at all, since one without headers looks like our fault."""
    probe = subprocess.run(
        [*compiler, "-x", "c", "-fsyntax-only", "-"],
        input="#include <stdio.h>\n#include <linux/seccomp.h>\n",
        text=True,
        capture_output=True,
        check=False,
    )
    if probe.returncode != 0:
        return "the C library's headers are missing: apt-get install libc6-dev"
    return "its messages are above"


def digest_of_inputs(folder: Path, compiler: list[str]) -> str:
    """Name everything that the products depend on, with one digest."""
    digest = hashlib.sha256()
    digest.update(repr((compiler, COMMON_FLAGS, LINK_FLAGS, PRODUCTS)).encode())
    for path in sorted(folder.glob("*.[ch]")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def read_stamp(stamp: Path) -> str:
    """Return the digest of the last finished build, or nothing."""
    return stamp.read_text(encoding="ascii").strip() if stamp.is_file() else ""


def refuse(reason: str) -> None:
    """End the build with one line that says what to do."""
    raise SystemExit(f"stockade: {reason}")
