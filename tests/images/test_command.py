"""``stockade image``: what it prints, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stockade.cli.main import cli
from stockade.executor.microvm.image import VARIABLE

from .kit import Debian, needs_dpkg

BUILD = ("image", "build", "--for", "microvm")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "images"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def stockade(*words: str) -> tuple[int, str, str]:
    """Code, standard output, standard error."""
    ended = CliRunner().invoke(cli, words)
    return ended.exit_code, ended.stdout, ended.stderr


@needs_dpkg
@pytest.mark.usefixtures("archive", "native")
def test_what_is_built_is_listed(store: Path) -> None:
    """With its digest and its place; once more nothing is done."""
    code, out, said = stockade(*BUILD, "--json")
    assert code == 0, said
    built = json.loads(out)
    assert built.pop("changed")
    assert built["folder"] == str(store / "microvm" / built["digest"].removeprefix("sha256:"))
    code, out, said = stockade("image", "list", "--json")
    assert (code, json.loads(out), said) == (0, {"images": [built]}, "")
    code, out, _ = stockade("image", "list")
    assert out.startswith(f"* {built['digest']}  ")
    assert stockade(*BUILD) == (0, f"{built['digest']}  {built['folder']}\n", "")


def test_where_nothing_was_built_the_list_says_how() -> None:
    code, out, said = stockade("image", "list")
    assert (code, out) == (0, "")
    assert "`stockade image build --for microvm` makes one" in said


@needs_dpkg
@pytest.mark.usefixtures("native")
def test_a_build_that_cannot_be_is_one_sentence(archive: Debian) -> None:
    """And a code that says so."""
    (archive.root / "offline").touch()
    code, out, said = stockade(*BUILD)
    assert (code, out) == (69, "")
    assert said.startswith("stockade: no suite of Debian can be had")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("image", "build"), ("image", "build", "--for", "gvisor"), ("image", "bild")]
)
def test_a_wrong_command_line_is_refused(words: tuple[str, ...]) -> None:
    assert stockade(*words)[0] == 64


@needs_dpkg
@pytest.mark.usefixtures("archive", "native")
def test_a_name_that_is_none_never_reaches_apt() -> None:
    code, _, said = stockade(*BUILD, "--package=-oAPT::x=1")
    assert code == 69
    assert "is no name of a Debian package" in said


def test_help_imports_nothing_of_the_builder() -> None:
    """The command line starts fast."""
    code = "import sys, stockade.cli.image; print([m for m in sys.modules if m.startswith('stockade.images')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
