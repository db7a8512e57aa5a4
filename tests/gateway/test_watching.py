"""Several readers of one execution's output."""

import asyncio
from collections.abc import Iterable

import pytest

from stockade.gateway.watching import Omitted, OutputLog, Piece, Reader, Told, TooSlow
from stockade.port import EgressEvent, Stream


async def _all(reader: Reader) -> tuple[int, bytes]:
    omitted, seen = 0, b""
    async for piece in reader.pieces():
        match piece:
            case Omitted(count):
                assert not seen
                omitted = count
            case Piece(data=data):
                seen += data
    return omitted, seen


def _lines(numbers: Iterable[int]) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


async def test_each_reader_sees_every_line_once() -> None:
    """Early, late, after the end, and one that resumes in the middle of a piece."""
    log = OutputLog()
    early = asyncio.create_task(_all(log.open()))
    for number in range(500):
        await log.add(Stream.STDOUT, b"%d\n" % number)
    late = asyncio.create_task(_all(log.open()))
    await asyncio.sleep(0)
    for number in range(500, 1000):
        await log.add(Stream.STDERR, b"%d\n" % number)
    resumed = asyncio.create_task(_all(log.open(after=5)))
    log.end()
    whole = _lines(range(1000))
    assert await early == (0, whole)
    assert await late == (0, whole)
    assert await resumed == (0, whole[5:])
    assert await _all(log.open()) == (0, whole)
    assert await _all(log.open(after=len(whole) + 100)) == (0, b"")


async def test_memory_is_bounded_and_what_is_missing_is_counted() -> None:
    """A late reader hears how much it does not see."""
    log = OutputLog(window=4096)
    for number in range(10_000):
        await log.add(Stream.STDOUT, b"%04d" % number)
    log.end()
    kept = [piece for piece in log._pieces if isinstance(piece, Piece)]
    assert sum(len(piece.data) + 128 for piece in kept) <= 4096
    omitted, seen = await _all(log.open())
    assert omitted + len(seen) == 40_000
    assert seen.endswith(b"9999")


async def test_a_slow_watcher_is_left_and_holds_nobody() -> None:
    """The execution goes on at once."""
    log = OutputLog(window=4096)
    reader = log.open()
    pieces = reader.pieces()
    await log.add(Stream.STDOUT, b"first")
    assert await anext(pieces) == Piece(Stream.STDOUT, b"first", 5)
    async with asyncio.timeout(1):
        for _ in range(100):
            await log.add(Stream.STDOUT, b"x" * 100)
    with pytest.raises(TooSlow):
        await anext(pieces)


async def test_the_caller_holds_the_guest_back_until_it_leaves() -> None:
    """It reads everything; a caller that went away holds nothing."""
    log = OutputLog(window=4096, hold=1024)
    reader = log.open(holding=True)
    writing = asyncio.create_task(log.add(Stream.STDOUT, b"x" * 65536 * 3))
    await asyncio.sleep(0.01)
    assert not writing.done()
    reading = asyncio.create_task(_all(reader))
    await writing
    log.end()
    assert await reading == (0, b"x" * 65536 * 3)
    gone = OutputLog(window=4096, hold=1024)
    reader = gone.open(holding=True)
    writing = asyncio.create_task(gone.add(Stream.STDOUT, b"x" * 8192))
    await asyncio.sleep(0)
    reader.close()
    await writing


async def test_a_pause_is_told_and_nothing_is_lost_behind_it() -> None:
    """Whoever sends the pieces on says that it still lives, and then what came."""
    log = OutputLog()
    pieces = log.open().pieces(0.01)
    assert await anext(pieces) is None
    assert await anext(pieces) is None
    await log.add(Stream.STDOUT, b"late")
    assert await anext(pieces) == Piece(Stream.STDOUT, b"late", 4)
    log.end()
    assert [piece async for piece in pieces] == []


async def test_connections_are_told_among_the_output_and_only_so_many() -> None:
    """A reader that goes on behind some output does not hear what came before it again."""
    log = OutputLog()
    event = EgressEvent("denied", "a.example:443")
    await log.add(Stream.STDOUT, b"one")
    await log.tell(event)
    await log.add(Stream.STDOUT, b"two")
    log.end()
    assert [piece async for piece in log.open().pieces()] == [
        Piece(Stream.STDOUT, b"one", 3),
        Told(event, 3),
        Piece(Stream.STDOUT, b"two", 6),
    ]
    assert [piece async for piece in log.open(after=3).pieces()] == [
        Piece(Stream.STDOUT, b"two", 6)
    ]
    flooded = OutputLog()
    for _ in range(5000):
        await flooded.tell(event)
    flooded.end()
    assert len([piece async for piece in flooded.open().pieces()]) == 1024
