"""Writes of one turn are one for the peer, and none is lost or out of order."""

import asyncio
from typing import Any

from stockade.serving.joined import JoinedWrites


class Recorded:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def write_eof(self) -> None:
        self.told.append("eof")

    def close(self) -> None:
        self.closing = True
        self.told.append("close")

    def abort(self) -> None:
        self.closing = True
        self.told.append("abort")

    def is_closing(self) -> bool:
        return self.closing


def joined() -> tuple[Recorded, JoinedWrites]:
    recorded: Any = Recorded()
    return recorded, JoinedWrites(recorded, asyncio.get_running_loop())


async def test_a_head_and_its_body_go_out_as_one() -> None:
    recorded, transport = joined()
    transport.write(b"head ")
    transport.write(b"body")
    assert recorded.told == []
    await asyncio.sleep(0)
    assert recorded.told == [b"head body"]
    transport.write(b"next")
    await asyncio.sleep(0)
    assert recorded.told == [b"head body", b"next"]


async def test_what_was_written_goes_out_before_the_end() -> None:
    recorded, transport = joined()
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert recorded.told == [b"last words", "close"]


async def test_a_direction_ends_behind_what_was_written() -> None:
    recorded, transport = joined()
    transport.write(b"a")
    transport.writelines([b"b", b"c"])
    transport.write_eof()
    await asyncio.sleep(0)
    assert recorded.told == [b"abc", "eof"]


async def test_who_writes_on_in_one_turn_is_not_held_for() -> None:
    """The transport counts what it has, and tells its writer to wait; what is held it cannot."""
    recorded, transport = joined()
    for _ in range(100):
        transport.write(bytes(10_000))
    assert sum(map(len, recorded.told)) > 900_000
    await asyncio.sleep(0)
    assert b"".join(each for each in recorded.told if isinstance(each, bytes)) == bytes(1_000_000)


async def test_what_was_cut_off_is_not_written_to() -> None:
    recorded, transport = joined()
    transport.write(b"never")
    transport.abort()
    assert transport.is_closing()
    await asyncio.sleep(0)
    assert recorded.told == ["abort"]
