"""What the service refuses to start with."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from stockade.executor.local import AuthMode
from stockade.executor.service.settings import ExecutorSettings

from .kit import TOKEN


def made(**more: object) -> ExecutorSettings:
    return ExecutorSettings.model_validate({"token": TOKEN, **more})


def test_the_defaults_are_strict() -> None:
    settings = made()
    assert settings.auth_mode is AuthMode.API_KEY
    assert settings.listen.startswith("unix:")
    assert not settings.allow_emulation
    assert TOKEN not in repr(settings)
    assert TOKEN not in str(settings.model_dump())


@pytest.mark.parametrize(
    "token",
    [
        "",
        " ",
        "short",
        "changeme" * 8,
        "a" * 64,
        "abc" * 20,
        "secret-password-token-changeme-1",
        "ä" * 40,
        "0f1e2d3c 4b5a69788796a5b4c3d2e1f0",
        "0f1e2d3c4b5a69788796a5b4c3d2e1f",
    ],
)
def test_tokens_that_could_be_guessed(token: str) -> None:
    with pytest.raises(ValidationError) as refused:
        made(token=token)
    assert "token" in str(refused.value)
    if len(token) > 5:
        assert token not in str(refused.value)


def test_a_token_comes_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o640)
    assert ExecutorSettings(token_file=file).read_token() == TOKEN
    file.chmod(0o644)
    with pytest.raises(ValidationError, match="others can read"):
        ExecutorSettings(token_file=file)
    file.chmod(0o600)
    file.write_text("")
    with pytest.raises(ValidationError, match="there is no token"):
        ExecutorSettings(token_file=file)
    with pytest.raises(ValidationError, match="cannot be read"):
        ExecutorSettings(token_file=tmp_path / "none")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ValidationError, match="no regular file"):
        ExecutorSettings(token_file=tmp_path / "fifo")
    with pytest.raises(ValidationError, match="there is a token_file, too"):
        made(token_file=file)


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("tcp:0.0.0.0:1", "in the clear"),
        ("tcp:[::]:1", "in the clear"),
        ("tcp:192.0.2.1:1", "in the clear"),
        ("tcp:[::ffff:127.0.0.1]:1", "in the clear"),
        ("tcp:example.com:1", "no IP address"),
        ("tcp::1", "no IP address"),
        ("tcp:127.1:1", "no IP address"),
        ("tcp:127.0.0.1:x", "no port"),
        ("tcp:127.0.0.1:65536", "no port"),
        ("tcp:127.0.0.1:\u0661", "no port"),
        ("unix:relative", "absolute path"),
        ("unix:/" + "a" * 200, "absolute path"),
        ("http://127.0.0.1", "neither unix"),
        ("", "neither unix"),
    ],
)
def test_addresses_that_are_refused(listen: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        made(listen=listen)


@pytest.mark.parametrize(
    "listen", ["tcp:127.0.0.1:0", "tcp:[::1]:0", "tcp:localhost:80", "unix:/s"]
)
def test_addresses_that_are_taken(listen: str) -> None:
    assert made(listen=listen).address is not None


@pytest.mark.parametrize(
    "more",
    [
        {"unknown": 1},
        {"tls": {"certificate": "a", "key": "b"}},
        {"listen": "tcp:127.0.0.1:0", "socket_group": "g"},
        {"allow_emulation": True},
        {"most_body_bytes": 2**20, "most_buffered_bytes": 2**19},
        {"tiers": ["nope"]},
        {"auth_mode": "none"},
        {"max_lease_seconds": 0},
        {"drain_seconds": float("nan")},
        {"most_connections": -1},
    ],
)
def test_contradictions_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        made(**more)
