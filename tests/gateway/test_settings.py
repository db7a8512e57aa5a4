from pathlib import Path

import pytest
from pydantic import ValidationError

from stockade.executor.service import bodies as service_bodies
from stockade.executor.service.settings import ExecutorSettings as ServiceSettings
from stockade.gateway.api.bodies import MOST_JSON_BYTES
from stockade.gateway.settings import ExecutorSettings, GatewaySettings, Tls, is_loopback
from stockade.serving.values import MOST_VALUES

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    return path


def settings(token: Path, url: str = "http://127.0.0.1:8081", **more: object) -> GatewaySettings:
    return GatewaySettings.model_validate(
        {"executors": [{"name": "one", "url": url, "token_file": str(token)}], **more}
    )


def test_what_is_right_has_nothing_wrong(token: Path) -> None:
    assert settings(token).check() == []
    assert settings(token, "unix:///run/stockade/executor.sock").check() == []
    assert settings(token, "https://executor:8081").check() == []


def test_without_an_executor_there_is_no_gateway() -> None:
    assert GatewaySettings().check() == [
        "executors: there is none; the gateway runs nothing itself"
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example", "127.0.0.1.x"])
def test_no_key_passes_in_the_clear(token: Path, host: str, tmp_path: Path) -> None:
    open_ = settings(token, listen={"host": host})
    assert "keys would pass in the clear" in open_.check()[0]
    dev = settings(token, listen={"host": host}, auth_mode="dev")
    assert "everyone who reaches" in dev.check()[0]
    (tmp_path / "c").touch()
    assert settings(token, listen={"host": host}, tls={"certificate": str(tmp_path / "c"),
                    "key": str(tmp_path / "c")}).check() == []  # fmt: skip
    assert (
        "plain HTTP"
        in settings(token, f"http://{host.strip('[]') if ':' not in host else '[::]'}:1").check()[0]
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "there is no token"), ("changeme", "can be guessed"), ("a" * 64, "can be guessed"),
     ("0123456789abcdef", "can be guessed"), ("0123456789abcdef" * 300, "more than 512"),
     ("secret-password-token-changeme-1", "can be guessed"), ("é" * 40, "no header takes"),
     ("two words are not one token at all", "no header takes")],
)  # fmt: skip
def test_a_weak_token_is_refused_outside_dev(token: Path, content: str, said: str) -> None:
    token.write_text(content)
    wrong = settings(token).check()
    assert len(wrong) == 1
    assert said in wrong[0]
    assert settings(token, auth_mode="dev").check() == []


def test_a_token_that_others_may_read_or_that_is_not_there_is_refused(token: Path) -> None:
    for mode in (0o644, 0o604, 0o660):
        token.chmod(mode)
        assert "chmod 640 it, or 600" in settings(token).check()[0]
    token.chmod(0o440)  # as systemd's credentials are
    assert settings(token).check() == []
    token.unlink()
    assert "No such file" in settings(token).check()[0]


def test_a_certificate_that_is_not_there_is_said(token: Path) -> None:
    tls = Tls(certificate=Path("/nowhere/c"), key=Path("/nowhere/k"))
    wrong = settings(token, tls=tls.model_dump()).check()
    assert [each.split(":")[0] for each in wrong] == ["tls.certificate", "tls.key"]


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "http://", "http://user:pw@x", "unix://x/y", "unix:relative", "http://x?y=1"],
)
def test_an_executors_url_is_one(token: Path, url: str) -> None:
    with pytest.raises(ValidationError):
        ExecutorSettings(name="one", url=url, token_file=token)


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(ValidationError, match="databse_url"):
        GatewaySettings.model_validate({"databse_url": "x"})


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False), ("0.0.0.0", False), ("", False),
     ("localhost.example", False), ("2130706433", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_what_a_gateway_takes_an_executor_takes_too() -> None:
    """With room for what the client writes anew."""
    assert ServiceSettings.model_fields["most_body_bytes"].default > MOST_JSON_BYTES * 1.25
    assert service_bodies.MOST_VALUES > 3 * MOST_VALUES


@pytest.mark.parametrize("content", ["", "secret-password-token-changeme-1", "a" * 64, TOKEN])
def test_gateway_and_executor_take_the_same_tokens(token: Path, content: str) -> None:
    """What one took and the other refused was found out by a call."""
    token.write_text(content)
    try:
        ServiceSettings(token_file=token)
        taken = True
    except ValidationError:
        taken = False
    assert (settings(token).check() == []) is taken
