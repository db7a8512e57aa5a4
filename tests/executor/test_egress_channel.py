"""A connection of a guest as asyncio's streams, over a wire whose other end a test plays."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from stockade.executor.egress.accepting import MOST_LINGERING, Accepting
from stockade.executor.egress.channel import READER_LIMIT, Shares
from stockade.executor.wire import WINDOW
from stockade.port import EgressEvent, EgressUse

from .guest import CLOSE, CREDIT, DATA, RESET, HandPlayedGuest

pytestmark = pytest.mark.plain_user

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Proxy:
    """Does with a connection what a test says."""

    use = EgressUse()

    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    async def aclose(self) -> None:
        """Nothing of its own is open."""


async def accepting(guest: HandPlayedGuest, serve: Serve, most: int = 1) -> tuple[Accepting, int]:
    """A sandbox that listens, and the first channel that waits for a connection."""

    def make(_on_event: Callable[[EgressEvent], None]) -> Proxy:
        return Proxy(serve)

    await guest.link.hello
    found = Accepting(guest.link, most, make)
    found.begin(lambda _: None)
    channel, asked = await guest.asked()
    assert b"accept" in asked
    return found, channel


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


async def test_bytes_go_both_ways_and_both_ends() -> None:
    with HandPlayedGuest() as guest:

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"said: " + await reader.read())

        found, channel = await accepting(guest, echo)
        guest.frame(DATA, channel, b"+")
        guest.frame(DATA, channel, b"hello")
        guest.frame(CLOSE, channel)
        assert await guest.next(DATA) == (DATA, channel, b"said: hello")
        assert (await guest.next(CLOSE))[1] == channel
        # It counts no more: another one is waited for.
        assert b"accept" in (await guest.asked())[1]
        found.close()


async def test_a_guest_that_reads_nothing_holds_the_writer_back() -> None:
    with HandPlayedGuest() as guest:
        written = 0
        held = asyncio.Event()

        async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            while True:
                writer.write(bytes(65_536))
                written += 65_536
                if writer.transport.get_write_buffer_size() > WINDOW // 2:
                    held.set()
                await writer.drain()

        found, channel = await accepting(guest, flood)
        guest.frame(DATA, channel, b"+")
        async with asyncio.timeout(10):
            await held.wait()
        stopped = written
        taken = 0
        while taken < WINDOW:  # all that there is credit for
            taken += len((await guest.next(DATA))[2])
        assert written == stopped
        assert written <= WINDOW + 5 * 65_536
        guest.frame(CREDIT, channel, struct.pack(">I", WINDOW))
        while taken < 2 * WINDOW:
            taken += len((await guest.next(DATA))[2])
        assert written > stopped
        found.close()


async def test_a_guest_that_sends_what_nobody_reads_gets_no_credit() -> None:
    with HandPlayedGuest() as guest:
        reading = asyncio.Event()
        total = 0

        async def late(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            nonlocal total
            await reading.wait()
            while data := await reader.read(65_536):
                total += len(data)

        found, channel = await accepting(guest, late)
        guest.frame(DATA, channel, b"+")
        await until(lambda: bool(found._open))
        (transport,) = found._open
        sent, credit = 0, WINDOW - 1
        async with asyncio.timeout(10):
            while transport.is_reading():
                if credit < 16_384:
                    credit += int.from_bytes((await guest.next(CREDIT))[2], "big")
                guest.frame(DATA, channel, bytes(16_384))
                sent, credit = sent + 16_384, credit - 16_384
                await asyncio.sleep(0.001)  # the host reads it, or its pipe were full
        assert sent <= 2 * READER_LIMIT + 2 * 65_536
        reading.set()
        async with asyncio.timeout(10):
            while credit < 16_384:
                credit += int.from_bytes((await guest.next(CREDIT))[2], "big")
        guest.frame(CLOSE, channel)
        await guest.next(CLOSE)
        assert total == sent
        found.close()


async def test_a_reset_ends_the_one_who_serves() -> None:
    with HandPlayedGuest() as guest:
        ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        async def read(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            except ConnectionResetError as error:
                ended.set_result(error)
                raise

        found, channel = await accepting(guest, read)
        guest.frame(DATA, channel, b"+")
        guest.frame(RESET, channel, b"the guest reset the connection")
        async with asyncio.timeout(10):
            assert "reset" in str(await ended)
        assert b"accept" in (await guest.asked())[1]
        found.close()


async def test_a_lost_wire_ends_all_of_them() -> None:
    with HandPlayedGuest() as guest:
        ended = asyncio.Event()

        async def read(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            finally:
                ended.set()

        found, channel = await accepting(guest, read)
        guest.frame(DATA, channel, b"+")
        await until(lambda: bool(found._open))
        guest.hang_up()
        async with asyncio.timeout(10):
            await ended.wait()
        found.close()


async def test_connections_that_the_guest_keeps_are_bounded() -> None:
    """All was said on our side: the guest never closes, and each is a place in the agent."""
    with HandPlayedGuest() as guest:

        async def done(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            pass

        found, channel = await accepting(guest, done)
        kept = []
        for _ in range(MOST_LINGERING + 3):
            guest.frame(DATA, channel, b"+")
            assert (await guest.next(CLOSE))[1] == channel
            kept.append(channel)
            channel, _ = await guest.asked()
        assert len(found._lingering) == MOST_LINGERING
        found.close()


async def test_nobody_is_served_while_no_program_runs() -> None:
    with HandPlayedGuest() as guest:
        served = 0

        async def count(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            nonlocal served
            served += 1

        found, channel = await accepting(guest, count)
        await found.finish()
        guest.frame(DATA, channel, b"+")
        assert (await guest.next(RESET))[1] == channel
        assert served == 0
        found.close()


def test_many_connections_share_what_a_guest_leaves_unread() -> None:
    shares = Shares()
    shares.connections = 1
    assert shares.each == WINDOW
    shares.connections = 200
    assert 65_536 <= shares.each < WINDOW
