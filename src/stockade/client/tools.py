"""A tenant's tools at a gateway: ``await environment.tools.call("vat", {"net": 100})``."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel

from stockade.api.answers import ExecutionList, ExecutionSummary
from stockade.api.tools import (
    ToolBody,
    ToolCallAnswer,
    ToolList,
    ToolMessage,
    ToolTestAnswer,
    ToolVersionList,
)
from stockade.client import calls
from stockade.client.transport import Interrupted, Transport, parsed
from stockade.port import MIB, InvalidRequest, SandboxLost, Unavailable
from stockade.tools import calling
from stockade.tools.definition import Tool, check_name
from stockade.tools.exporting import Form, described

M = TypeVar("M", bound=BaseModel)

_MOST_BYTES: Final = 64 * MIB
CALL_SECONDS: Final = 900.0
"""How long a call is waited for, and what storing and testing take."""


class RemoteTools:
    """Those of one tenant, whom the key tells."""

    def __init__(self, transport: Transport, require_open: Callable[[], None]) -> None:
        self._transport = transport
        self._require_open = require_open

    async def call(
        self,
        name: str,
        input: Any,  # noqa: A002 - the word of the API
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """What it returns. Raises :class:`~stockade.port.ToolFailed` where it returned nothing
        that its schema allows, and :class:`~stockade.port.InvalidRequest` with the place where
        ``input`` is not of its own. Whoever stops waiting ends it.

        ``version``: by default the live one. ``idempotency_key``: the same call again with the
        same key returns the first one's output.
        """
        answer = await self.called(
            name, input, version=version, idempotency_key=idempotency_key, seconds=seconds
        )
        return answer.output

    async def called(
        self,
        name: str,
        input: Any,  # noqa: A002
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        seconds: float = CALL_SECONDS,
    ) -> ToolCallAnswer:
        """The same, with the version and the execution."""
        check_name(name)
        text = b'{"input":' + calling.spelled(input)
        if version is not None:
            text += f',"version":{_number(version)}'.encode()
        more = calls.identity(None, idempotency_key)
        answer = await self._wait(f"/v1/tools/{name}/call", text + b"}", seconds, more)
        return self._read(ToolCallAnswer, answer)

    async def store(self, tool: Tool, *, seconds: float = CALL_SECONDS) -> ToolMessage:
        """Store a version, once it was looked at and has passed its examples."""
        body = ToolBody.of(tool).model_dump_json().encode()
        answer = await self._wait(f"/v1/tools/{tool.name}/versions", body, seconds)
        return self._read(ToolMessage, answer)

    async def test(
        self, name: str, version: int | None = None, *, seconds: float = CALL_SECONDS
    ) -> ToolTestAnswer:
        """Run a version's examples once more."""
        check_name(name)
        body = json.dumps({} if version is None else {"version": _number(version)}).encode()
        return self._read(ToolTestAnswer, await self._wait(f"/v1/tools/{name}/test", body, seconds))

    async def each(self) -> AsyncIterator[ToolMessage]:
        """Each by the version that is called, without its source."""
        cursor: str | None = None
        while True:
            query = "" if cursor is None else f"?{urlencode({'cursor': cursor})}"
            page = self._read(ToolList, await self._ask("GET", f"/v1/tools{query}"))
            for tool in page.tools:
                yield tool
            cursor = page.next
            if cursor is None:
                return

    async def get(self, name: str, version: int | None = None) -> ToolMessage:
        """One version, whole; by default the live one."""
        check_name(name)
        query = "" if version is None else f"?version={_number(version)}"
        return self._read(ToolMessage, await self._ask("GET", f"/v1/tools/{name}{query}"))

    async def versions(self, name: str) -> tuple[ToolMessage, ...]:
        """All that are kept, the latest first."""
        check_name(name)
        answer = await self._ask("GET", f"/v1/tools/{name}/versions")
        return self._read(ToolVersionList, answer).versions

    async def make_live(self, name: str, version: int) -> None:
        """Call this version from now on: to roll back."""
        check_name(name)
        body = json.dumps({"version": _number(version)}).encode()
        await self._ask("POST", f"/v1/tools/{name}/live", body)

    async def disable(self, name: str) -> None:
        """Call it no more."""
        check_name(name)
        await self._ask("POST", f"/v1/tools/{name}/disable")

    async def enable(self, name: str) -> None:
        """Call it again."""
        check_name(name)
        await self._ask("POST", f"/v1/tools/{name}/enable")

    async def remove(self, name: str) -> None:
        """With all of its versions."""
        check_name(name)
        await self._ask("DELETE", f"/v1/tools/{name}")

    async def logs(self, name: str, limit: int = 50) -> tuple[ExecutionSummary, ...]:
        """The executions that were for it, the latest first."""
        check_name(name)
        query = urlencode({"tool": name, "limit": limit})
        answer = await self._ask("GET", f"/v1/executions?{query}")
        return self._read(ExecutionList, answer).executions

    async def export(self, form: Form = Form.OPENAI) -> list[dict[str, Any]]:
        """All that are enabled, as a model is told of them."""
        return [
            described(
                form,
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
            )
            async for tool in self.each()
            if not tool.disabled
        ]

    async def _ask(self, method: str, path: str, message: bytes | None = None) -> bytes:
        self._require_open()
        try:
            return await self._transport.ask(method, path, message=message, most_bytes=_MOST_BYTES)
        except Interrupted as error:
            raise Unavailable(f"{self._transport}: {error}") from None

    async def _wait(
        self, path: str, message: bytes, seconds: float, more: Mapping[str, str] | None = None
    ) -> bytes:
        """An answer that comes when something has run."""
        self._require_open()
        headers = self._transport.headers(
            None,
            {"Accept": "application/json", "Content-Type": "application/json", **(more or {})},
        )
        try:
            async with asyncio.timeout(seconds):
                response = await self._transport.send("POST", path, headers, message, silent=True)
                try:
                    await self._transport.require(response)
                    return await self._transport.read(response, _MOST_BYTES)
                except BaseException:
                    response.close()
                    raise
                finally:
                    response.release()
        except TimeoutError:
            raise SandboxLost(
                f"{self._transport} did not answer within {seconds:g} s; it may have run"
            ) from None
        except Interrupted as error:
            raise SandboxLost(f"{self._transport}: {error}; it may have run") from None

    def _read(self, model: type[M], answer: bytes) -> M:
        try:
            return parsed(model, answer)
        except Interrupted as error:
            raise Unavailable(f"{self._transport}: {error}") from None


def _number(version: int) -> int:
    if type(version) is not int or version < 1:
        raise InvalidRequest("version", f"{version!r} is no version: they count from 1")
    return version
