"""Connections to addresses that were judged, and to no other."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address

from stockade.egress.addresses import Judge
from stockade.egress.answers import Refusal
from stockade.egress.decision import Allowed, Denied, admit
from stockade.egress.names import Address, Destination
from stockade.egress.pieces import PieceReader
from stockade.egress.resolving import ResolveFailed, Resolver
from stockade.egress.traffic import LARGEST_PIECE
from stockade.port.egress import EgressRule

_MOST_TRIED = 8
_SMALL = 128 * 1024


async def resolve(
    rules: Sequence[EgressRule], destination: Destination, resolver: Resolver, judge: Judge
) -> tuple[tuple[EgressRule, ...], tuple[Address, ...]]:
    """The destination's addresses, and the rules that allow all of them.

    Raises :class:`Refusal`.
    """
    host = destination.host
    if host.address is not None:
        answers: tuple[Address, ...] = (host.address,)
    else:
        try:
            answers = tuple(await resolver.resolve(host.name))
        except ResolveFailed as error:
            raise Refusal(
                504 if error.late else 502, "unresolved", error.detail, str(destination)
            ) from None
    verdict = admit(rules, destination, answers, judge)
    if isinstance(verdict, Denied):
        raise Refusal.of(verdict, str(destination))
    assert isinstance(verdict, Allowed)
    return verdict.rules, answers


async def connect(
    destination: Destination,
    addresses: Sequence[Address],
    seconds: float,
    piece: int = LARGEST_PIECE,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers. Nothing is resolved. Raises :class:`Refusal`.

    ``piece``: about as much of what comes is kept before somebody reads it.
    """
    failed = "has no address"
    try:
        async with asyncio.timeout(seconds):
            for address in addresses[:_MOST_TRIED]:
                try:
                    # One that is silent shall not use up the time of the others.
                    async with asyncio.timeout(max(1.0, seconds / 2)):
                        return await _connect(address, destination.port, piece)
                except TimeoutError:
                    failed = f"at {address} did not answer"
                except OSError as error:
                    failed = f"at {address}: {error.strerror or error}"
    except TimeoutError:
        failed = "did not answer"
    late = failed.endswith("not answer")
    raise Refusal(
        504 if late else 502,
        "unreachable",
        f"{destination} cannot be reached: {failed}",
        str(destination),
    )


async def _connect(
    address: Address, port: int, piece: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    # The protocol is named: asyncio sets TCP_NODELAY on no other socket.
    upstream = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        upstream.setblocking(False)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if piece < _SMALL:
            # Before it connects, or the peer was promised more. A loop reads all that is there.
            upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, piece)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(upstream, (str(address), port))
        reader = PieceReader(piece, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, sock=upstream)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    except BaseException:
        upstream.close()
        raise
