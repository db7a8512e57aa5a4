"""The client's and the command's way to tools, against a gateway that serves."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tools.kit import tool

from stockade.client import BlockingEnvironment, open_remote
from stockade.executor.environment import LocalEnvironment
from stockade.port import InvalidRequest, Refused, ToolFailed, Unavailable
from stockade.port.fake import FakeEnvironment
from stockade.tools.exporting import Form

from .conftest import Gateway, OpenGateway
from .test_tools import doubling

VAT = tool(source="def main(input):\n    return {'gross': input['net'] * 2}\n", examples=())


async def test_a_client_stores_calls_and_exports(open_fake: OpenGateway) -> None:
    async with (
        open_fake(doubling) as gateway,
        open_remote(gateway.url, key=gateway.keys["alice"]) as stockade,
    ):
        made = await stockade.tools.store(VAT)
        assert (made.version, made.digest) == (1, VAT.digest)
        assert await stockade.tools.call("vat", {"net": 21}) == {"gross": 42}
        whole = await stockade.tools.called("vat", {"net": 1}, idempotency_key="k", version=1)
        again = await stockade.tools.called("vat", {"net": 1}, idempotency_key="k", version=1)
        assert whole == again
        with pytest.raises(InvalidRequest) as refused:
            await stockade.tools.call("vat", {"net": "1"})
        assert refused.value.field == "input/net"
        for wrong in (float("nan"), b"x", {1, 2}):
            with pytest.raises(InvalidRequest, match="input"):
                await stockade.tools.call("vat", {"net": wrong})
        with pytest.raises(InvalidRequest, match="name"):
            await stockade.tools.call("../executions", {})
        (mcp,) = await stockade.tools.export(Form.MCP)
        assert set(mcp) == {"name", "description", "inputSchema", "outputSchema"}
        await stockade.tools.disable("vat")
        assert await stockade.tools.export() == []
        with pytest.raises(Refused, match="disabled"):
            await stockade.tools.call("vat", {"net": 1})
        await stockade.tools.enable("vat")
        assert (await stockade.tools.test("vat")).passed
        assert (await stockade.tools.get("vat")).definition is not None
        assert [each.purpose for each in await stockade.tools.logs("vat", 2)] == ["call", "call"]
        await stockade.tools.remove("vat")
        assert [each async for each in stockade.tools.each()] == []


async def test_a_failure_crosses_with_its_place_and_its_record(open_fake: OpenGateway) -> None:
    async with (
        open_fake(environment=FakeEnvironment(doubling)) as gateway,
        open_remote(gateway.url, key=gateway.keys["alice"]) as stockade,
    ):
        loose = {"type": "object"}
        strict = {"type": "object", "properties": {"gross": {"maximum": 10}}}
        await stockade.tools.store(tool(input_schema=loose, output_schema=strict, examples=()))
        with pytest.raises(ToolFailed, match="maximum of 10") as failed:
            await stockade.tools.call("vat", {"net": 7})
        assert (failed.value.reason, failed.value.place) == ("output_schema", "/gross")
        assert failed.value.execution
        assert (await stockade.jobs.show(failed.value.execution)).record is not None


async def test_without_a_loop_as_well(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        key = gateway.keys["alice"]

        def plain() -> Any:
            with BlockingEnvironment(lambda: open_remote(gateway.url, key=key)) as stockade:
                return stockade.call_tool("vat", {"net": 4})

        async with open_remote(gateway.url, key=key) as stockade:
            await stockade.tools.store(VAT)
        assert await asyncio.to_thread(plain) == {"gross": 8}


def test_an_environment_of_this_machine_keeps_no_tools() -> None:
    with (
        BlockingEnvironment(FakeEnvironment) as stockade,
        pytest.raises(Unavailable, match="kept by a service"),
    ):
        stockade.call_tool("vat", {})
    assert not hasattr(LocalEnvironment, "tools")


async def command(gateway: Gateway, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stockade.cli.main", "tool", *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"STOCKADE_URL": gateway.url, "STOCKADE_KEY": gateway.keys["alice"], "PATH": "/usr/bin"},
    )  # fmt: skip
    said, complained = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(), complained.decode()


async def test_what_a_command_cannot_do_it_says_with_its_code(
    open_fake: OpenGateway, tmp_path: Path
) -> None:
    (tmp_path / "vat.py").write_text(VAT.source)
    (tmp_path / "latin.py").write_bytes(b"# \xe9")
    source = str(tmp_path / "vat.py")
    schema = json.dumps(VAT.input_schema)
    async with open_fake(doubling) as gateway:
        cases = [
            (("call", "vat", "{}"), 77, "not_found"),
            (("add", "vat", source, "--input", '{"type": "object", "type": "x"}'), 64, "two members"),
            (("add", "vat", source, "--input", "/nowhere"), 66, "No such file"),
            (("add", "vat", str(tmp_path / "latin.py"), "--input", schema), 66, "not UTF-8"),
            (("add", "vat", source, "--input", schema, "--limit", "nonsense=1"), 64, "none of"),
            (("add", "vat", source, "--input", schema, "--examples", "{}"), 64, "no list"),
            (("add", "vat", source, "--input", schema, "--output", '{"$ref": "http://x"}'), 64,
             "nothing is fetched"),
        ]  # fmt: skip
        done = await asyncio.gather(*(command(gateway, *words) for words, _, _ in cases))
        for (words, code, sentence), (found, _, complained) in zip(cases, done, strict=True):
            assert found == code, (words, complained)
            assert sentence in complained, (words, complained)
