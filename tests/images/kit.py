"""A made-up archive of Debian: packages of a few bytes, and an apt-get that serves them."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

needs_dpkg = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None, reason="packages are unpacked by dpkg-deb"
)

# What is asked of apt, and nothing else.
APT_GET = """#!/bin/sh
last=
for word; do last=$word; done
case " $* " in
  *" indextargets "*) cat FAKES/sources ;;
  *" update "*)
    echo update >>FAKES/calls
    [ ! -e FAKES/offline ] || { echo 'W: slow'; echo 'E: no route to it' >&2; exit 100; } ;;
  *" --print-uris "*)
    [ -e "FAKES/answers/$last" ] || { echo "E: Unable to locate package $last" >&2; exit 100; }
    for word; do [ ! -f "FAKES/answers/$word" ] || cat "FAKES/answers/$word"; done | sort -u ;;
  *" download "*)
    echo download >>FAKES/calls
    cp FAKES/pool/*.deb . ;;
  *) echo "E: unexpected: $*" >&2; exit 1 ;;
esac
"""
SCRIPT = "#!/bin/sh\n"
# Starts what it is given, as the loader of a C library does.
LOADER = SCRIPT + 'shift 2\nexec "$@"\n'


@dataclass
class Debian:
    """The archive, and the ``PATH`` on which its apt-get is."""

    root: Path
    packages: dict[str, Path] = field(default_factory=dict)

    @property
    def calls(self) -> list[str]:
        """What the archive was asked."""
        path = self.root / "calls"
        return path.read_text().split() if path.exists() else []

    def forget_calls(self) -> None:
        (self.root / "calls").unlink(missing_ok=True)

    def add(self, name: str, files: Mapping[str, str | bytes], version: str = "1:2.0-3") -> Path:
        """Make a package. A name that ends in ``!`` is that of a program."""
        tree = self.root / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
            "Maintainer: x <x@x.invalid>\nDescription: made up\n"
        )
        for path, content in files.items():
            target = tree / path.rstrip("!")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
            if path.endswith("!"):
                target.chmod(0o4755)
        pool = self.root / "pool"
        pool.mkdir(exist_ok=True)
        made = pool / f"{name}_{version.replace(':', '%3a')}_all.deb"
        command = ["dpkg-deb", "--build", "-Znone", "--root-owner-group", str(tree), str(made)]
        subprocess.run(command, check=True, capture_output=True)
        self.packages[name] = made
        return made

    def answer(self, asked: str, *names: str) -> None:
        """What asking for packages, the last of which is ``asked``, leads to."""
        folder = self.root / "answers"
        folder.mkdir(exist_ok=True)
        lines = []
        for name in names:
            path = self.packages[name]
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            size = path.stat().st_size
            lines.append(f"'http://x.invalid/{path.name}' {path.name} {size} SHA256:{digest}\n")
        (folder / asked).write_text("Reading package lists...\n" + "".join(lines))

    def put(self, name: str, script: str) -> Path:
        """A program on ``PATH``."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script.replace("FAKES", str(self.root)))
        path.chmod(0o755)
        return path

    def path(self) -> str:
        """For the environment."""
        return f"{self.root / 'bin'}:{os.environ.get('PATH', os.defpath)}"


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    """With nothing in it but what is asked of every suite."""
    made = Debian(tmp_path / "fakes")
    made.root.mkdir()
    made.put("apt-get", APT_GET)
    (made.root / "sources").write_text("Debian|trixie|http://mirror.invalid/debian\n")
    made.add("base-files", {"etc/debian_version": "13\n"})
    made.answer("base-files", "base-files")
    keyring = made.root / "keyring.gpg"
    keyring.touch()
    monkeypatch.setenv("PATH", made.path())
    monkeypatch.setattr("stockade.images.apt.KEYRING", keyring)
    return made
