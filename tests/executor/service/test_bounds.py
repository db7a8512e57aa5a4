"""Bad input: a clear error each, bounded memory, other callers unharmed."""

import asyncio
from pathlib import Path

import pytest

from stockade.executor.service.bodies import MOST_VALUES, BodyBudget
from stockade.executor.service.identities import SeenIds
from stockade.executor.service.problems import Refusal
from stockade.port.fake import FakeEnvironment

from .kit import serving

SMALL = {"most_body_bytes": 10_000, "most_buffered_bytes": 25_000}
PROGRAM = b'{"program": {"kind": "python", "source": ""}}'


async def test_a_body_that_says_it_is_too_large_is_not_read(tmp_path: Path) -> None:
    async with (
        serving(FakeEnvironment(), tmp_path, **SMALL) as caller,
        await caller.connect() as wire,
    ):
        await wire.send(caller.head("POST", "/v1/executions", None, 10_001))
        assert (await wire.answer()).code == "too_large"


async def test_a_body_that_does_not_say_is_counted(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path, **SMALL) as caller:
        chunked: dict[str, str | None] = {"Transfer-Encoding": "chunked"}
        async with await caller.connect() as wire:
            await wire.send(caller.head("POST", "/v1/executions", chunked))
            for _ in range(11):
                await wire.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
            assert (await wire.answer()).code == "too_large"
        async with await caller.connect() as wire:
            await wire.send(caller.head("POST", "/v1/executions", chunked))
            await wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(PROGRAM), PROGRAM))
            assert (await wire.answer()).record.ok


async def test_the_largest_body_is_taken(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path, **SMALL) as caller:
        body = PROGRAM + b" " * (10_000 - len(PROGRAM))
        assert (await caller.call("POST", "/v1/executions", body)).record.ok
        assert (await caller.call("POST", "/v1/executions", body + b" ")).code == "too_large"


async def test_bodies_together_are_bounded(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path, **SMALL) as caller:
        wires = [await caller.connect() for _ in range(4)]
        for wire in wires:
            await wire.send(caller.head("POST", "/v1/executions", None, 9000) + b" " * 8000)
        await asyncio.sleep(1.5)
        answers = [
            await wire.answer()
            for wire in wires
            if wire.reader._buffer  # type: ignore[attr-defined]
        ]
        assert [answer.code for answer in answers] == ["unavailable"]
        assert answers[0].headers["retry-after"] == "1"
        for wire in wires:
            wire.writer.close()
        await asyncio.sleep(0.1)
        # All of it was given back.
        assert (await caller.call("POST", "/v1/executions", PROGRAM + b" " * 9000)).record.ok


async def test_a_body_of_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """It took minutes, in which nobody else was answered."""
    async with serving(FakeEnvironment(), tmp_path) as caller:
        head = b'{"program": {"kind": "python", "source": ""}, "artefacts": ['
        answer = await caller.call("POST", "/v1/executions", head + b"[]," * MOST_VALUES)
        assert (answer.status, answer.code) == (413, "too_large")
        assert f"{MOST_VALUES} values" in answer.json["detail"]
        # Of what is let through, one that is wrong says enough.
        answer = await caller.call("POST", "/v1/executions", head + b"1," * 60_000 + b"1]}")
        assert (answer.status, answer.code) == (422, "invalid_request")
        assert [error["field"] for error in answer.json["errors"]] == ["artefacts.0"]


async def test_a_header_that_comes_twice_is_refused(tmp_path: Path) -> None:
    """By the gate, before anything else, and behind it."""
    async with serving(FakeEnvironment(), tmp_path) as caller:
        for name in ("Stockade-Tenant", "Stockade-Id", "X-Request-Id", "Content-Type"):
            async with await caller.connect() as wire:
                head = caller.head("POST", "/v1/executions", {name: "a"}, len(PROGRAM))
                line = f"{name}: a\r\n".encode()
                first, rest = head.split(b"\r\n", 1)
                await wire.send(first + b"\r\n" + line + rest + PROGRAM)
                answer = await wire.answer()
            assert (answer.status, answer.code) == (400, "invalid_request")
            assert answer.json["errors"][0]["field"] == name


async def test_a_small_message_is_small(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path) as caller:
        path = f"/v1/sandboxes/{await caller.open()}/lease"
        answer = await caller.call("POST", path, b'{"seconds": 1' + b" " * 5000 + b"}")
        assert answer.code == "too_large"


async def test_a_slow_writer_times_out(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path, stalled_seconds=0.2) as caller:
        for path in ("/v1/executions", f"/v1/sandboxes/{await caller.open()}/files/f"):
            method = "PUT" if "files" in path else "POST"
            async with await caller.connect() as wire:
                await wire.send(caller.head(method, path, None, 100) + b"{")
                async with asyncio.timeout(3):
                    assert (await wire.answer()).code == "invalid_request"


async def test_a_writer_of_a_byte_now_and_then_times_out_too(tmp_path: Path) -> None:
    async with (
        serving(FakeEnvironment(), tmp_path, stalled_seconds=0.2) as caller,
        await caller.connect() as wire,
    ):
        await wire.send(caller.head("POST", "/v1/executions", None, 1000))
        answering = asyncio.create_task(wire.answer())
        async with asyncio.timeout(3):
            while not answering.done():
                wire.writer.write(b" ")
                await asyncio.sleep(0.05)
        assert answering.result().code == "invalid_request"


async def test_slow_headers_time_out(tmp_path: Path) -> None:
    async with (
        serving(FakeEnvironment(), tmp_path, header_seconds=0.2) as caller,
        await caller.connect() as wire,
    ):
        await wire.send(b"POST /v1/exe")
        async with asyncio.timeout(3):
            status, _ = await wire.head()
        assert status == 408


async def test_a_flood_of_connections_is_bounded_and_the_service_lives(tmp_path: Path) -> None:
    async with serving(
        FakeEnvironment(), tmp_path, most_connections=20, header_seconds=0.5
    ) as caller:
        wires = [await caller.connect() for _ in range(200)]
        await asyncio.sleep(0.1)
        refused = [wire for wire in wires if wire.reader._buffer]  # type: ignore[attr-defined]
        assert len(refused) == 180
        assert (await refused[0].answer()).code == "unavailable"
        # The idle ones are told to go, and then there is room again.
        await asyncio.sleep(0.6)
        assert (await caller.call("POST", "/v1/executions", PROGRAM)).record.ok
        for wire in wires:
            wire.writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nA: b\nAuthorization: c\r\n\r\n\0",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET * HTTP/1.1\r\n\r\n",
        "GET /ä HTTP/1.1\r\n\r\n".encode(),
    ],
)
async def test_what_is_no_request(tmp_path: Path, raw: bytes) -> None:
    async with serving(FakeEnvironment(), tmp_path, header_seconds=0.3) as caller:
        async with await caller.connect() as wire:
            await wire.send(raw)
            async with asyncio.timeout(3):
                status, _ = await wire.head()
            assert 400 <= status < 500
        assert (await caller.call("POST", "/v1/executions", PROGRAM)).record.ok


@pytest.mark.parametrize("line", [b"x: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
@pytest.mark.parametrize("begin", [b"2\r\n{}\r\n0\r\n", b"2\r\n{}\r\n0\r\nx: ", b"2;"])
async def test_what_stands_between_and_behind_chunks_is_bounded(
    tmp_path: Path, begin: bytes, line: bytes
) -> None:
    """Extensions and trailers, which nobody asked for."""
    async with (
        serving(FakeEnvironment(), tmp_path) as caller,
        await caller.connect() as wire,
    ):
        chunked: dict[str, str | None] = {"Transfer-Encoding": "chunked"}
        await wire.send(caller.head("POST", "/v1/executions", chunked) + begin)
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionError):
                for _ in range(10_000):
                    await wire.send(line * 10)


async def test_a_header_is_not_forged_by_an_id(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path) as caller:
        async with await caller.connect() as wire:
            head = caller.head("POST", "/v1/sandboxes", {"Stockade-Id": "a%0d%0aX-Evil: 1"}, 2)
            await wire.send(head + b"{}")
            answer = await wire.answer()
        assert answer.code == "invalid_request"
        assert "x-evil" not in answer.headers


async def test_a_request_id_comes_back_and_forges_nothing(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path) as caller:
        answer = await caller.call("GET", "/v1/none", b"", {"X-Request-Id": "r-1"})
        assert answer.json["request_id"] == "r-1"
        answer = await caller.call("GET", "/v1/none", b"", {"X-Request-Id": "r" * 500})
        assert "request_id" not in answer.json


def test_seen_ids_are_bounded_and_the_living_are_never_forgotten() -> None:
    seen = SeenIds(most=3)
    assert seen.take("t", "living")
    for number in range(10):
        assert seen.take("t", str(number))
        seen.end("t", str(number))
    assert not seen.take("t", "living")
    assert not seen.take("t", "9")
    assert not seen.take("t", "7")
    assert seen.take("t", "6"), "three have come after it"
    assert seen.take("u", "9"), "another tenant's"


def test_the_budget_of_bodies_is_given_back_whatever_happens() -> None:
    budget = BodyBudget(100)
    with pytest.raises(ZeroDivisionError), budget.account() as account:
        account.take(60)
        with pytest.raises(Refusal):
            account.take(60)
        raise ZeroDivisionError
    assert budget.held == 0
