"""The files that are shipped into sandboxes: the harness's sources, and the default rules."""

import hashlib
from functools import cache
from pathlib import Path

import stockade


@cache
def guest_file(name: str) -> bytes:
    """The content of one."""
    return (_folder() / name).read_bytes()


@cache
def sources() -> dict[str, bytes]:
    """Name to content of all that is compiled into the harness, and of what compiles it."""
    return {path.name: path.read_bytes() for path in sorted(_folder().glob("*.java"))}


@cache
def digest() -> str:
    """Names them by content."""
    digest = hashlib.sha256()
    for name, content in sources().items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _folder() -> Path:
    return Path(stockade.__file__).parent / "guest" / "java"
