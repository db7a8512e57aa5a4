"""``stockade credential``: a secret goes in by a file, and comes out nowhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Stockade
from tests.cli.test_service import refusing, service
from tests.client.peer import Exchange, Peer

from stockade.api.problems import Code, Problem

pytestmark = pytest.mark.plain_user

SECRET = "sk-9f8e7d6c5b4a-the-secret"
RULE = "https://api.example.com/v1"
GRANT = {"rule": RULE, "way": {"kind": "bearer"}}
HOSTILE = "evil\x1b]0;title\x07\u202e"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOCKADE_URL", raising=False)
    monkeypatch.setenv("STOCKADE_KEY", "k")


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET + "\n")
    return str(path)


@pytest.fixture
def gateway() -> Iterator[Peer]:
    """It takes whatever comes, and tells of one credential and one use."""

    async def play(exchange: Exchange) -> None:
        path = exchange.asked.path
        if exchange.asked.method != "GET":
            await exchange.answer(204)
        elif path.startswith("/v1/credential-uses"):
            use = {
                "time": 0.0,
                "execution": HOSTILE,
                "credential": "key",
                "method": "GET",
                "host": "api.example.com",
                "port": 443,
                "path": "/v1/thing",
                "status": 200,
            }
            without = {**use, "status": None}
            await exchange.answer(200, json.dumps({"uses": [use, without]}).encode())
        else:
            one = {"name": "key", "grants": [GRANT], "created_at": 0.0, "updated_at": 0.0}
            await exchange.answer(200, json.dumps({"credentials": [one]}).encode())

    with service(play) as peer:
        yield peer


def test_one_is_stored(stockade: Stockade, gateway: Peer, secret: str) -> None:
    ended = stockade(
        "--url", gateway.url, "credential", "add", "key",
        "--for", RULE, "--for", "GET api.example.com:8443", "--way", "header:X-Key:Token ",
        "--secret-file", secret,
    )  # fmt: skip
    assert (ended.code, ended.out, ended.said) == (0, b"", "")
    (asked,) = gateway.asked
    assert (asked.method, asked.path) == ("PUT", "/v1/credentials/key")
    way = {"kind": "header", "name": "X-Key", "prefix": "Token "}
    assert asked.json == {
        "secret": SECRET,  # without the line's end
        "grants": [{"rule": RULE, "way": way}, {"rule": "GET api.example.com:8443", "way": way}],
    }


def test_a_secret_comes_by_standard_input(gateway: Peer) -> None:
    command = [
        sys.executable,
        "-m",
        "stockade.cli.main",
        "--url",
        gateway.url,
        "credential",
        "add",
        "key",
    ]
    ended = subprocess.run(
        [*command, "--for", RULE, "--secret-file", "-"],
        input=SECRET.encode() + b"\r\n",
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "STOCKADE_KEY": "k"},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert gateway.asked[0].json["secret"] == SECRET


def test_they_are_told_of(stockade: Stockade, gateway: Peer) -> None:
    said = stockade("--url", gateway.url, "credential", "list")
    assert (said.code, said.out.decode()) == (0, f"key  bearer  {RULE}\n")
    said = stockade("--url", gateway.url, "credential", "list", "--json")
    assert json.loads(said.out)["grants"] == [GRANT]


def test_their_uses_are_told_and_nothing_steers_the_terminal(
    stockade: Stockade, gateway: Peer
) -> None:
    said = stockade(
        "--url", gateway.url, "credential", "uses",
        "--execution", "e1", "--credential", "key", "-n", "7",
    )  # fmt: skip
    first, second = said.out.decode().splitlines()
    assert "GET api.example.com:443/v1/thing" in first
    assert "  200  " in first
    assert "  -  " in second
    assert not set("\x1b\x07\u202e") & set(said.out.decode())
    assert gateway.asked[0].path.endswith("?limit=7&execution=e1&credential=key")
    said = stockade("--url", gateway.url, "credential", "uses", "--json")
    assert json.loads(said.out.splitlines()[1])["status"] is None


def test_several_are_removed(stockade: Stockade, gateway: Peer) -> None:
    assert stockade("--url", gateway.url, "credential", "remove", "a", "b").code == 0
    assert [(each.method, each.path) for each in gateway.asked] == [
        ("DELETE", "/v1/credentials/a"),
        ("DELETE", "/v1/credentials/b"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "key", "--for", "nowhere at all"), "is not [METHOD ][scheme://]host"),
        (("add", "key", "--for", "10.0.0.0/8"), "for a host, not for a network"),
        (("add", "key", "--for", "tcp://h:1"), "not into tcp://"),
        (("add", "key", "--for", RULE, "--way", "cookie"), "is no way"),
        (("add", "key", "--for", RULE, "--way", "header:Host"), "how a message is carried"),
        (("add", "key", "--for", RULE, "--way", "sigv4:eu:s3"), "ACCESS_KEY_ID"),
        (("add", "../key", "--for", RULE), "is not a credential's name"),
        (("add", "key"), "--for"),
        (("remove",), "NAME"),
        (("remove", "a/b"), "is not a credential's name"),
        (("uses", "-n", "0"), "0"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_sent(
    stockade: Stockade, gateway: Peer, secret: str, arguments: tuple[str, ...], said: str
) -> None:
    if arguments[0] == "add":
        arguments = (*arguments, "--secret-file", secret)
    ended = stockade("--url", gateway.url, "credential", *arguments)
    assert ended.code == 64
    assert said in ended.said
    assert SECRET not in ended.said
    assert gateway.asked == []


@pytest.mark.parametrize(
    ("content", "mode", "code", "said"),
    [
        (SECRET.encode(), 0o644, 66, "every user can read it: chmod 600"),
        (b"\xff\xfe" * 10, 0o600, 66, "is not UTF-8"),
        (b"short", 0o600, 64, "it has 8 to 8192 characters"),
        (b"aaaaaaaaaaaaaaaa", 0o600, 64, "fewer than 4 different"),
        (b"two lines-\nof-it", 0o600, 64, "no line ends"),
        (b"x1Yz" * 20_000, 0o600, 64, "it has 8 to 8192 characters"),
        (None, 0o600, 66, "No such file"),
    ],
)
def test_a_file_that_has_no_secret(
    stockade: Stockade,
    gateway: Peer,
    tmp_path: Path,
    content: bytes | None,
    mode: int,
    code: int,
    said: str,
) -> None:
    path = tmp_path / "odd"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    ended = stockade(
        "--url", gateway.url, "credential", "add", "key",
        "--for", RULE, "--secret-file", str(path),
    )  # fmt: skip
    assert ended.code == code
    assert said in ended.said
    assert (content or b"none").decode("latin-1") not in ended.said
    assert gateway.asked == []


def test_no_terminal_and_no_file(stockade: Stockade, gateway: Peer) -> None:
    ended = stockade("--url", gateway.url, "credential", "add", "key", "--for", RULE)
    assert ended.code == 64
    assert "there is no terminal to ask" in ended.said


def test_without_a_service(stockade: Stockade) -> None:
    ended = stockade("credential", "list")
    assert ended.code == 64
    assert "stockade --url URL" in ended.said


def test_a_refusal_is_said(stockade: Stockade, secret: str) -> None:
    problem = Problem.make(
        Code.FORBIDDEN, "the policy of this tenant does not allow api.example.com"
    )
    with service(refusing(problem)) as peer:
        ended = stockade(
            "--url", peer.url, "credential", "add", "key",
            "--for", RULE, "--secret-file", secret,
        )  # fmt: skip
    assert ended.code not in (0, 70)
    assert "does not allow api.example.com" in ended.said
    assert SECRET not in ended.said
