"""The broker does not start with what is missing, weak, known, or open to others."""

from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokered import CONTROL_TOKEN, DATA_TOKEN, KEY

from stockade.cli.settings import SettingsError, effective, load, models


def written(tmp_path: Path, **other: str | None) -> Path:
    keys = {"key": KEY, "control.token": CONTROL_TOKEN, "data.token": DATA_TOKEN} | other
    path = tmp_path / "stockade.toml"
    path.touch(mode=0o600)
    lines = ["[broker]", 'database = "/nowhere/broker.db"']
    path.write_text(
        "\n".join([*lines, *(f'{k} = "{v}"' for k, v in keys.items() if v is not None)])
    )
    return path


def read(path: Path, **environment: str) -> Any:
    return load(path, models(), wanted=("broker",), environment=environment)


def test_what_is_right_is_shown_without_its_secrets(tmp_path: Path) -> None:
    settings = read(written(tmp_path))
    shown = "\n".join(f"{key} {value}" for key, value, _ in effective(settings))
    assert "broker.key **" in shown
    for secret in (KEY, CONTROL_TOKEN, DATA_TOKEN):
        assert secret not in shown


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("control.token", "", "no token"),
        ("control.token", "changeme", "guessed"),
        ("data.token", "a" * 64, "guessed"),
        ("data.token", CONTROL_TOKEN, "control socket's too"),
        ("key", "", "exactly one"),
        ("key", "short", "no key"),
        ("kye", "x", "the nearest is key"),
        ("control.listen", "tcp:0.0.0.0:1", "in the clear"),
        ("data.listen", "tcp:localhost:1", "no IP address"),
        ("extra_ca", "/nowhere", "no file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, key: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        read(written(tmp_path, **{key: value}))
    assert CONTROL_TOKEN not in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_key_file_that_everybody_reads(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    keys.chmod(0o644)
    path = written(tmp_path, key="", key_file=str(keys))
    with pytest.raises(SettingsError, match="chmod 600"):
        read(path)
    keys.chmod(0o600)
    read(path)
