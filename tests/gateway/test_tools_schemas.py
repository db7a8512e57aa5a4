"""Schemas of tenants: errors with their place, and none of them holds anybody else up."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stockade.gateway import tools_schemas
from stockade.gateway.tools_schemas import Flaw, Schemas, TooSlow
from stockade.port import InvalidRequest, Unavailable
from stockade.tools.json_text import dump
from stockade.tools.schemas import is_plain

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def schemas() -> AsyncIterator[Schemas]:
    async with Schemas() as schemas:
        yield schemas


def doubling(levels: int) -> dict[str, Any]:
    """Each level asks for the next one twice."""
    defs: dict[str, Any] = {"0": {"minimum": 1}}
    for number in range(levels):
        inner = {"$ref": f"#/$defs/{number}"}
        defs[str(number + 1)] = {"allOf": [inner, {"anyOf": [inner, inner]}]}
    return {"$ref": f"#/$defs/{levels}", "$defs": defs}


TREE = {
    "$defs": {
        "node": {
            "properties": {"a": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}},
            "required": ["b"],
        }
    },
    "$ref": "#/$defs/node",
}


def chain(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_errors_point_at_the_place(schemas: Schemas) -> None:
    schema = {"properties": {"a/b": {"items": {"type": "integer"}}}, "required": ["c"]}
    flaws = await schemas.flaws("t", schema, dump({"a/b": [1, "x"]}))
    assert Flaw("/a~1b/1", '"x" is not of type "integer"') in flaws
    assert Flaw("", '"c" is a required property') in flaws
    assert await schemas.flaws("t", schema, dump({"a/b": [1], "c": 0})) == ()


async def test_what_is_no_schema_is_refused_with_its_place(schemas: Schemas) -> None:
    for schema, field in (
        ({"properties": {"a": {"type": "strin"}}}, "s/properties/a/type"),
        ({"minimum": "1"}, "s/minimum"),
        ({"properties": {"a": {"pattern": "("}}}, "s/properties/a/pattern"),
        ({"pattern": "(?=a)b"}, "s/pattern"),  # takes a matcher that looks back
        ({"$ref": "#/$defs/none"}, "s"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await schemas.check("t", schema, "s")
        assert refused.value.field == field, schema


async def test_nothing_is_fetched(schemas: Schemas) -> None:
    """Not by this process either, should a reference ever get past the definition."""
    heard = asyncio.Event()

    async def hear(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(InvalidRequest):
            await schemas.check("t", {"$ref": f"http://127.0.0.1:{port}/s.json"}, "s")
        with pytest.raises(InvalidRequest):
            await schemas.check("t", {"$ref": "file:///etc/hostname"}, "s")
    assert not heard.is_set()


async def test_a_catastrophic_pattern_is_none(schemas: Schemas) -> None:
    for pattern in ("^(a+)+$", "^(a|a)*$", "^(a*)*b$", "(x+x+)+y"):
        flaws = await schemas.flaws("t", {"pattern": pattern}, dump("a" * 50_000 + "!"))
        assert len(flaws) == 1


async def test_a_pattern_that_unfolds_is_refused(schemas: Schemas) -> None:
    with pytest.raises(InvalidRequest):
        await schemas.check("t", {"pattern": "((((a{100}){100}){100}){100}){100}"}, "s")


async def test_a_recursive_schema_is_fine(schemas: Schemas) -> None:
    schema = {"type": "array", "items": {"$ref": "#"}}
    await schemas.check("t", schema, "s")
    assert await schemas.flaws("t", schema, b"[[[]],[]]") == ()
    (flaw,) = await schemas.flaws("t", schema, b"[[[]],[[1]]]")
    assert flaw.place == "/1/0/0"


@pytest.mark.parametrize(
    "schema",
    [doubling(30)],
    ids=["doubling"],
)
async def test_a_schema_without_an_end_is_refused(schemas: Schemas, schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="schema"):
        await schemas.check("t", schema, "s")
    # Whoever comes next is served.
    assert await schemas.flaws("t", {"allOf": [True]}, b"1") == ()


async def test_a_schema_that_is_only_itself_comes_to_an_end(schemas: Schemas) -> None:
    for schema in ({"$ref": "#"}, {"allOf": [{"$ref": "#"}]}):
        await schemas.check("t", schema, "s")
        assert await schemas.flaws("t", schema, b"{}") == ()


async def test_a_value_that_makes_it_slow_ends_its_process_alone(schemas: Schemas) -> None:
    await schemas.check("slow", TREE, "s")
    slow = [asyncio.create_task(schemas.flaws("slow", TREE, dump(chain(40)))) for _ in range(3)]
    # Others are answered meanwhile: one tenant has one of the processes.
    for _ in range(20):
        assert await schemas.flaws("other", {"allOf": [{"type": "object"}]}, b"{}") == ()
    assert not all(task.done() for task in slow)
    for task in slow:
        with pytest.raises(TooSlow, match="CPU time"):
            await task


async def test_only_what_is_linear_is_looked_at_in_this_process(schemas: Schemas) -> None:
    plain = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": [1, "x"]}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert is_plain(plain)
    assert await schemas.flaws("t", plain, dump({"a": [1, "x"]})) == ()
    (flaw,) = await schemas.flaws("t", plain, dump({"a": [2]}))
    assert flaw.place == "/a/0"
    for name, inner in (
        ("$ref", "#"), ("pattern", "a"), ("patternProperties", {"a": True}), ("allOf", [True]),
        ("anyOf", [True]), ("oneOf", [True]), ("not", False), ("if", True), ("$defs", {}),
        ("dependentSchemas", {}), ("propertyNames", True), ("contains", True),
        ("uniqueItems", True), ("prefixItems", [True]), ("unevaluatedItems", True),
        ("unevaluatedProperties", True), ("multipleOf", 2), ("$anchor", "a"), ("unknown", 1),
    ):  # fmt: skip
        assert not is_plain({name: inner}), name
        assert not is_plain({"properties": {"a": {"items": {name: inner}}}}), name


async def test_a_caller_that_leaves_does_not_get_in_anothers_way(schemas: Schemas) -> None:
    for _ in range(5):
        leaving = asyncio.create_task(schemas.flaws("t", {"allOf": [{"minimum": 5}]}, b"1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert await schemas.flaws("t", {"minimum": 5}, b"7") == ()


@pytest.mark.parametrize("kills", [1, 2])
async def test_a_process_that_others_killed_is_no_fault_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    start, left = tools_schemas._start, kills

    async def killed() -> asyncio.subprocess.Process:
        nonlocal left
        process = await start()
        if left:
            left -= 1
            process.kill()
        return process

    monkeypatch.setattr(tools_schemas, "_start", killed)
    async with Schemas() as schemas:
        if kills == 1:
            assert await schemas.flaws("t", {"pattern": "a"}, b'"a"') == ()
            return
        with pytest.raises(Unavailable, match="killed"):
            await schemas.flaws("t", {"pattern": "a"}, b'"a"')


async def test_nothing_is_of_a_schema_that_is_none_any_more(schemas: Schemas) -> None:
    """As of one that an earlier version took."""
    assert await schemas.flaws("t", {"pattern": "(?=a)"}, b'"a"') != ()


async def test_a_process_that_says_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe and asyncio hold: what nobody reads is no reason to wait for ever."""

    async def flooding() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            "yes", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        await asyncio.sleep(0.2)
        return process

    monkeypatch.setattr(tools_schemas, "_start", flooding)
    worker = tools_schemas._Worker()
    async with asyncio.timeout(30):
        with pytest.raises(TooSlow):
            await worker.ask(b"{}", b"{}")
