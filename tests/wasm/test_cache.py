"""Compiled code is loaded only from where nobody else can have put it."""

from pathlib import Path

import pytest

from stockade.executor.wasm.cache import FOLDER_VARIABLE, cache_folder, compiled
from stockade.executor.wasm.engines import Engines, Module, find_engines
from stockade.port import Unavailable

SMALL = b"\0asm\x01\0\0\0"


@pytest.fixture
def engines() -> Engines:
    return find_engines()


@pytest.fixture
def module(tmp_path: Path) -> Module:
    path = tmp_path / "module.wasm"
    path.write_bytes(SMALL)
    return Module("small", path, "0" * 64)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return cache_folder()


def test_it_is_made_once(engines: Engines, module: Module, folder: Path) -> None:
    path = compiled(engines, module)
    made = path.stat()
    module.path.unlink()  # whoever compiled again would miss it
    assert compiled(engines, module) == path
    assert path.stat() == made
    assert not made.st_mode & 0o022
    assert sorted(each.name for each in folder.iterdir()) == [".lock", path.name]


def test_another_content_or_engine_is_another_file(engines: Engines, module: Module) -> None:
    other = Module("small", module.path, "1" * 64)
    newer = Engines(engines.wasmtime, "0.0.1", engines.quickjs, engines.python, engines.javascript)
    paths = {compiled(engines, module), compiled(engines, other), compiled(newer, module)}
    assert len(paths) == 3


def test_a_folder_that_others_may_write_to_is_refused(
    engines: Engines, module: Module, folder: Path
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="may be written by others"):
        compiled(engines, module)


def test_a_folder_that_others_may_put_another_in_place_of_is_refused(
    engines: Engines, module: Module, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys = folder.parent / "open"
    (everybodys / "between").mkdir(parents=True)
    everybodys.chmod(0o777)
    linked = folder.parent / "link"
    linked.symlink_to(everybodys)
    for path in (everybodys, linked):
        monkeypatch.setenv(FOLDER_VARIABLE, str(path / "between" / "cache"))
        with pytest.raises(Unavailable, match="may be written by everybody"):
            compiled(engines, module)
    everybodys.chmod(0o1777)  # as /tmp: what is in it is renamed by its owners
    assert compiled(engines, module).parent.name == "cache"


def test_a_file_that_others_may_write_to_is_refused(engines: Engines, module: Module) -> None:
    path = compiled(engines, module)
    path.chmod(0o666)
    with pytest.raises(Unavailable, match="may be written by others"):
        compiled(engines, module)


def test_a_link_is_refused(engines: Engines, module: Module, tmp_path: Path) -> None:
    path = compiled(engines, module)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="is a link"):
        compiled(engines, module)


def test_a_module_that_cannot_be_compiled_leaves_nothing(
    engines: Engines, module: Module, folder: Path
) -> None:
    module.path.write_bytes(b"nonsense")
    with pytest.raises(Unavailable, match="cannot be compiled"):
        compiled(engines, module)
    assert [each.name for each in folder.iterdir()] == [".lock"]
