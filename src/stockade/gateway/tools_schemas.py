"""Schemas of tenants, used in processes of their own that are ended where one takes too long.

A tenant has one of them at a time: whose schema is slow waits for itself, and the others go on.
"""

import asyncio
import contextlib
import json
import signal
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import jsonschema_rs

from stockade.port import InvalidRequest, Unavailable
from stockade.tools import json_text, schemas
from stockade.tools.schema_worker import CPU_SECONDS, HEAD, LENGTH

_WORKERS: Final = 2
_MOST_ANSWER: Final = 256 * 1024
_SECONDS: Final = 30.0
"""Of our own clock, beyond any load: the process's own CPU time ends it long before."""
_MOST_TENANTS: Final = 10_000
_SMALL_BYTES: Final = 4 * 1024
"""Of a schema, and of a value, that are looked at here, where the schema is a plain one: the way to
the process and back takes longer than most calls."""
_MOST_PLAIN: Final = 512


@dataclass(frozen=True, slots=True)
class Flaw:
    """Where a value is not what its schema says."""

    place: str
    """A JSON pointer; empty for the whole."""
    message: str


class TooSlow(Exception):
    """The schema did not come to an end with the value."""


class _Killed(Exception):
    """Somebody else ended the process, which says nothing of the schema."""


class Schemas:
    """What compiles and uses them."""

    def __init__(self, workers: int = _WORKERS) -> None:
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._all = [_Worker() for _ in range(workers)]
        for worker in self._all:
            self._idle.put_nowait(worker)
        self._plain: dict[bytes, jsonschema_rs.Draft202012Validator | None] = {}
        self._tenants: OrderedDict[str, asyncio.Lock] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Schemas: {self._idle.qsize()} of {len(self._all)} workers idle>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._all:
            await worker.stop()

    async def check(self, tenant: str, schema: object, field: str) -> None:
        """Whether it is a schema at all. Raises :class:`InvalidRequest` with the place."""
        try:
            told = await self._ask(tenant, schema, b"")
            if "schema" not in told:
                # Whether it ends at all: one that is only references to itself does not.
                told = await self._ask(tenant, schema, b"{}")
        except TooSlow as error:
            raise InvalidRequest(field, f"the schema {error}") from None
        if "schema" in told:
            flaw = _flaw(told["schema"])
            raise InvalidRequest(field + flaw.place, flaw.message)

    async def flaws(self, tenant: str, schema: object, value: bytes) -> tuple[Flaw, ...]:
        """What a value, as JSON, has that its schema does not allow. Raises :class:`TooSlow`."""
        if len(value) <= _SMALL_BYTES and self._allows(schema, value):
            return ()
        told = await self._ask(tenant, schema, value)
        # One that was taken once may be none for a later validator: then nothing is of it.
        found = [told["schema"]] if "schema" in told else told["errors"]
        return tuple(map(_flaw, found))

    def _allows(self, schema: object, value: bytes) -> bool:
        """Whether it is told here that the value is of the schema: else it is not known yet."""
        text = json_text.canonical(schema)
        if len(text) > _SMALL_BYTES:
            return False
        if text not in self._plain:
            plain = schemas.is_plain(schema)
            while len(self._plain) >= _MOST_PLAIN:
                self._plain.pop(next(iter(self._plain)))
            self._plain[text] = (
                jsonschema_rs.Draft202012Validator(
                    json.loads(text), offline=True, validate_formats=False
                )
                if plain
                else None
            )
        validator = self._plain[text]
        return validator is not None and validator.is_valid(json.loads(value))

    async def _ask(self, tenant: str, schema: object, value: bytes) -> Mapping[str, Any]:
        plain = json_text.canonical(schema)
        async with self._turn(tenant), self._worker() as worker:
            try:
                return await worker.ask(plain, value)
            except _Killed:
                pass
            try:
                return await worker.ask(plain, value)
            except _Killed:
                raise Unavailable(
                    "the process that looks at schemas was killed twice; try again later"
                ) from None

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        lock = self._tenants.setdefault(tenant, asyncio.Lock())
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > _MOST_TENANTS:
            oldest = next(iter(self._tenants))
            if self._tenants[oldest].locked():
                break
            del self._tenants[oldest]
        async with lock:
            yield

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator["_Worker"]:
        worker = await self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put_nowait(worker)


class _Worker:
    """One process, started when it is first needed, and anew when it has ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, schema: bytes, value: bytes) -> Mapping[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await _start()
        assert process.stdin is not None
        assert process.stdout is not None
        whole = False
        try:
            async with asyncio.timeout(_SECONDS):
                process.stdin.write(HEAD.pack(len(schema), len(value)) + schema + value)
                await process.stdin.drain()
                (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if size > _MOST_ANSWER:
                    raise TooSlow("brought its validator down")
                answer = json.loads(await process.stdout.readexactly(size))
            whole = True
        except (OSError, EOFError, TimeoutError) as error:
            # The kernel ends a schema by other signals; this one comes from outside, as of memory
            # that the machine has not.
            if not isinstance(error, TimeoutError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _SECONDS)
                if process.returncode == -signal.SIGKILL:
                    raise _Killed from None
            raise TooSlow(
                f"did not come to an end with it within {CPU_SECONDS:g} s of CPU time: it branches "
                "or refers to itself too often, or has too large a pattern"
            ) from None
        finally:
            # Of a caller that left, too: half an answer would be taken for the next one's.
            if not whole:
                await asyncio.shield(self.stop())
        assert isinstance(answer, dict)
        return answer

    async def stop(self) -> None:
        """End it, and wait for that."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert process.stdout is not None
        # asyncio waits for the pipe's end, which does not come while it reads no more of it.
        while await process.stdout.read(65_536):
            pass
        await process.wait()


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "stockade.tools.schema_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
        )
    except OSError as error:
        raise Unavailable(f"schemas cannot be looked at now: {error.strerror}") from None


def _flaw(told: Any) -> Flaw:
    place, message = told
    return Flaw(str(place), "".join(c if c.isprintable() else "�" for c in str(message)))
