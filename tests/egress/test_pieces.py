"""A destination's bytes, handed on as they came."""

import asyncio

import pytest

from stockade.egress.pieces import PieceReader


class Paused(asyncio.ReadTransport):
    """Remembers whether it is to read."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def reader(limit: int = 100_000) -> tuple[PieceReader, Paused]:
    made, transport = PieceReader(limit, asyncio.get_running_loop()), Paused()
    made.set_transport(transport)
    return made, transport


async def test_pieces_come_as_they_were_fed_and_no_larger_than_asked_for() -> None:
    it, _ = reader()
    large = bytes(range(256)) * 200
    it.feed_data(large)
    it.feed_data(b"x" * 20_000)
    it.feed_eof()
    assert await it.read(1 << 20) is large  # not copied
    assert not it.at_eof()
    assert await it.read(15_000) == b"x" * 15_000
    assert await it.read(15_000) == b"x" * 5_000
    assert it.at_eof()
    assert await it.read(1) == b""


async def test_what_the_feeder_changes_afterwards_is_not_seen() -> None:
    it, _ = reader()
    fed = bytearray(b"a" * 40_000)
    it.feed_data(fed)
    fed[:] = b"b" * 40_000
    assert await it.read(40_000) == b"a" * 40_000


async def test_many_small_pieces_are_few_large_ones() -> None:
    it, transport = reader()
    for _ in range(150_000):
        it.feed_data(b"y")
    assert len(it._pieces) < 20
    assert not transport.paused
    got = b""
    while len(got) < 150_000:
        got += await it.read(1 << 20)
    assert got == b"y" * 150_000


async def test_reading_pauses_while_much_waits() -> None:
    it, transport = reader(limit=50_000)
    for _ in range(3):
        it.feed_data(bytes(40_000))
    assert transport.paused
    await it.read(40_000)
    assert transport.paused
    await it.read(40_000)
    assert not transport.paused


async def waiting_for(it: PieceReader) -> "asyncio.Task[bytes]":
    waiting = asyncio.create_task(it.read(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_who_waits_is_woken_by_a_piece_by_the_end_and_by_a_failure() -> None:
    it, _ = reader()
    waiting = await waiting_for(it)
    it.feed_data(b"z")
    assert await waiting == b"z"
    waiting = await waiting_for(it)
    it.feed_eof()
    assert await waiting == b""
    it, _ = reader()
    waiting = await waiting_for(it)
    it.set_exception(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError):
        await waiting


async def test_a_reader_that_was_cancelled_loses_nothing() -> None:
    it, _ = reader()
    waiting = asyncio.create_task(it.read(10))
    await asyncio.sleep(0)
    waiting.cancel()
    it.feed_data(b"kept")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await it.read(10) == b"kept"
