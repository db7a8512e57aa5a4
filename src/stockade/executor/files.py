"""Workspace files over the wire, with the content treated as the hostile bytes it is."""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

from stockade.executor.link import Link
from stockade.executor.wire import Closed, Data, Event, Granted, Reset, WireViolation, load_object
from stockade.port import (
    FileRefused,
    InvalidRequest,
    SandboxLost,
    WorkspaceEntry,
    check_workspace_path,
)

_ANSWER_BYTES: Final = 65_536
_QUEUE_BYTES: Final = 262_144
PATIENCE_SECONDS: Final = 20.0
"""How long the agent may be silent while something is asked of it."""
MAX_ENTRIES: Final = 100_000
"""Entries of one folder that are listed; a longer listing is refused, never cut silently."""


class _Exchange:
    """One channel's events, as a queue that also ends when the wire breaks."""

    def __init__(self, link: Link, service: str, path: str) -> None:
        self._link = link
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._credit = asyncio.Event()
        self.ended = False
        self.channel = link.open(service, os.fsencode(path), self._on_event)
        link.broken.add_done_callback(self._on_broken)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Granted):
            self._credit.set()
            return
        if isinstance(event, Closed | Reset):
            self.ended = True
            self._credit.set()
        self._events.put_nowait(event)

    def _on_broken(self, reason: "asyncio.Future[str]") -> None:
        self._credit.set()
        self._events.put_nowait(None)

    async def data(self) -> bytes | None:
        """The next piece; ``None`` at the end. Raises :class:`SandboxLost`."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                event = await self._events.get()
        except TimeoutError:
            raise SandboxLost(f"the agent was silent for {PATIENCE_SECONDS:g} s") from None
        if event is None:
            raise SandboxLost(f"the sandbox was lost: {self._link.broken.result()}")
        if isinstance(event, Data):
            self._link.consumed(self.channel, len(event.data))
            return event.data
        if isinstance(event, Reset):
            raise SandboxLost(f"the agent gave up: {event.reason[:200]!r}")
        return None

    async def send(self, piece: bytes) -> None:
        self._link.send(self.channel, piece)
        while self._link.queued(self.channel) > _QUEUE_BYTES and not self.ended:
            self._credit.clear()
            if self._link.broken.done():
                raise SandboxLost(f"the sandbox was lost: {self._link.broken.result()}")
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._credit.wait()
            except TimeoutError:
                raise SandboxLost(f"the agent took nothing for {PATIENCE_SECONDS:g} s") from None

    def finish(self) -> None:
        """Leave the channel in an orderly state, however far the exchange came."""
        self._link.broken.remove_done_callback(self._on_broken)
        if self._link.broken.done():
            return
        if self.ended:
            self._link.close_channel(self.channel)
        else:
            self._link.reset_channel(self.channel, "no longer wanted")


def _answer(path: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        raise SandboxLost("the agent did not answer")
    try:
        answer = load_object(data, "an answer of the agent", _ANSWER_BYTES)
    except WireViolation as violation:
        raise SandboxLost(f"the agent answered nonsense: {violation}") from violation
    if "error" in answer:
        raise FileRefused(path, str(answer["error"])[:500])
    return answer


async def put(
    link: Link, path: str, content: bytes | AsyncIterable[bytes], *, temporary: bool = False
) -> None:
    """Write a workspace file. Raises :class:`FileRefused` or :class:`SandboxLost`.

    ``temporary``: one below ``/tmp`` instead.
    """
    _check(path)
    exchange = _Exchange(link, "put-temporary" if temporary else "put", path)
    try:
        sent = 0
        if isinstance(content, bytes):
            sent = len(content)
            await exchange.send(content)
        else:
            async for piece in content:
                sent += len(piece)
                await exchange.send(piece)
        link.close_channel(exchange.channel)
        link.flush()
        answer = _answer(path, await exchange.data())
        if answer.get("written") != sent:
            raise FileRefused(path, f"{answer.get('written')!r} of {sent} bytes were written")
        await exchange.data()
    finally:
        exchange.finish()


async def fetch(link: Link, path: str, most: int) -> AsyncIterator[bytes]:
    """Read a workspace file in pieces; its size is fixed when it is opened.

    Raises :class:`FileRefused`, also for a file of more than ``most`` bytes or one that
    shrank while it was read.
    """
    _check(path)
    exchange = _Exchange(link, "get", path)
    try:
        link.close_channel(exchange.channel)
        link.flush()
        size = _answer(path, await exchange.data()).get("size")
        if type(size) is not int or size < 0:
            raise SandboxLost("the agent told no size")
        if size > most:
            raise FileRefused(path, f"has {size} bytes, and only {most} may come out")
        left = size
        while (piece := await exchange.data()) is not None:
            left -= len(piece)
            if left < 0:
                raise SandboxLost("the agent sent more than the file's size")
            yield piece
        if left:
            raise FileRefused(path, f"shrank by {left} bytes while it was read")
    finally:
        exchange.finish()


async def list_folder(link: Link, path: str) -> list[WorkspaceEntry]:
    """List a folder of the workspace, sorted by name."""
    if path:
        _check(path)
    exchange = _Exchange(link, "list", path)
    entries: list[WorkspaceEntry] = []
    try:
        link.close_channel(exchange.channel)
        link.flush()
        more = True
        while more:
            page = _answer(path, await exchange.data())
            more = page.get("more") is True
            found = _entries(page.get("entries"))
            if more and not found:
                raise SandboxLost("the agent lists nothing, and more of it")
            entries += found
            if len(entries) > MAX_ENTRIES:
                raise FileRefused(path, f"has more than {MAX_ENTRIES} entries")
        await exchange.data()
    finally:
        exchange.finish()
    # A file that is renamed meanwhile may be met twice: readdir(3) promises nothing else.
    once = {entry.name: entry for entry in entries}
    return sorted(once.values(), key=lambda entry: entry.name)


def _check(path: str) -> None:
    try:
        check_workspace_path("path", path)
    except InvalidRequest as error:
        raise FileRefused(path, str(error)) from None


def _entries(page: object) -> list[WorkspaceEntry]:
    if not isinstance(page, list):
        raise SandboxLost("the agent listed what is no page")
    return [_entry(entry) for entry in page]


def _entry(entry: object) -> WorkspaceEntry:
    match entry:
        case [str(spelled), ("file" | "folder" | "link" | "other") as kind, int(size)] if (
            type(size) is int and size >= 0
        ):
            name = _decode(spelled)
            # Whoever joins it to a path stays in the folder.
            if (
                0 < len(os.fsencode(name)) <= 255
                and name not in (".", "..")
                and ("/" not in name and "\0" not in name)
            ):
                return WorkspaceEntry(name, kind, size)
    raise SandboxLost("the agent listed what is no entry")


def _decode(name: str) -> str:
    """The agent spells each byte of a name as the character of that number: docs/wire.md."""
    try:
        return os.fsdecode(name.encode("latin-1"))
    except UnicodeEncodeError:
        raise SandboxLost("the agent listed a name that is no bytes") from None
