"""``stockade --url``: the same command, the same codes, the same output; and the service's own."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.client.peer import STARTED, Exchange, Peer, Play, serving

from stockade.api.frames import FrameType, encode, encode_record
from stockade.api.problems import Code, Problem
from stockade.port import (
    Artefact,
    Captured,
    Execution,
    LimitHit,
    MissingArtefact,
    Outcome,
    Unavailable,
)

from .conftest import Stockade

pytestmark = pytest.mark.plain_user

OK = Execution(Outcome.OK, "", exit_code=0, stdout=Captured(b"out\n", b"", 4))


@contextmanager
def service(play: Play) -> Iterator[Peer]:
    """One in a thread of its own, for a command that has a loop of its own."""
    ready: list[Peer] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(play) as peer:
            ready.append(peer)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield ready[0]
    finally:
        stop.set()
        thread.join()


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOCKADE_URL", raising=False)
    monkeypatch.setenv("STOCKADE_KEY", "k")


def answering(execution: Execution, *before: bytes) -> Play:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.path == "/v1/executions":
            await exchange.record(execution, *before)
        else:
            await exchange.answer(204)

    return play


def refusing(problem: Problem) -> Play:
    async def play(exchange: Exchange) -> None:
        await exchange.problem(problem)

    return play


def test_run_is_the_same(stockade: Stockade) -> None:
    came = asyncio.Event()

    async def play(exchange: Exchange) -> None:
        if exchange.asked.path == "/v1/executions":
            await exchange.frames(
                STARTED,
                encode(FrameType.STDOUT, b"out\n"),
                encode(FrameType.STDERR, b"\x1b[31merr\n"),
            )
            await came.wait()  # an execution that ends before its input was sent gets none
            for piece in encode_record(OK):
                await exchange.chunk(piece)
            await exchange.end()
        else:
            came.set()
            await exchange.answer(204)

    with service(play) as peer:
        ended = stockade("--url", peer.url, "run", "-c", "print('out')", "a", stdin=b"in")
        assert (ended.code, ended.out, ended.err) == (0, b"out\n", b"\x1b[31merr\n")
        assert ended.opened == ()  # nothing of this machine's
        asked = peer.asked[0]
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.json["program"] == {
            "kind": "python",
            "source": "print('out')",
            "arguments": ["a"],
        }
        assert peer.of("PUT", "/stdin")[0].body == b"in"


def test_the_url_may_come_from_the_environment(
    stockade: Stockade, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(answering(OK)) as peer:
        monkeypatch.setenv("STOCKADE_URL", peer.url)
        assert stockade("run", "-c", "1").code == 0
        assert len(peer.of("POST", "/executions")) == 1


def test_json_is_the_same(stockade: Stockade) -> None:
    with service(answering(OK)) as peer:
        ended = stockade("--url", peer.url, "run", "--json", "-c", "1")
        assert json.loads(ended.out)["stdout"]["head"] == {"text": "out\n"}


@pytest.mark.parametrize(
    ("execution", "code", "said"),
    [
        (
            Execution(Outcome.NONZERO_EXIT, "", exit_code=3),
            3,
            "stockade: the program exited with 3\n",
        ),
        (
            Execution(
                Outcome.MEMORY, "too much\x1b[2J", limit=LimitHit("memory_bytes", 1.0, None)
            ),
            122,
            "stockade: memory: too much\\x1b[2J; --memory raises it\n",
        ),
        (Execution(Outcome.WALL_CLOCK, "time"), 124, "stockade: wall_clock: time; --timeout raises it\n"),
        (Execution(Outcome.SIGNAL, "", signal=9), 137, "stockade: the program was ended by SIGKILL (signal 9)\n"),
        (Execution(Outcome.INVALID, "no such program: x"), 127, "stockade: no such program: x\n"),
    ],
)  # fmt: skip
def test_the_exit_codes_are_the_same(
    stockade: Stockade, execution: Execution, code: int, said: str
) -> None:
    with service(answering(execution)) as peer:
        ended = stockade("--url", peer.url, "run", "-c", "1")
        assert (ended.code, ended.said) == (code, said)


def test_files_come_and_go(stockade: Stockade) -> None:
    data = b"\0artefact"
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    execution = Execution(
        Outcome.OK,
        "",
        exit_code=0,
        artefacts=(Artefact("a.bin", data, digest),),
        missing_artefacts=(MissingArtefact("b", "no such file"),),
    )
    Path("in.txt").write_text("content")
    with service(answering(execution)) as peer:
        ended = stockade(
            *("--url", peer.url, "run", "--file", "in.txt", "--artefact", "a.bin"),
            *("--artefact", "b", "-c", "1"),
        )
        assert ended.code == 66
        assert peer.asked[0].json["files"] == {"in.txt": "content"}
    assert Path("a.bin").read_bytes() == data


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (Problem.make(Code.UNAUTHENTICATED, "no such key"), 77, "refused (unauthenticated): no such key"),
        (Problem.make(Code.FORBIDDEN, "not yours\x1b"), 77, "refused (forbidden): not yours\\x1b"),
        (
            Problem.make(Code.BUDGET_EXHAUSTED, "used up", retry_after=12.0),
            75,
            "refused (budget_exhausted): used up; try again in 12 s",
        ),
        (Problem.of(Unavailable("no executor")), 69, "unavailable: no executor"),
    ],
)  # fmt: skip
def test_a_refusal_is_a_sentence(
    stockade: Stockade, problem: Problem, code: int, said: str
) -> None:
    with service(refusing(problem)) as peer:
        ended = stockade("--url", peer.url, "run", "-c", "1")
        assert (ended.code, ended.said) == (code, f"stockade: {said}\n")


def test_a_cut_is_lost(stockade: Stockade) -> None:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.path == "/v1/executions":
            await exchange.frames(STARTED, encode(FrameType.STDOUT, b"some"))
            exchange.cut()
        else:
            await exchange.answer(204)

    with service(play) as peer:
        ended = stockade("--url", peer.url, "run", "-c", "1")
        assert (ended.code, ended.out) == (115, b"some")
        assert ended.said.startswith("stockade: lost: http://127.0.0.1:")


def test_nobody_there_is_unavailable(stockade: Stockade) -> None:
    with service(answering(OK)) as peer:
        url = peer.url
    ended = stockade("--url", url, "run", "-c", "1")
    assert ended.code == 69
    assert "cannot be reached: Connection refused" in ended.said
    assert "doctor" not in ended.said


# --- the key ---


def test_without_a_key_nothing_is_asked(
    stockade: Stockade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOCKADE_KEY")
    ended = stockade("--url", "https://nowhere.example", "run", "-c", "1")
    assert ended.code == 77
    assert "--key-file" in ended.said


def test_a_key_file_others_can_read_is_refused(stockade: Stockade, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-the-file\n")
    path.chmod(0o644)
    with service(answering(OK)) as peer:
        ended = stockade("--url", peer.url, "--key-file", str(path), "run", "-c", "1")
        assert (ended.code, peer.asked) == (66, [])
        assert "chmod 600" in ended.said
        path.chmod(0o600)
        assert stockade("--url", peer.url, "--key-file", str(path), "run", "-c", "1").code == 0
        assert peer.asked[0].headers["authorization"] == "Bearer from-the-file"
        assert stockade("--url", peer.url, "--key-file", "no", "run", "-c", "1").code == 66


@pytest.mark.parametrize("url", ["http://stockade.example", "ftp://x", "https://u:p@x", "unix:x"])
def test_a_url_that_is_none_is_refused(stockade: Stockade, url: str) -> None:
    ended = stockade("--url", url, "run", "-c", "1")
    assert ended.code == 64
    assert ended.said.startswith("stockade: --url: ")


def test_what_is_about_this_machine_takes_no_url(stockade: Stockade) -> None:
    ended = stockade("--url", "https://x", "doctor")
    assert ended.code == 64
    assert "doctor is about this machine" in ended.said
    assert stockade("--key-file", "x", "run", "-c", "1").code == 64
    ended = stockade("jobs", "list")
    assert ended.code == 64
    assert "STOCKADE_URL" in ended.said


# --- jobs and sandboxes ---


def test_a_job_is_submitted_watched_and_cancelled(stockade: Stockade) -> None:
    record = {"outcome": "ok", "detail": "\x1b[31m", "exit_code": 0, "stdout": {"head": "x\x1b"}}

    async def play(exchange: Exchange) -> None:
        match exchange.asked.method, exchange.asked.path:
            case "POST", "/v1/executions":
                assert exchange.asked.headers["prefer"] == "respond-async"
                await exchange.answer(202, b'{"id": "e1", "state": "running"}')
            case "GET", "/v1/executions/e1":
                body = {"id": "e1", "state": "ended", "record": record}
                await exchange.answer(200, json.dumps(body).encode())
            case "GET", "/v1/executions/e1/events":
                failed = Execution(Outcome.NONZERO_EXIT, "", exit_code=5)
                await exchange.record(failed, encode(FrameType.STDOUT, b"heard\n"))
            case "GET", path:
                first = "cursor" not in path
                page = {
                    "executions": [
                        {
                            "id": "e2" if first else "e1",
                            "state": "ended",
                            "begun": "2026-11-30T12:00:00Z",
                            "outcome": "ok",
                            "colour": "red",
                        }
                    ],
                    "next": "c/1" if first else None,
                }
                await exchange.answer(200, json.dumps(page).encode())
            case _:
                await exchange.answer(204)

    with service(play) as peer:
        url = ("--url", peer.url)
        ended = stockade(*url, "run", "--detach", "-c", "1")
        assert (ended.code, ended.out) == (0, b"e1\n")
        ended = stockade(*url, "jobs", "show", "e1")
        assert b"\x1b" not in ended.out
        assert json.loads(ended.out)["record"]["stdout"]["head"] == "x\x1b"
        ended = stockade(*url, "jobs", "watch", "e1")
        assert (ended.code, ended.out) == (5, b"heard\n")
        assert ended.said == "stockade: the program exited with 5\n"
        ended = stockade(*url, "jobs", "list")
        assert [line.split()[0] for line in ended.out.splitlines()] == [b"e2", b"e1"]
        ended = stockade(*url, "jobs", "list", "-n", "1", "--json")
        assert [json.loads(line)["id"] for line in ended.out.splitlines()] == ["e2"]
        assert stockade(*url, "jobs", "cancel", "e1").code == 0
        assert stockade(*url, "jobs", "cancel", "../e1").code == 64
        assert len(peer.of("POST", "/v1/executions/e1/cancel")) == 1
    assert stockade("run", "--detach", "-c", "1").code == 64
    assert stockade(*url, "run", "--detach", "--artefact", "x", "-c", "1").code == 64


def test_a_watching_that_is_cut_does_not_say_that_the_job_is_lost(stockade: Stockade) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(STARTED, encode(FrameType.STDOUT, b"some"))
        exchange.cut()

    with service(play) as peer:
        ended = stockade("--url", peer.url, "jobs", "watch", "e1")
        assert (ended.code, ended.out) == (69, b"some")
        assert "e1 goes on" in ended.said
        assert not peer.of("POST", "/cancel")


def test_sandboxes_are_listed_and_closed(stockade: Stockade) -> None:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.method == "GET":
            found = {
                "sandboxes": [
                    {"id": "s1", "state": "open", "lease_seconds": 90.04, "execution": "e1"}
                ]
            }
            await exchange.answer(200, json.dumps(found).encode())
        elif exchange.asked.path.endswith("s2"):
            await exchange.problem(Problem.make(Code.NOT_FOUND, "no such sandbox"))
        else:
            await exchange.answer(204)

    with service(play) as peer:
        url = ("--url", peer.url)
        ended = stockade(*url, "sandboxes", "list")
        assert ended.out.split() == [b"s1", b"open", b"lease", b"90", b"s", b"runs", b"e1"]
        assert json.loads(stockade(*url, "sandboxes", "list", "--json").out)["id"] == "s1"
        assert stockade(*url, "sandboxes", "close", "s1", "s2").code == 0
        assert len(peer.of("DELETE", "/v1/sandboxes/s1")) == 1


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("--url", "https://x", "run", "-c", "1"), "client"),
        (("--url", "https://x", "jobs", "list"), "client"),
        (("config", "check", "x"), "service"),
        (("config", "show", "x"), "service"),
    ],
)
def test_without_the_extra_it_says_what_to_install(arguments: tuple[str, ...], extra: str) -> None:
    """In a process that cannot import what the extras bring."""
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('aiohttp', 'pydantic', 'starlette', 'sqlalchemy'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from stockade.cli.main import main\n"
        "main()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "STOCKADE_KEY": "k"},
    )
    assert completed.returncode == 69, completed.stderr
    assert f"pip install 'stockade[{extra}]'" in completed.stderr
    assert "Traceback" not in completed.stderr
