"""Programs of the host, and such as were unpacked from a package without being installed."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stockade.images.errors import CannotBuild

_ENVIRONMENT = {"LC_ALL": "C"}  # what programs say is read
_LONGEST_COMPLAINT = 500


def run(
    command: Sequence[str | Path],
    *,
    seconds: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run to the end; returns standard output. Raises :class:`CannotBuild`."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **_ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise CannotBuild(f"there is no {name} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{name} took longer than {seconds:.0f} s and was ended") from error
    except OSError as error:
        raise CannotBuild(f"{name} cannot be started: {error}") from error
    if done.returncode != 0:
        raise CannotBuild(f"{name}: {_complaint(done.stderr)}")
    return done.stdout.decode(errors="replace")


def _complaint(stderr: bytes) -> str:
    """The line that matters most to a person: apt's first error, else the last line."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    first = [line for line in lines if line.startswith("E:")]
    return (first[0] if first else lines[-1] if lines else "it failed")[:_LONGEST_COMPLAINT]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A folder that packages with programs and all their libraries were unpacked into.

    Each is started by its own loader, so that it works whatever C library the host has.
    """

    folder: Path
    triplet: str

    def command(self, program: str) -> list[str]:
        """The words that start it. ``program`` is its path in the folder."""
        libraries = self.folder / "usr/lib" / self.triplet
        loaders = sorted(libraries.glob("ld-linux*.so.*"))
        path = self.folder / program
        if not loaders or not path.exists():
            raise CannotBuild(f"{program} is not in the packages that should bring it")
        return [str(loaders[0]), "--library-path", str(libraries), str(path)]
