"""The configuration: whatever is not understood is refused, by the name of its key."""

import os
import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from stockade.cli import settings
from stockade.cli.settings import MASK, Settings, SettingsError, effective, load, spelled

from .conftest import Stockade

pytestmark = pytest.mark.plain_user


class Mode(StrEnum):
    DEV = "dev"
    API_KEY = "api_key"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65_535)


class Store(Strict):
    where: str = "/var/lib"
    options: dict[str, str] = {}


class Upstream(Strict):
    name: str
    weight: float = 1.0


class Gateway(Strict):
    listen: Listen = Listen()
    mode: Mode = Mode.API_KEY
    level: Literal["info", "debug"] = "info"
    key: SecretStr = SecretStr("")
    database_url: str = "sqlite:///x.db"
    store: Store = Store()
    upstreams: tuple[Upstream, ...] = ()
    names: frozenset[str] | None = None
    quick: bool = False
    certificate: Path | None = None
    seconds: float = 1.0

    def check(self) -> list[str]:
        return [] if self.level == "info" else ["level: debug is for nobody"]


class Executor(Strict):
    token: SecretStr
    token_file: Path | None = None
    parked: int = 4


KNOWN: dict[str, type[BaseModel]] = {"gateway": Gateway, "executor": Executor}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with this text, which its owner alone may read."""

    def write(text: str, mode: int = 0o600) -> Path:
        path = tmp_path / "stockade.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def read(path: Path | None, environment: dict[str, str] | None = None) -> Settings:
    return load(path, KNOWN, environment=environment or {})


def refused(path: Path | None, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as error:
        read(path, environment)
    return [reason.replace(str(path), "FILE") for reason in error.value.reasons]


def test_a_file_is_read(write: Write) -> None:
    path = write(
        """
        [gateway]
        mode = "dev"
        certificate = "/etc/cert.pem"
        names = ["a", "b"]
        seconds = 3
        listen = { port = 99 }
        [[gateway.upstreams]]
        name = "one"
        """
    )
    found = read(path)
    assert found.sections == {
        "gateway": Gateway(
            mode=Mode.DEV,
            certificate=Path("/etc/cert.pem"),
            names=frozenset("ab"),
            seconds=3.0,
            listen=Listen(port=99),
            upstreams=(Upstream(name="one"),),
        )
    }
    assert found.origin("gateway.listen.port") == str(path)
    assert found.origin("gateway.listen.host") == "default"


def test_a_section_that_is_wanted_is_made_of_nothing() -> None:
    assert load(None, KNOWN, wanted=["gateway"], environment={}).sections == {"gateway": Gateway()}
    with pytest.raises(SettingsError, match=r"executor\.token: Field required"):
        load(None, KNOWN, wanted=["executor"], environment={})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[gateway]\nlisten.prot = 1",
            "FILE: there is no key 'gateway.listen.prot'; the nearest is listen.port in [gateway]",
        ),
        (
            "[gateway]\npark = 1",
            "FILE: there is no key 'gateway.park'; the nearest is parked in [executor]",
        ),
        ("[gatway]\n", "FILE: there is no section 'gatway'; the nearest is [gateway]"),
        ("mode = 1", "FILE: there is no key 'mode'; the nearest is mode in [gateway]"),
        (
            "[[gateway.upstreams]]\nname = 'a'\nwieght = 2",
            "FILE: there is no key 'gateway.upstreams.wieght'; "
            "the nearest is upstreams.weight in [gateway]",
        ),
        ("gateway = 3", "FILE: gateway is a section, a table: write [gateway]"),
    ],
)
def test_an_unknown_key_names_the_nearest(write: Write, text: str, reason: str) -> None:
    assert refused(write(text)) == [reason]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("listen.port = '80'", "gateway.listen.port"),
        ("listen.port = 80.0", "gateway.listen.port"),
        ("listen.port = true", "gateway.listen.port"),
        ("listen.port = 65536", "gateway.listen.port"),
        ("listen = 'x'", "gateway.listen"),
        ("mode = 'prod'", "gateway.mode"),
        ("level = 'loud'", "gateway.level"),
        ("quick = 1", "gateway.quick"),
        ("quick = 'true'", "gateway.quick"),
        ("names = 'a'", "gateway.names"),
        ("key = 3", "gateway.key"),
        ("certificate = 3", "gateway.certificate"),
        ("store.options.a = 1", "gateway.store.options.a"),
        ("upstreams = [{}]", "gateway.upstreams.name"),
    ],
)
def test_a_wrong_type_is_refused(write: Write, text: str, key: str) -> None:
    (reason,) = refused(write(f"[gateway]\n{text}"))
    assert reason.startswith(f"FILE: {key}: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[gateway]\nmode = 'dev'\nmode = 'api_key'", "gateway.mode"),
        ("[gateway]\nquick = true\n[gateway]\nquick = false", "gateway"),
        ("[gateway.listen]\nport = 1\n[gateway]\nlisten.port = 2", "gateway.listen.port"),
        ("[gateway]\nquick = yes", "gateway.quick"),
    ],
)
def test_a_key_that_comes_twice_or_is_no_toml_is_refused(write: Write, text: str, key: str) -> None:
    (reason,) = refused(write(text))
    assert reason.startswith(f"FILE: {key}: ")
    assert "line" in reason


def test_every_reason_is_said(write: Write) -> None:
    reasons = refused(write("[gateway]\nquick = 1\nlisten.port = -1\n[executor]\nparked = 'x'"))
    assert len(reasons) == 4


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[gateway]\nkey = 'k'", "gateway.key"),
        ("[gateway]\ndatabase_url = 'postgresql://u:p@h/d'", "gateway.database_url"),
        (
            "[gateway.store.options]\nsecret_access_key = 'x'",
            "gateway.store.options.secret_access_key",
        ),
        ("[executor]\ntoken = 't'", "executor.token"),
    ],
)
def test_a_secret_that_every_user_can_read_is_refused(write: Write, text: str, key: str) -> None:
    (reason,) = refused(write(text, 0o644))
    assert reason == f"FILE: {key} is a secret, and every user can read the file: chmod 640 FILE"
    assert read(write(text, 0o640)).sections


def test_a_file_without_a_secret_may_be_read_by_all(write: Write) -> None:
    text = "[gateway]\nkey = ''\ndatabase_url = 'postgresql://u@h/d'\ncertificate = '/etc/token'"
    assert read(write(text, 0o644)).sections


def test_a_file_that_others_may_change_is_refused(write: Write) -> None:
    assert "every user can write" in refused(write("", 0o602))[0]


def test_what_cannot_be_read_is_refused(tmp_path: Path, write: Write) -> None:
    assert refused(tmp_path / "no.toml") == ["FILE: cannot be read: No such file or directory"]
    assert refused(tmp_path) == ["FILE: cannot be read: Is a directory"]
    os.mkfifo(tmp_path / "fifo")
    assert refused(tmp_path / "fifo") == ["FILE: is no regular file"]
    path = write("")
    path.write_bytes(b"[gateway]\nmode = '\xff'")
    assert refused(path) == ["FILE: is not UTF-8"]
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    assert refused(path) == ["FILE: has more than 1048576 bytes"]
    path.write_text("[gateway]\nnames = " + "[" * 100_000)
    assert "FILE" in refused(path)[0]


# --- the environment ---


def test_the_environment_stands_above_the_file(write: Write) -> None:
    path = write("[gateway]\nlisten.port = 1\nnames = ['x']\nquick = true")
    found = read(
        path,
        {
            "STOCKADE_GATEWAY__LISTEN__PORT": "2",
            "STOCKADE_GATEWAY__NAMES": '["a", "b"]',
            "STOCKADE_GATEWAY__MODE": "dev",
            "STOCKADE_GATEWAY__KEY": "123",
            "STOCKADE_GATEWAY__CERTIFICATE": "/c",
            "STOCKADE_GATEWAY__SECONDS": "2.5",
            "STOCKADE_GATEWAY__QUICK": "false",
            "STOCKADE_GATEWAY__STORE": '{ where = "/w" }',
            "STOCKADE_EXECUTOR__TOKEN": "t",
            "STOCKADE_KEY": "another matter",
            "STOCKADE_OTHER__THING": "not ours",
            "HOME": "/",
        },
    )
    assert found.sections == {
        "gateway": Gateway(
            listen=Listen(port=2),
            names=frozenset("ab"),
            mode=Mode.DEV,
            key=SecretStr("123"),
            certificate=Path("/c"),
            seconds=2.5,
            store=Store(where="/w"),
        ),
        "executor": Executor(token=SecretStr("t")),
    }
    assert found.origin("gateway.listen.port") == "STOCKADE_GATEWAY__LISTEN__PORT"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("GATEWAY__LISTEN__PRT", "1", "there is no key 'gateway.listen.prt'; the nearest is listen.port in [gateway]"),
        ("EXECUTOR__", "1", "there is no key 'executor.'"),
        ("GATEWAY__mode", "dev", "there is no key 'gateway.mode'"),
        ("GATEWAY__LISTEN__PORT", "x", "gateway.listen.port: it is not a whole number"),
        ("GATEWAY__LISTEN__PORT", "70000", "gateway.listen.port: "),
        ("GATEWAY__SECONDS", "nan", "gateway.seconds: it is not a number"),
        ("GATEWAY__QUICK", "yes", "gateway.quick: it is neither true nor false"),
        ("GATEWAY__MODE", "prod", "gateway.mode: "),
        ("GATEWAY__NAMES", "a,b", "gateway.names: it is no value of TOML"),
        ("GATEWAY__STORE__OPTIONS__REGION", "x", "there is no key"),
    ],
)  # fmt: skip
def test_a_variable_that_is_not_understood_is_refused(
    variable: str, value: str, reason: str
) -> None:
    (said,) = refused(None, {f"STOCKADE_{variable}": value})
    assert said.startswith(f"STOCKADE_{variable} (environment): {reason}")


def test_a_secret_is_in_no_refusal(write: Write) -> None:
    class Long(Strict):
        key: SecretStr = Field(min_length=100)

    with pytest.raises(SettingsError) as error:
        load(None, {"gateway": Long}, environment={"STOCKADE_GATEWAY__KEY": "hunter2"})
    assert "hunter2" not in str(error.value)
    assert "gateway.key" in str(error.value)


# --- the command ---


def test_show_prints_values_and_where_they_come_from(
    write: Write, stockade: Stockade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "models", lambda: KNOWN)
    monkeypatch.setenv("STOCKADE_GATEWAY__MODE", "dev")
    path = write(
        """
        [gateway]
        key = "hunter2"
        database_url = "postgresql://u:hunter2@h/d"
        listen.host = "a\\u001b[31m\\"\\\\"
        upstreams = [{ name = "one" }]
        [gateway.store.options]
        secret_access_key = "hunter2"
        region = "here"
        [executor]
        token = "hunter2"
        """
    )
    ended = stockade("config", "show", str(path))
    assert ended.code == 0, ended.said
    text = ended.out.decode()
    assert "hunter2" not in text
    assert "\x1b" not in text
    shown = tomllib.loads(text)
    assert shown["gateway"]["key"] == shown["executor"]["token"] == MASK
    assert shown["gateway"]["database_url"] == f"postgresql://u:{MASK}@h/d"
    assert shown["gateway"]["store"]["options"] == {"secret_access_key": MASK, "region": "here"}
    assert shown["gateway"]["listen"] == {"host": 'a\x1b[31m"\\', "port": 8700}
    assert shown["gateway"]["upstreams"] == [{"name": "one", "weight": 1.0}]
    assert 'mode = "dev"  # STOCKADE_GATEWAY__MODE' in text
    assert f'listen.host = "a\\U0000001b[31m\\"\\\\"  # {path}' in text
    assert "listen.port = 8700  # default" in text
    assert "# names is not set  # default" in text


def test_check_says_what_is_wrong(
    write: Write, stockade: Stockade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "models", lambda: KNOWN)
    path = write("[gateway]\nmode = 'dev'")
    ended = stockade("config", "check", str(path))
    assert (ended.code, ended.out.decode()) == (0, f"{path}: gateway: nothing is wrong\n")
    ended = stockade("config", "check", str(write("[gateway]\nmoed = 'dev'\nquick = 1")))
    assert ended.code == 64
    assert "there is no key 'gateway.moed'; the nearest is mode in [gateway]" in ended.said
    for command in ("check", "show"):  # as the services have it
        assert stockade("config", command, "--config", str(path)).code == 64
        for wrong in ((), (str(path), "--config", str(path))):
            ended = stockade("config", command, *wrong)
            assert (ended.code, "name one FILE" in ended.said) == (64, True)
    # What a section itself has against its values.
    ended = stockade("config", "check", str(write("[gateway]\nlevel = 'debug'")))
    assert (ended.code, ended.said) == (64, "stockade: gateway: level: debug is for nobody\n")
    ended = stockade("config", "show", str(path.with_name("no.toml")))
    assert ended.code == 64
    assert "No such file" in ended.said


def test_what_is_shown_is_toml() -> None:
    """Whatever is in it."""
    value = {"a b": ["\U0001f600\x7f\u202e", 1, 1e300, True], "c": {}}
    assert tomllib.loads(f"x = {spelled(value)}")["x"] == value


def test_every_default_can_be_shown() -> None:
    found = load(None, KNOWN, wanted=["gateway"], environment={})
    assert {key: value for key, value, _ in effective(found)}["gateway.listen.port"] == 8700
