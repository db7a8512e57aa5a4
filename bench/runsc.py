"""runsc by itself, as one would call it from a script: a kernel per call, or one kept running.

Its flags, root and mounts are those of the gVisor tier; there is no cgroup around it.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.contestants import PROGRAM, Absent, Contestant, tried
from stockade.executor.gvisor.bundle import make_root, write_bundle
from stockade.executor.gvisor.runsc import find_runsc
from stockade.executor.gvisor.runtime import FLAGS
from stockade.executor.namespace.image import find_host_image
from stockade.port import Limits, Unavailable

RUN: Final = "runsc run, a kernel for each call"
EXEC: Final = "runsc exec, into one that runs"
_GUEST: Final = 1000
_PATIENCE_SECONDS: Final = 30.0


@contextlib.contextmanager
def open_runsc(
    folder: Path, *, runs: int = 1, execute: bool = True
) -> Iterator[list[Contestant | Absent]]:
    """``runsc run``, so many that can go on at once, and ``runsc exec`` if wanted.

    ``folder`` is theirs until the end.
    """
    names = [RUN] * runs + [EXEC] * execute
    try:
        program, image = str(find_runsc().path), find_host_image()
    except Unavailable as error:
        yield [Absent(name, str(error)) for name in names]
        return
    root = folder / "root"
    binds = make_root(root, image)
    runsc = (program, f"--root={folder / 'state'}", *FLAGS)

    def bundle(name: str, arguments: Sequence[str]) -> tuple[str, ...]:
        place = folder / name
        write_bundle(place, root, binds, Limits().disk_bytes, ())
        _let_it_run(place / "config.json", arguments)
        return (*runsc, "run", "-bundle", str(place), name)

    with contextlib.ExitStack() as stack:
        found = [tried(Contestant(RUN, bundle(f"once{n}", PROGRAM))) for n in range(runs)]
        if execute:
            kept = bundle("kept", ("/usr/bin/sleep", "infinity"))
            stack.enter_context(_running(runsc, kept))
            found.append(tried(Contestant(EXEC, (*runsc, "exec", "kept", *PROGRAM))))
        yield found


def _let_it_run(configuration: Path, arguments: Sequence[str]) -> None:
    """Instead of our agent, which sets up inside what runsc is told of here."""
    content: dict[str, Any] = json.loads(configuration.read_text())
    content["process"] |= {
        "args": list(arguments),
        "env": ["PATH=/usr/bin"],
        "user": {"uid": _GUEST, "gid": _GUEST},
        "cwd": "/workspace",
        "capabilities": {},
    }
    size = f"size={Limits().disk_bytes}"
    content["mounts"] += [
        {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", size]}
        for place in ("/tmp", "/workspace")
    ]
    configuration.write_text(json.dumps(content))


@contextlib.contextmanager
def _running(runsc: tuple[str, ...], command: tuple[str, ...]) -> Iterator[None]:
    name = command[-1]
    quiet: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    with subprocess.Popen(command, **quiet) as process:
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            look = (*runsc, "exec", name, "/usr/bin/true")
            while subprocess.run(look, check=False, **quiet).returncode:
                if time.monotonic() > deadline or process.poll() is not None:
                    break  # what is to be executed in it will say what is wrong
                time.sleep(0.05)
            yield
        finally:
            subprocess.run((*runsc, "delete", "--force", name), check=False, **quiet)
            process.kill()
