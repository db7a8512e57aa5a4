"""The answer to an execution: frames, as they come, at the reader's pace."""

import asyncio
import contextlib
import json
from typing import Final

from starlette.types import Send

from stockade.api.frames import (
    GATHERED_BYTES,
    GATHERED_SECONDS,
    MEDIA_TYPE,
    FrameType,
    encode,
    encode_output,
    encode_record,
)
from stockade.api.problems import Problem
from stockade.api.records import EgressEventMessage
from stockade.executor.service.bodies import CallerGone
from stockade.port import EgressEvent, Execution, Stream

_KINDS: Final = {Stream.STDOUT: FrameType.STDOUT, Stream.STDERR: FrameType.STDERR}
_HEADERS: Final = [
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class FramesAnswer:
    """STARTED comes before output whoever sends first; after END or PROBLEM nothing does.

    ``brisk``: each frame goes out as it comes. Otherwise what comes within a moment goes together:
    a short program is then one thing to read for its caller, and not four.
    """

    def __init__(
        self, send: Send, identity: str, stalled_seconds: float, *, brisk: bool = False
    ) -> None:
        self._send = send
        self._identity = identity
        self._stalled_seconds = stalled_seconds
        self._brisk = brisk
        self._began = False
        self._started = False
        self._turn = asyncio.Lock()
        self._held: list[bytes] = []
        """Frames in order that were not sent yet."""
        self._held_bytes = 0
        self._due: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def began(self) -> bool:
        """Whether it has said something: what goes wrong is a PROBLEM frame from now on."""
        return self._began or bool(self._held)

    async def started(self) -> None:
        """The program may have begun."""
        if not self._started:
            self._started = True
            payload = json.dumps({"id": self._identity}).encode()
            await self._gather(encode(FrameType.STARTED, payload))

    async def output(self, stream: Stream, data: bytes) -> None:
        """The execution's sink: the guest is held back until the reader has taken it."""
        await self.started()
        for frame in encode_output(_KINDS[stream], data):
            await self._gather(frame)

    async def egress(self, event: EgressEvent) -> None:
        """The sink for what becomes of connections."""
        await self.started()
        payload = EgressEventMessage.of(event).model_dump_json().encode()
        await self._write(encode(FrameType.EGRESS, payload))

    async def keep_alive(self) -> None:
        """It lives."""
        await self._write(encode(FrameType.KEEPALIVE))

    async def record(self, execution: Execution) -> None:
        """The record, and the end."""
        await self.started()
        held: bytes | None = None
        for piece in encode_record(execution):
            if held is not None:
                await self._write(held)
            held = piece
        await self._write(held or b"", more=False)

    async def problem(self, problem: Problem) -> None:
        """There is no record."""
        await self._write(encode(FrameType.PROBLEM, problem.body()), more=False)

    def close(self) -> None:
        """Nothing more is sent by itself."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._sending is not None:
            self._sending.cancel()

    async def _gather(self, frame: bytes) -> None:
        if self._brisk or self._held_bytes + len(frame) > GATHERED_BYTES:
            await self._write(frame)
            return
        self._hold(frame)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(GATHERED_SECONDS, self._send_held)

    def _hold(self, frame: bytes) -> None:
        self._held.append(frame)
        self._held_bytes += len(frame)

    def _send_held(self) -> None:
        self._due = None
        self._sending = asyncio.create_task(self._write_held())

    async def _write_held(self) -> None:
        # Who does not read is found out by whoever writes next.
        with contextlib.suppress(CallerGone):
            await self._write()

    async def _write(self, frame: bytes = b"", *, more: bool = True) -> None:
        # Before the lock is waited for: the order is that of the calls.
        self._hold(frame)
        try:
            async with asyncio.timeout(self._stalled_seconds), self._turn:
                held = b"".join(self._held)
                self._held.clear()
                self._held_bytes = 0
                if self._due is not None:
                    self._due.cancel()
                    self._due = None
                if not held and more:
                    return  # it went with another's
                if not self._began:
                    self._began = True
                    await self._send(
                        {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                    )
                await self._send({"type": "http.response.body", "body": held, "more_body": more})
        except TimeoutError:
            raise CallerGone(f"the reader took nothing for {self._stalled_seconds:g} s") from None
