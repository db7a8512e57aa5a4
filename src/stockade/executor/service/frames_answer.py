"""The answer to an execution: frames, as they come, at the reader's pace."""

import asyncio
import json
from typing import Final

from starlette.types import Send

from stockade.api.frames import MEDIA_TYPE, FrameType, encode, encode_output, encode_record
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
    """STARTED comes before output whoever sends first; after END or PROBLEM nothing does."""

    def __init__(self, send: Send, identity: str, stalled_seconds: float) -> None:
        self._send = send
        self._identity = identity
        self._stalled_seconds = stalled_seconds
        self._began = False
        self._started = False
        self._turn = asyncio.Lock()

    @property
    def began(self) -> bool:
        """Whether a status was sent: what goes wrong is a PROBLEM frame from now on."""
        return self._began

    async def started(self) -> None:
        """The program may have begun."""
        if not self._started:
            self._started = True
            payload = json.dumps({"id": self._identity}).encode()
            await self._write(encode(FrameType.STARTED, payload))

    async def output(self, stream: Stream, data: bytes) -> None:
        """The execution's sink: the guest is held back until the reader has taken it."""
        await self.started()
        for frame in encode_output(_KINDS[stream], data):
            await self._write(frame)

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

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._stalled_seconds), self._turn:
                if not self._began:
                    self._began = True
                    await self._send(
                        {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                    )
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise CallerGone(f"the reader took nothing for {self._stalled_seconds:g} s") from None
