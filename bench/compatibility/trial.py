"""Running one row, in a tier or without any."""

import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from bench.compatibility.rows import Row
from bench.contestants import PYTHON
from stockade.executor.environment import LocalEnvironment
from stockade.port import Execution, ExecutionRequest, Limits, PythonScript, SandboxRequest, Tier

NAME: Final = "program.py"
# What a sandbox has. A program that is elsewhere on the host is not in the image.
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_MOST_WORDS: Final = 160
_PATIENCE_SECONDS: Final = 120.0
DEFAULTS: Final = Limits()


class Verdict(StrEnum):
    """What is said of a row in a tier."""

    WORKS = "works"
    FAILS = "does not work"
    ABSENT = "not installed here"
    UNTRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""
    """Why it does not work, or what is not installed."""


def absent(row: Row) -> str:
    """What of the row this host's image lacks; nothing: empty. The host is asked, not a tier."""
    for command in row.commands:
        if shutil.which(command, path=_PATH) is None:
            return command
    return next((module for module in row.modules if lacks_module(module)), "")


@cache
def lacks_module(name: str) -> bool:
    """Whether the host's Python, which is the image's, has no such module."""
    look = f"import sys, importlib.util as u; sys.exit(u.find_spec({name!r}) is None)"
    return subprocess.run([PYTHON, "-I", "-c", look], check=False).returncode != 0


async def try_in(
    environment: LocalEnvironment, tier: Tier, row: Row, limits: Limits = DEFAULTS
) -> Trial:
    """In a sandbox of its own."""
    if lacks := absent(row):
        return Trial(Verdict.ABSENT, reason=lacks)
    request = ExecutionRequest(
        PythonScript(NAME, row.source),
        files=row.files(),
        artefacts=(row.artefact,) if row.artefact else (),
    )
    execution = await environment.run(request, SandboxRequest(tier=tier, limits=limits))
    reason = _fault(execution, row)
    verdict = Verdict.FAILS if reason else Verdict.WORKS
    return Trial(verdict, execution.timings.ran, reason)


def try_bare(row: Row) -> Trial:
    """Without a sandbox: what fails here says nothing of a tier."""
    if lacks := absent(row):
        return Trial(Verdict.ABSENT, reason=lacks)
    # In memory, as a workspace is.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for name, content in {**row.files(), NAME: row.source}.items():
            Path(folder, name).write_bytes(content)
        environment = {"PATH": _PATH, "HOME": folder, "LANG": "C.UTF-8"}
        began = time.perf_counter()
        ended = subprocess.run(
            [PYTHON, NAME],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=_PATIENCE_SECONDS,
        )
        took = time.perf_counter() - began
        reason = ""
        if ended.returncode:
            reason = f"exit code {ended.returncode}: {_last_line(ended.stderr)}"
        elif ended.stdout != row.printed.encode():
            reason = f"it printed {ended.stdout!r}"
        elif row.artefact:
            reason = row.check(Path(folder, row.artefact).read_bytes())
    return Trial(Verdict.FAILS if reason else Verdict.WORKS, took, reason)


def _fault(execution: Execution, row: Row) -> str:
    if not execution.ok:
        return f"{execution.outcome}: {_last_line(execution.stderr.content) or execution.detail}"
    if execution.stdout.content != row.printed.encode():
        return f"it printed {execution.stdout.content!r}"[:_MOST_WORDS]
    if not row.artefact:
        return ""
    for missing in execution.missing_artefacts:
        return f"{missing.name} did not come out: {missing.reason}"
    return row.check(execution.artefacts[0].data)


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_MOST_WORDS] if lines else ""
