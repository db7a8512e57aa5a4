"""What is gathered into one piece of an answer, in which order, and what never waits."""

import asyncio
from typing import Any

import pytest

from stockade.api.frames import GATHERED_BYTES, FrameDecoder, FrameType
from stockade.api.problems import Code, Problem
from stockade.executor.service.frames_answer import FramesAnswer
from stockade.port import Captured, Execution, Outcome, Stream

STARTED, STDOUT, RECORD, END = (
    FrameType.STARTED,
    FrameType.STDOUT,
    FrameType.RECORD,
    FrameType.END,
)


class Peer:
    """Who reads the answer."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.whole = False
        self.heads = 0
        self.came = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.heads += 1
            return
        assert not self.whole
        self.pieces.append(message["body"])
        self.whole = not message["more_body"]
        self.came.set()

    @property
    def kinds(self) -> list[list[FrameType]]:
        """Of the frames in each piece; none is cut."""
        return [[frame.type for frame in FrameDecoder().feed(piece)] for piece in self.pieces]

    @property
    def printed(self) -> bytes:
        frames = FrameDecoder().feed(b"".join(self.pieces))
        return b"".join(frame.payload for frame in frames if frame.type is STDOUT)


def ended(printed: bytes = b"") -> Execution:
    return Execution(Outcome.OK, "it ended", stdout=Captured(printed, b"", len(printed)))


async def test_a_short_program_is_one_piece() -> None:
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    await answer.started()
    await answer.output(Stream.STDOUT, b"1\n")
    assert peer.pieces == []
    await answer.record(ended())
    answer.close()
    assert peer.kinds == [[STARTED, STDOUT, RECORD, END]]
    assert (peer.heads, peer.whole) == (1, True)


async def test_what_nothing_follows_goes_out_by_itself() -> None:
    """A program that runs on is known to have started, and what it says is heard."""
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    await answer.started()
    async with asyncio.timeout(10):
        await peer.came.wait()
    assert peer.kinds == [[STARTED]]
    peer.came.clear()
    await answer.output(Stream.STDOUT, b"1\n")
    async with asyncio.timeout(10):
        await peer.came.wait()
    assert peer.kinds == [[STARTED], [STDOUT]]
    answer.close()


async def test_for_who_sends_input_apart_nothing_waits() -> None:
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60, brisk=True)
    await answer.started()
    await answer.output(Stream.STDOUT, b"echo")
    assert peer.kinds == [[STARTED], [STDOUT]]


async def test_what_waits_is_bounded() -> None:
    """More than that goes out at once, and waits for its reader: that holds the guest back."""
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    await answer.output(Stream.STDOUT, b"x" * GATHERED_BYTES)
    assert peer.kinds == [[STARTED, STDOUT]]
    peer.reads.clear()
    writing = asyncio.create_task(answer.output(Stream.STDOUT, b"x" * GATHERED_BYTES))
    await asyncio.sleep(0)
    assert not writing.done()
    peer.reads.set()
    await writing
    answer.close()


async def test_the_order_is_kept_while_a_reader_is_slow() -> None:
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    await answer.started()
    peer.reads.clear()
    parts = [bytes([65 + at]) * (GATHERED_BYTES + 1 if at % 2 else 3) for at in range(8)]
    writing = []
    for part in parts:
        writing.append(asyncio.create_task(answer.output(Stream.STDOUT, part)))
        await asyncio.sleep(0)
    peer.reads.set()
    await asyncio.gather(*writing)
    await answer.record(ended())
    answer.close()
    assert peer.printed == b"".join(parts)
    assert peer.kinds[-1][-2:] == [RECORD, END]
    assert peer.heads == 1


async def test_a_problem_comes_behind_what_waited() -> None:
    """Once STARTED was said, though nobody has read it yet, there is no refusal any more."""
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    before = answer.began
    await answer.started()
    assert (before, answer.began) == (False, True)
    await answer.problem(Problem.make(Code.SANDBOX_LOST, "it died"))
    assert peer.kinds == [[STARTED, FrameType.PROBLEM]]


@pytest.mark.parametrize("held", [True, False])
async def test_nothing_is_sent_after_the_end(held: bool) -> None:
    peer = Peer()
    answer = FramesAnswer(peer.send, "e1", 60)
    if held:
        await answer.started()
    answer.close()
    await asyncio.sleep(0.02)
    assert peer.pieces == []
