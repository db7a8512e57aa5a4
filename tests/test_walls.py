"""The walls between the zones: the folder a line stands in tells what it may touch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "src/stockade/guest"
GUEST_FILES = sorted(GUEST.rglob("*.py"))

# The guest runs on the sandbox's Python, which may be this old: these modules came later.
OLDEST_PYTHON = (3, 9)
TOO_NEW = {"annotationlib", "compression", "tomllib"}


def foreign_imports(source: str, siblings: set[str]) -> list[str]:
    """Name every import that is neither the standard library's nor the guest's own."""
    allowed = (sys.stdlib_module_names - TOO_NEW) | siblings
    imported: list[str] = []
    for node in ast.walk(ast.parse(source, feature_version=OLDEST_PYTHON)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.append(node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.level > 1:
            imported.append("." * node.level + (node.module or ""))
    return [
        name
        for name in imported
        if name.partition(".")[0] not in allowed
        and name != "stockade.guest"
        and not name.startswith("stockade.guest.")
    ]


@pytest.mark.parametrize(
    ("source", "foreign"),
    [
        ("import os.path, json\nfrom . import wire\nfrom wire import Frame", []),
        ("import stockade.guest.wire\nfrom stockade.guest import wire", []),
        ("import stockade.port", ["stockade.port"]),
        ("from stockade import port", ["stockade"]),
        ("from ..port import Tier", ["..port"]),
        ("import stockade.guestbook", ["stockade.guestbook"]),
        (
            "def f():\n    try:\n        import click.core\n    except ImportError: pass",
            ["click.core"],
        ),
        ("import tomllib", ["tomllib"]),
    ],
)
def test_the_check_itself_tells_foreign_imports(source: str, foreign: list[str]) -> None:
    assert foreign_imports(source, {"wire"}) == foreign


def test_there_is_a_guest_to_check() -> None:
    assert GUEST_FILES


@pytest.mark.parametrize("path", GUEST_FILES, ids=lambda path: path.relative_to(GUEST).as_posix())
def test_guest_imports_the_standard_library_only(path: Path) -> None:
    """It is shipped into sandboxes as files: nothing else is there to import."""
    siblings = {other.stem for other in GUEST_FILES}
    foreign = foreign_imports(path.read_text(encoding="utf-8"), siblings)
    if path.parent == GUEST / "wasm":
        # Shipped with its engines, and one folder below the rest: docs/wasm.md.
        above = {".." + name for name in ("", *siblings)}
        foreign = [name for name in foreign if name not in {"wasmtime", "quickjs_rs", *above}]
    assert foreign == []


def test_import_contracts_hold() -> None:
    """The contracts stand in pyproject.toml."""
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
