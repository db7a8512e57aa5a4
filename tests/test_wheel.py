"""What is shipped: the wheel, built and installed where there is nothing else of ours."""

import runpy
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stockade.executor.doctor import examination

ROOT = Path(__file__).parent.parent
# .gitignore: what it names is left out of a wheel unless the build asks for it.
INPUTS = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore")
PRODUCTS = set(runpy.run_path(str(ROOT / "hatch_build.py"))["PRODUCTS"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # In a copy, which has what was compiled already: a build writes into its sources.
    copy = tmp_path_factory.mktemp("sources")
    for name in INPUTS:
        shutil.copy2(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(copy / "dist")]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    (built,) = (copy / "dist").iterdir()
    return built


def run(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_that_is_compiled_is_shipped_and_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"stockade/executor/namespace/native/{name}" for name in PRODUCTS} <= names
    assert "stockade/py.typed" in names


@pytest.mark.tier("namespace")
def test_an_installed_wheel_runs_a_program(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel)
    # Its dependencies, from where the tests have theirs: nothing is fetched.
    ours = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])").strip())
    (ours / "dependencies.pth").write_text(site.getsitepackages()[0] + "\n")
    assert run(python, "-c", "import stockade; print(stockade.__file__)").startswith(str(venv))
    told = run(venv / "bin" / "stockade", "run", "--tier", "namespace", "-c", "print(6 * 7)")
    assert told == "42\n"


def test_whoever_looks_for_what_is_compiled_looks_for_all_of_it() -> None:
    assert set(examination._BUILT) == PRODUCTS
    ready = (ROOT / "dev").read_text().partition("is_ready() {")[2].partition("\n}\n")[0]
    assert {name for name in PRODUCTS if f"$native/{name} " in ready} == PRODUCTS
