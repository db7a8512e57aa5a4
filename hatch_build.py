"""The build hook: compiles the C part into the package.

The launcher and the library of the namespace tier, the supervisor of the tiers with a kernel of
their own, the agent that is pid 1 of every sandbox, and what starts it in a microVM. All are loaded
by path, never by Python's import, so a wheel fits every Python 3 of its platform.
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

PACKAGE = Path("src/stockade")
# Where the products go; the sources stand in both.
NATIVE = "executor/namespace/native"
AGENT = "guest/native"
SUPERVISE = "executor/native"

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

AGENT_SOURCES = tuple(
    f"{AGENT}/{name}.c"
    for name in (
        "agent",
        "wire",
        "files",
        "json",
        "receipt",
        "park",
        "confine",
        "filter",
        "machine",
        "disk",
        "egress",
    )
)

# output: (sources, flags of its own)
PRODUCTS = {
    "stockade-launch": ((f"{NATIVE}/launch.c",), ("-fPIE", "-pie")),
    "libstockade.so": (
        (
            *(f"{NATIVE}/{name}.c" for name in ("zygote", "sandbox")),
            *(f"{AGENT}/{name}.c" for name in ("confine", "filter", "park")),
        ),
        ("-fPIC", "-shared"),
    ),
    "stockade-supervise": ((f"{SUPERVISE}/supervise.c",), ("-fPIE", "-pie")),
    # Static: it has to run in any image, and starts without a dynamic linker's work.
    "stockade-agent": (AGENT_SOURCES, ("-fPIE", "-static-pie")),
    # Of a microVM's initramfs, which has no library.
    "stockade-init": ((f"{AGENT}/init.c",), ("-fPIE", "-static-pie")),
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
        build_native(Path(self.root) / PACKAGE)
        build_data["pure_python"] = False
        # Ignored by git, and yet shipped.
        build_data["artifacts"] += [f"/{PACKAGE / NATIVE / name}" for name in PRODUCTS]
        build_data["tag"] = f"py3-none-linux_{machine}"

    def clean(self, versions: list[str]) -> None:
        """Remove what was compiled."""
        for name in (*PRODUCTS, STAMP):
            (Path(self.root) / PACKAGE / NATIVE / name).unlink(missing_ok=True)


def build_native(package: Path) -> None:
    """Compile every product unless all are there, built from these very sources."""
    folder = package / NATIVE
    wanted = {source for sources, _ in PRODUCTS.values() for source in sources}
    missing = sorted(source for source in wanted if not (package / source).is_file())
    if missing:
        refuse(f"the C sources are missing from {package}: {', '.join(missing)}")

    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    stamp = folder / STAMP
    digest = digest_of_inputs(package, compiler)
    if all((folder / name).is_file() for name in PRODUCTS) and read_stamp(stamp) == digest:
        return

    if shutil.which(compiler[0]) is None:
        refuse(NO_COMPILER.format(f"{compiler[0]} is not there"))
    # Removed first: an interrupted build must not look like a finished one.
    stamp.unlink(missing_ok=True)
    for name, (sources, flags) in PRODUCTS.items():
        include = (f"-I{package / AGENT}", f"-I{folder}")
        paths = [str(package / source) for source in sources]
        compile_product(compiler, (*flags, *include), paths, folder / name)
    stamp.write_text(digest + "\n", encoding="ascii")


def compile_product(
    compiler: list[str], flags: tuple[str, ...], sources: list[str], product: Path
) -> None:
    """Compile some sources into one product, which appears whole or not at all."""
    scratch = product.with_name(f".{product.name}.{os.getpid()}")
    command = [*compiler, *COMMON_FLAGS, *flags, "-o", str(scratch), *sources, *LINK_FLAGS]
    try:
        # The compiler's own words go to our standard error, unchanged.
        if subprocess.run(command, check=False).returncode != 0:
            refuse(f"{compiler[0]} failed on {product.name}; {advice(compiler)}")
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


def digest_of_inputs(package: Path, compiler: list[str]) -> str:
    """Name everything that the products depend on, with one digest."""
    digest = hashlib.sha256()
    digest.update(repr((compiler, COMMON_FLAGS, LINK_FLAGS, PRODUCTS)).encode())
    for folder in (NATIVE, AGENT, SUPERVISE):
        for path in sorted((package / folder).glob("*.[ch]")):
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
