"""The agent's service ``accept``: connections to the sandbox's own loopback, carried unread."""

import hashlib
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from stockade.executor import open_local
from stockade.executor.namespace.tier import NamespaceTier
from stockade.port import Tier

from .agent_peer import STDERR, STDIN, STDOUT, Peer, Stream, open_peer

pytestmark = [pytest.mark.tier("namespace"), pytest.mark.asyncio(loop_scope="module")]

PORT = 3128
BIG = hashlib.shake_256(b"big").digest(5_000_000)
DIGEST = hashlib.sha256(BIG).hexdigest()
CONNECT = f"""
import socket, sys, hashlib
def connect():
    return socket.create_connection(("127.0.0.1", {PORT}), timeout=20)
def say(word):
    print(word, flush=True)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tier() -> AsyncIterator[NamespaceTier]:
    async with open_local(warm=False, tiers={Tier.NAMESPACE}) as environment:
        driver = environment._tiers.opened(Tier.NAMESPACE)
        assert isinstance(driver, NamespaceTier)
        yield driver


@pytest_asyncio.fixture(loop_scope="module")
async def peer(tier: NamespaceTier) -> AsyncIterator[Peer]:
    async with open_peer(tier) as peer:
        yield peer


def accept(peer: Peer, port: int = PORT) -> Stream:
    return peer.open("accept", struct.pack("!H", port))[0]


def come(peer: Peer, *streams: Stream) -> None:
    peer.until(lambda: all(stream.frames for stream in streams), "no connection")
    for stream in streams:
        assert stream.frames[0] == b"+"
        del stream.frames[0]


def until_said(peer: Peer, streams: list[Stream], words: bytes) -> None:
    peer.until(lambda: words in streams[STDOUT].content, f"{words!r}: {streams[STDERR].content!r}")


def end_well(peer: Peer, streams: list[Stream]) -> None:
    ended = peer.end_of(streams)
    assert (ended["code"], streams[STDERR].content) == (0, b"")


async def test_bytes_go_both_ways_and_each_direction_ends_alone(peer: Peer) -> None:
    carried = accept(peer)
    streams = peer.start(
        CONNECT
        + """
s = connect()
s.sendall(bytes.fromhex(sys.stdin.readline()))
s.shutdown(socket.SHUT_WR)
came = b""
while piece := s.recv(65536): came += piece
say(hashlib.sha256(came).hexdigest())
"""
    )
    peer.send(streams[STDIN], BIG.hex().encode() + b"\n")
    come(peer, carried)
    peer.until(lambda: carried.closed, "the guest's end")
    assert carried.content == BIG
    # It has ended its own direction, and takes ours all the same.
    peer.send(carried, BIG)
    peer.close(carried)
    until_said(peer, streams, DIGEST.encode())
    end_well(peer, streams)
    peer.check_usable()


async def test_our_end_leaves_the_guests_direction_open(peer: Peer) -> None:
    carried = accept(peer)
    streams = peer.start(
        CONNECT + "s = connect(); assert s.recv(9) == b''; s.sendall(b'late'); s.close(); input()"
    )
    come(peer, carried)
    peer.close(carried)
    peer.until(lambda: carried.closed)
    assert carried.content == b"late"
    # Only now: the end of a program ends its connections.
    peer.send(streams[STDIN], b"\n")
    end_well(peer, streams)
    peer.check_usable()


async def test_a_reset_is_one_on_the_other_side(peer: Peer) -> None:
    first, second = accept(peer), accept(peer)
    streams = peer.start(
        CONNECT
        + """
import struct
a = connect(); b = connect()
try: a.recv(1)
except ConnectionResetError: say("reset")
b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); b.close()
sys.stdin.read()
"""
    )
    come(peer, first, second)
    peer.reset(first)
    until_said(peer, streams, b"reset")
    peer.until(lambda: second.reset is not None)
    peer.close(streams[STDIN])
    end_well(peer, streams)
    peer.check_usable()


async def test_the_oldest_channel_is_served_first_and_the_kernel_holds_the_rest(peer: Peer) -> None:
    first, second = accept(peer), accept(peer)
    streams = peer.start(
        CONNECT
        + """
all = [connect() for _ in range(4)]
for number, each in enumerate(all): each.sendall(b"%d" % number)
say("connected")
sys.stdin.read()
"""
    )
    until_said(peer, streams, b"connected")
    come(peer, first, second)
    third, fourth = accept(peer), accept(peer)
    come(peer, third, fourth)
    peer.until(lambda: all(each.frames for each in (first, second, third, fourth)))
    assert [each.content for each in (first, second, third, fourth)] == [b"0", b"1", b"2", b"3"]
    peer.close(streams[STDIN])
    end_well(peer, streams)
    # With the program its connections ended.
    peer.until(lambda: all(each.over for each in (first, second, third, fourth)))
    peer.check_usable()


async def test_nobody_in_the_sandbox_can_take_the_port(peer: Peer) -> None:
    accept(peer)
    output = peer.run(
        """
import socket, errno
for host in ("127.0.0.1", "0.0.0.0"):
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,),
                    (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
        s = socket.socket()
        for option in options: s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind((host, 3128)); s.listen(); print(host, options, "taken")
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
print("refused")
"""
    )
    assert output == b"refused\n"


async def test_what_a_dead_program_asked_for_is_nobody_s(peer: Peer) -> None:
    # Connections that were never accepted do not reach the next program's proxy.
    waits = accept(peer)
    peer.close(waits)
    peer.until_over(waits)
    streams = peer.start(CONNECT + "s = [connect() for _ in range(5)]; s[0].sendall(b'old')")
    end_well(peer, streams)
    new = accept(peer)
    streams = peer.start(CONNECT + "s = connect(); s.sendall(b'new'); sys.stdin.read()")
    come(peer, new)
    peer.until(lambda: bool(new.frames))
    assert new.content == b"new"
    peer.close(streams[STDIN])
    end_well(peer, streams)


async def test_many_connections_of_which_none_is_read(peer: Peer) -> None:
    peer.take_at_once = False
    streams = peer.start(
        CONNECT
        + """
all = [connect() for _ in range(250)]
say("connected"); sys.stdin.read()
for each in all:
    left = 60_000
    while left: left -= len(each.recv(65536))
say("read"); sys.stdin.close()
"""
    )
    open_now = [accept(peer) for _ in range(8)]
    carried: list[Stream] = []
    while len(carried) < 250:
        peer.until(lambda: any(each.frames for each in open_now))
        for each in [each for each in open_now if each.frames]:
            come(peer, each)
            open_now.remove(each)
            carried.append(each)
            open_now.append(accept(peer))
    peer.take_at_once = True
    until_said(peer, streams, b"connected")
    for each in carried:
        peer.send(each, BIG[:60_000])
    peer.until(lambda: not peer.connection.has_outgoing)
    assert peer.list_folder() == {}  # it serves others all the while
    peer.close(streams[STDIN])
    until_said(peer, streams, b"read")
    end_well(peer, streams)
    for each in open_now:
        peer.close(each)
    peer.until_over(*open_now, *carried)
    for each in carried:
        peer.take(each)
    peer.check_usable()


@pytest.mark.parametrize(
    "arguments", [b"", b"\x0c", b"\x0c\x38\0", b"3128"], ids=["none", "short", "long", "text"]
)
async def test_a_port_that_is_none_is_refused(peer: Peer, arguments: bytes) -> None:
    (stream,) = peer.open("accept", arguments)
    peer.until_over(stream)
    assert stream.reset == "a port that is none"
    peer.check_usable()


async def test_another_port_than_the_first_is_refused(peer: Peer) -> None:
    waits = accept(peer)
    other = accept(peer, PORT + 1)
    peer.until_over(other)
    assert other.reset == "another port is listened at"
    peer.close(waits)
    peer.check_usable()


async def test_data_before_a_connection_is_refused(peer: Peer) -> None:
    waits = accept(peer)
    peer.send(waits, b"hello?")
    peer.until_over(waits)
    assert waits.reset == "DATA before there was a connection"
    peer.check_usable()


async def test_more_than_there_is_room_for_is_refused(peer: Peer) -> None:
    waits = [accept(peer) for _ in range(400)]
    peer.until(lambda: sum(each.reset is not None for each in waits) >= 16)
    for each in waits:
        if each.reset is None:
            peer.reset(each)
    peer.check_usable()


async def test_without_the_service_nobody_listens(peer: Peer) -> None:
    assert peer.run(CONNECT + "try: connect()\nexcept ConnectionRefusedError: say('no')") == b"no\n"
