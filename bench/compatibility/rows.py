"""What is tried: real programs, each of which uses its thing and checks what came of it."""

import hashlib
import io
import struct
import zipfile
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent.parent / "programs"

_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One program, and what it has to come to."""

    what: str
    program: str
    """A file of ``PROGRAMS``."""
    printed: str
    """Its output when all that it checks is so."""
    modules: tuple[str, ...] = ()
    """Of the host's Python, without which there is nothing to try."""
    commands: tuple[str, ...] = ()
    """Of the host's, likewise."""
    files: Callable[[], Mapping[str, bytes]] = field(default=dict)
    artefact: str = ""
    check: Callable[[bytes], str] = field(default=lambda _: "")
    """What is wrong with the artefact; nothing: empty."""

    @property
    def source(self) -> bytes:
        """The program itself."""
        return (PROGRAMS / self.program).read_bytes()


def make_wheel() -> dict[str, bytes]:
    """A wheel with a module and a command. https://packaging.python.org/specifications/"""
    name, info = "pebble-1.0-py3-none-any.whl", "pebble-1.0.dist-info"
    content = {
        "pebble/__init__.py": 'def main():\n    print("skipped three times")\n',
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pebble\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\npebble = pebble:main\n",
    }
    record = ""
    for path, text in content.items():
        digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return {name: wheel.getvalue()}


def fault_of_chart(data: bytes) -> str:
    """A PNG of 640 by 480 whose pixels unpack, and are not all one colour."""
    if not data.startswith(_PNG):
        return "chart.png has not the signature of a PNG"
    place, pixels, size = len(_PNG), b"", (0, 0)
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if struct.unpack_from(">I", data, place + 8 + length)[0] != zlib.crc32(kind + body):
            return f"the sum of a part of chart.png, {kind!r}, is wrong"
        if kind == b"IHDR":
            size = struct.unpack_from(">II", body)
        elif kind == b"IDAT":
            pixels += body
        place += 12 + length
    if size != (640, 480):
        return f"chart.png is {size[0]} by {size[1]}"
    unpacked = zlib.decompress(pixels)
    # A byte for the filter of each line, four for each pixel.
    if len(unpacked) != 480 * (1 + 4 * 640) or len(set(unpacked)) < 16:
        return "chart.png is empty"
    return ""


ROWS: Final = (
    Row("numpy", "use_numpy.py", "44850\n", modules=("numpy",)),
    Row("pandas", "use_pandas.py", "4872\n", modules=("pandas",)),
    Row(
        "matplotlib to PNG, taken out as an artefact",
        "use_matplotlib.py",
        "1\n",
        modules=("matplotlib",),
        artefact="chart.png",
        check=fault_of_chart,
    ),
    Row("sqlite with WAL, two processes", "use_sqlite.py", "1001\n"),
    Row("subprocess", "use_subprocess.py", "42\n", commands=("bash", "diff")),
    Row("threads, 50 at once", "use_threads.py", "5000\n"),
    Row("multiprocessing: fork, spawn, shared memory", "use_multiprocessing.py", "328350\n"),
    Row("asyncio: subprocess, TCP and Unix sockets", "use_asyncio.py", "499500\n"),
    Row("git", "use_git.py", "['both', 'third', 'first']\n", commands=("git",)),
    Row("gcc, and what it made", "use_gcc.py", "10\n", commands=("gcc",)),
    Row("node", "use_node.py", "hello | 5 note | 42 | 2cf24dba\n", commands=("node",)),
    Row("javac and java", "use_java.py", "328350\n", commands=("javac", "java")),
    Row(
        "pip install from a local wheel",
        "use_pip.py",
        "skipped three times\n",
        modules=("pip",),
        files=make_wheel,
    ),
    Row("10,000 small files", "use_files.py", "49995000\n"),
)
