"""One execution's way: three forms of an answer, jobs, watchers, idempotency, disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from stockade.api.frames import FrameDecoder, FrameType, RecordAssembler
from stockade.api.records import DetachedRecord
from stockade.gateway.api import forms
from stockade.gateway.policy import Budgets
from stockade.port import Outcome, Stream, Tier
from stockade.port.fake import Call, FakeEnvironment, Scripted, cat

from .conftest import Gateway, OpenGateway

PROGRAM = {"program": {"kind": "python", "source": "print(1)"}}
JOB = {"Prefer": "respond-async"}
FOREVER = Scripted(stdout=b"begun\n", delay=float("inf"))


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any, str | None]]:
    """Name, data and id."""
    name, data, mark = "", "", None
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif line.startswith("id: "):
            mark = line[4:]
        elif not line and name:
            yield name, json.loads(data), mark
            name, data, mark = "", "", None


async def until_ended(gateway: Gateway, execution: str) -> Any:
    """A job's record."""
    async with asyncio.timeout(10):
        while True:
            found = (await gateway.ask("GET", f"/v1/executions/{execution}")).json
            if found["state"] == "ended":
                return found["record"]
            await asyncio.sleep(0.02)


async def test_waiting(open_fake: OpenGateway) -> None:
    """The record as JSON, when it has ended; and it is found again."""
    script = [Scripted(stdout=b"hi\xff\n", result=b"{}", artefacts={"a.txt": b"kept"})]
    async with open_fake(script) as gateway:
        answer = await gateway.ask(
            "POST", "/v1/executions", {**PROGRAM, "artefacts": ["a.txt", "b.txt"]}
        )
        assert answer.status == 200
        message = answer.json
        assert message["state"] == "ended"
        record = message["record"]
        assert record["outcome"] == "ok"
        assert record["stdout"]["head"] == {"base64": "aGn/Cg=="}
        assert record["result"] == "{}"
        assert [file["name"] for file in record["artefacts"]] == ["a.txt"]
        assert record["missing_artefacts"] == [{"name": "b.txt", "reason": "no such file"}]
        assert answer.headers["Location"] == f"/v1/executions/{message['id']}"
        assert (await gateway.ask("GET", answer.headers["Location"])).json == message
        (call,) = gateway.environment.calls
        assert call.sandbox.tenant == "alice"


async def test_server_sent_events(open_fake: OpenGateway) -> None:
    """Output as it comes, then the record; ids say where to go on."""

    async def program(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b"one\n")
        await call.write(Stream.STDERR, b"two\n")
        return Scripted(exit_code=3)

    async with open_fake([program]) as gateway:
        async with gateway.http.post(
            gateway.url + "/v1/executions",
            json=PROGRAM,
            headers={**gateway.headers(), "Accept": "text/event-stream"},
        ) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            found = [one async for one in events(response)]
        names = [name for name, _, _ in found]
        assert names == ["started", "output", "output", "record"]
        assert found[1][1:] == ({"stream": "stdout", "data": "one\n"}, "4")
        assert found[2][1:] == ({"stream": "stderr", "data": "two\n"}, "8")
        assert found[3][1]["outcome"] == "nonzero_exit"


async def test_frames(open_fake: OpenGateway) -> None:
    """The same in binary frames, with the artefacts' bytes."""
    script = [Scripted(stdout=b"x" * 300_000, artefacts={"a": b"\0" * 70_000})]
    async with open_fake(script) as gateway:
        answer = await gateway.ask(
            "POST",
            "/v1/executions",
            {**PROGRAM, "artefacts": ["a"]},
            headers={"Accept": "application/vnd.stockade.frames"},
        )
        frames = list(FrameDecoder().feed(answer.body))
        assert frames[0].type is FrameType.STARTED
        out = b"".join(one.payload for one in frames if one.type is FrameType.STDOUT)
        assert out == b"x" * 300_000
        (record,) = (one for one in frames if one.type is FrameType.RECORD)
        whole = RecordAssembler(DetachedRecord.model_validate_json(record.payload), 10**7)
        for one in frames:
            if one.type is FrameType.BLOB:
                whole.add(one.payload)
        execution = whole.finish()
        assert execution.artefacts[0].data == b"\0" * 70_000
        assert frames[-1].type is FrameType.END


async def test_the_frames_of_a_short_program_are_one_piece(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece wakes its reader; what comes within the moment that is allowed goes together."""
    monkeypatch.setattr(forms, "GATHERED_SECONDS", 60.0)
    async with (
        open_fake([Scripted(stdout=b"1\n")]) as gateway,
        gateway.http.post(
            gateway.url + "/v1/executions",
            json=PROGRAM,
            headers=gateway.headers() | {"Accept": "application/vnd.stockade.frames"},
        ) as response,
    ):
        pieces = [data async for data, whole in response.content.iter_chunks() if whole]
        kinds = [frame.type for frame in FrameDecoder().feed(pieces[0])]
        assert (len(pieces), kinds[0], kinds[-1]) == (1, FrameType.STARTED, FrameType.END)


async def test_a_job_is_polled_watched_and_cancelled(open_fake: OpenGateway) -> None:
    """Nobody has to stay for it."""
    async with open_fake([FOREVER]) as gateway:
        answer = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        assert (answer.status, answer.json["state"]) == (202, "running")
        where = answer.headers["Location"]
        async with gateway.http.get(
            gateway.url + where + "/events", headers=gateway.headers()
        ) as watching:
            stream = events(watching)
            assert (await anext(stream))[0] == "started"
            assert (await anext(stream))[1] == {"stream": "stdout", "data": "begun\n"}
            assert (await gateway.ask("GET", where)).json["state"] == "running"
            assert (await gateway.ask("POST", where + "/cancel")).status == 204
            name, record, _ = await anext(stream)
            assert (name, record["outcome"]) == ("record", "cancelled")
        assert (await until_ended(gateway, answer.json["id"]))["outcome"] == "cancelled"
        late = await gateway.ask("GET", where + "/events")
        assert b"begun" in late.body
        assert b"event: record" in late.body
        assert (await gateway.ask("POST", where + "/cancel")).code == "conflict"
        listed = (await gateway.ask("GET", "/v1/executions")).json["executions"]
        assert [(one["id"], one["outcome"]) for one in listed] == [(answer.json["id"], "cancelled")]


async def test_every_watcher_sees_every_line_once(open_fake: OpenGateway) -> None:
    """Five that come at different times."""
    going = asyncio.Event()

    async def program(call: Call) -> Scripted:
        for number in range(1000):
            await call.write(Stream.STDOUT, b"%d\n" % number)
            if number == 500:
                await going.wait()
        return Scripted()

    async with open_fake([program]) as gateway:
        where = (await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)).headers[
            "Location"
        ]

        async def watch(delay: float) -> str:
            await asyncio.sleep(delay)
            text = ""
            async with gateway.http.get(
                gateway.url + where + "/events", headers=gateway.headers()
            ) as response:
                async for name, data, _ in events(response):
                    if name == "output":
                        text += data["data"]
            return text

        watching = [asyncio.create_task(watch(number / 50)) for number in range(5)]
        await asyncio.sleep(0.15)
        going.set()
        whole = "".join(f"{number}\n" for number in range(1000))
        assert await asyncio.gather(*watching) == [whole] * 5


async def test_a_slow_watcher_holds_nobody_and_is_told(open_fake: OpenGateway) -> None:
    """The program runs to its end; the watcher hears that it lost the thread."""
    seen = asyncio.Event()

    async def program(call: Call) -> Scripted:
        await seen.wait()
        for _ in range(300):
            await call.write(Stream.STDOUT, b"x" * 32_768)
            await asyncio.sleep(0)
        return Scripted()

    async with open_fake([program]) as gateway:
        answer = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        head = f"GET {answer.headers['Location']}/events HTTP/1.1\r\nHost: x\r\n"
        head += f"Authorization: {gateway.headers()['Authorization']}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"event: started")
        seen.set()
        assert (await until_ended(gateway, answer.json["id"]))["outcome"] == "ok"
        async with asyncio.timeout(10):
            data = await reader.read()
        writer.close()
        assert b"event: problem" in data
        assert b"too_large" in data
        assert len(data) < 5_000_000


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_caller_that_goes_away_cancels(open_fake: OpenGateway, accept: str) -> None:
    """Whatever it waits with. The record is kept."""
    async with open_fake([FOREVER]) as gateway:
        request = asyncio.create_task(
            gateway.ask("POST", "/v1/executions", PROGRAM, headers={"Accept": accept})
        )
        while not gateway.environment.calls:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        request.cancel()
        async with asyncio.timeout(5):
            while gateway.environment.calls[0].execution is None:
                await asyncio.sleep(0.01)
        assert gateway.environment.calls[0].execution.outcome is Outcome.CANCELLED
        (one,) = (await gateway.ask("GET", "/v1/executions")).json["executions"]
        assert (await until_ended(gateway, one["id"]))["outcome"] == "cancelled"
        assert len(gateway.services.calls) == 0


async def test_stdin_signal_and_resize(open_fake: OpenGateway) -> None:
    """Of a job whose input comes apart."""
    async with open_fake([cat]) as gateway:
        message = {**PROGRAM, "stdin": None, "terminal": {"rows": 24, "columns": 80}}
        answer = await gateway.ask("POST", "/v1/executions", message, headers=JOB)
        where = answer.headers["Location"]
        assert (await gateway.ask("POST", where + "/signal", {"number": 17})).status == 204
        size = {"rows": 30, "columns": 90}
        assert (await gateway.ask("POST", where + "/resize", size)).status == 204
        assert (await gateway.ask("PUT", where + "/stdin", data=b"typed")).status == 204
        assert (await until_ended(gateway, answer.json["id"]))["stdout"]["head"] == "typed"
        call = gateway.environment.calls[0]
        assert call.signals == [17]
        assert (call.sizes[0].rows, call.sizes[0].columns) == (30, 90)
        assert (await gateway.ask("PUT", where + "/stdin", data=b"more")).code == "conflict"
        alone = await gateway.ask("POST", "/v1/executions", {**PROGRAM, "stdin": None})
        assert alone.code == "invalid_request"


async def test_an_input_that_breaks_off_cancels(open_fake: OpenGateway) -> None:
    """Half an input is none."""
    async with open_fake([cat]) as gateway:
        answer = await gateway.ask(
            "POST", "/v1/executions", {**PROGRAM, "stdin": None}, headers=JOB
        )
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT {answer.headers['Location']}/stdin HTTP/1.1\r\nHost: x\r\n"
        head += (
            f"Authorization: {gateway.headers()['Authorization']}\r\nContent-Length: 100\r\n\r\n"
        )
        writer.write(head.encode() + b"half")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()
        record = await until_ended(gateway, answer.json["id"])
        assert record["outcome"] == "cancelled"


async def test_an_input_is_not_waited_for_when_its_program_has_ended(
    open_fake: OpenGateway,
) -> None:
    """Whoever sends it is answered, however much is still to come."""
    async with open_fake([Scripted(delay=0.2)]) as gateway:
        answer = await gateway.ask(
            "POST", "/v1/executions", {**PROGRAM, "stdin": None}, headers=JOB
        )
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT {answer.headers['Location']}/stdin HTTP/1.1\r\nHost: x\r\n"
        head += (
            f"Authorization: {gateway.headers()['Authorization']}\r\nContent-Length: 100\r\n\r\n"
        )
        writer.write(head.encode() + b"half")
        async with asyncio.timeout(5):
            assert b" 204 " in await reader.readline()
        writer.close()
        assert (await until_ended(gateway, answer.json["id"]))["outcome"] == "ok"


async def test_fifty_at_once_with_one_key_run_once(open_fake: OpenGateway) -> None:
    """One runs; the others hear that it does, or what became of it."""

    async def program(call: Call) -> Scripted:
        await asyncio.sleep(0.1)
        return Scripted(stdout=b"once\n")

    async with open_fake(program) as gateway:
        headers = {"Idempotency-Key": "the-same"}

        async def call() -> Any:
            return await gateway.ask("POST", "/v1/executions", PROGRAM, headers=headers)

        answers = await asyncio.gather(*(call() for _ in range(50)))
        assert len(gateway.environment.calls) == 1
        ran = [answer for answer in answers if answer.status == 200]
        assert len({answer.json["id"] for answer in ran}) == 1
        assert {answer.code for answer in answers} <= {None, "conflict"}
        again = await call()
        assert again.status == 200
        assert again.json["id"] == ran[0].json["id"]
        assert again.json["record"]["stdout"]["head"] == "once\n"
        # Another tenant's key of the same name is another one.
        bobs = await gateway.ask("POST", "/v1/executions", PROGRAM, key="bob", headers=headers)
        assert bobs.json["id"] != again.json["id"]
        other = await gateway.ask(
            "POST",
            "/v1/executions",
            {"program": {"kind": "python", "source": "2"}},
            headers=headers,
        )
        assert (other.status, other.code) == (409, "idempotency_conflict")


async def test_a_repeated_request_has_the_record_in_every_form(open_fake: OpenGateway) -> None:
    """With the artefacts' bytes where the form has them."""
    async with open_fake([Scripted(stdout=b"out", artefacts={"a": b"bytes"})]) as gateway:
        message = {**PROGRAM, "artefacts": ["a"]}
        key = {"Idempotency-Key": "k"}
        first = await gateway.ask("POST", "/v1/executions", message, headers=key)
        sse = await gateway.ask(
            "POST", "/v1/executions", message, headers=key | {"Accept": "text/event-stream"}
        )
        assert b'"data":"out"' in sse.body
        assert b"event: record" in sse.body
        frames = await gateway.ask(
            "POST",
            "/v1/executions",
            message,
            headers=key | {"Accept": "application/vnd.stockade.frames"},
        )
        kinds = [frame.type for frame in FrameDecoder().feed(frames.body)]
        assert kinds[0] is FrameType.STARTED
        assert kinds[-1] is FrameType.END
        assert b"bytes" in frames.body
        job = await gateway.ask("POST", "/v1/executions", message, headers=key | JOB)
        assert job.json["id"] == first.json["id"]
        assert len(gateway.environment.calls) == 1


async def test_what_nothing_can_serve_is_refused_and_recorded(open_fake: OpenGateway) -> None:
    """As a problem that names what is missing; its key may be used again."""
    environment = FakeEnvironment([Scripted()], tiers=[Tier.GVISOR])
    async with open_fake(environment=environment) as gateway:
        key = {"Idempotency-Key": "k"}
        wanted = {**PROGRAM, "sandbox": {"tier": "microvm"}}
        answer = await gateway.ask("POST", "/v1/executions", wanted, headers=key)
        assert (answer.status, answer.code) == (503, "unavailable")
        assert "microvm" in answer.json["missing"]
        (one,) = (await gateway.ask("GET", "/v1/executions")).json["executions"]
        assert one["outcome"] == "unavailable"
        again = await gateway.ask("POST", "/v1/executions", wanted, headers=key)
        assert again.code == "unavailable"
        found = (await gateway.ask("GET", "/v1/executions")).json["executions"]
        assert len(found) == 2


async def test_budgets_say_when_to_try_again(open_fake: OpenGateway) -> None:
    """A hundred at once at a budget of ten: exactly ten run."""
    async with open_fake(lambda _: FOREVER, budgets=Budgets(concurrency=10)) as gateway:

        async def call() -> Any:
            return await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)

        answers = await asyncio.gather(*(call() for _ in range(100)))
        taken = [answer for answer in answers if answer.status == 202]
        assert len(taken) == 10
        (refused, *_) = (answer for answer in answers if answer.status != 202)
        assert (refused.status, refused.code) == (429, "budget_exhausted")
        assert int(refused.headers["Retry-After"]) >= 1
        for answer in taken:
            await gateway.ask("POST", answer.headers["Location"] + "/cancel")
        for answer in taken:
            await until_ended(gateway, answer.json["id"])
        assert (await gateway.ask("GET", "/v1/usage")).json["running"] == 0


async def test_what_waits_for_its_turn_says_so_and_can_be_cancelled(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher hears that it lives, not that it began; its record says that it never did."""
    monkeypatch.setattr(forms, "KEEPALIVE_SECONDS", 0.1)
    async with open_fake([FOREVER], executor={"places": 1}) as gateway:
        first = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        waiting = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        where = waiting.headers["Location"]
        async with gateway.http.get(
            gateway.url + where + "/events", headers=gateway.headers()
        ) as watching:
            assert await watching.content.readline() == b": still there\n"
            assert (await gateway.ask("POST", where + "/cancel")).status == 204
            found = [one async for one in events(watching)]
        assert [name for name, _, _ in found] == ["record"]
        assert found[-1][1]["outcome"] == "cancelled"
        assert len(gateway.environment.calls) == 1
        await gateway.ask("POST", first.headers["Location"] + "/cancel")


async def test_a_tenants_burst_does_not_delay_another(open_fake: OpenGateway) -> None:
    """Forty calls wait for four places, and none of them ends; the other tenant's is served."""
    held = asyncio.Event()

    async def program(call: Call) -> Scripted:
        if call.sandbox.tenant == "alice":
            await held.wait()
        return Scripted()

    async with open_fake(
        program, budgets=Budgets(concurrency=100), executor={"places": 4}
    ) as gateway:
        burst = [
            asyncio.create_task(gateway.ask("POST", "/v1/executions", PROGRAM)) for _ in range(40)
        ]
        while len(gateway.environment.calls) < 3:
            await asyncio.sleep(0.01)
        assert (await gateway.ask("POST", "/v1/executions", PROGRAM, key="bob")).status == 200
        assert not any(one.done() for one in burst)
        held.set()
        for one in burst:
            one.cancel()
        await asyncio.wait(burst)
