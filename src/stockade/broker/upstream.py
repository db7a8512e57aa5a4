"""Calling a destination: its addresses are found, judged and pinned, and its certificate verified."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stockade.broker.http1 import Http1Upstream, UpstreamBroken
from stockade.broker.http2 import Http2Upstream
from stockade.broker.messages import Answer, Request
from stockade.egress.addresses import Judge
from stockade.egress.decision import Denied, admit
from stockade.egress.names import Address, Destination
from stockade.egress.resolving import ResolveFailed, Resolver
from stockade.egress.room import Room
from stockade.port import KIB
from stockade.port.egress import EgressRule, Scheme

_BUFFER: Final = 64 * KIB
_MOST_TRIED: Final = 4
"""Addresses of one name."""
_MOST_OPEN: Final = 16_384
_MOST_IDLE: Final = 2
"""Connections that wait for one request more of the guest's."""


class UpstreamFault(Exception):
    """The destination was not reached; ``status`` and ``code`` are for the guest."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Reach:
    """How destinations are reached. One for a whole broker."""

    resolver: Resolver
    judge: Judge
    extra_ca: Path | None = None
    """Certificates that are trusted beside the system's: for destinations of one's own."""
    connect_seconds: float = 10.0
    answer_seconds: float = 600.0
    room: Room = field(default_factory=lambda: Room(_MOST_OPEN, "connections to destinations"))
    _contexts: dict[bool, ssl.SSLContext] = field(default_factory=dict)

    def context(self, *, http2: bool) -> ssl.SSLContext:
        """For TLS that is verified in full."""
        found = self._contexts.get(http2)
        if found is None:
            found = ssl.create_default_context()
            found.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.extra_ca is not None:
                found.load_verify_locations(self.extra_ca)
            found.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
            self._contexts[http2] = found
        return found


class Upstream:
    """The connections to one destination that one guest's connection needs."""

    def __init__(self, reach: Reach, destination: Destination, scheme: Scheme) -> None:
        self._reach = reach
        self._destination = destination
        self._scheme = scheme
        self._addresses: Sequence[Address] = ()
        self._http1: list[Http1Upstream] = []
        self._http2: list[Http2Upstream] = []
        self._places: dict[Http1Upstream | Http2Upstream, Callable[[], None]] = {}
        self._opening = asyncio.Lock()
        default = 443 if scheme is Scheme.HTTPS else 80
        host = destination.host
        self._host = (str(host) if destination.port == default else str(destination)).encode()

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"{self._scheme}://{self._host.decode()}"

    def close(self) -> None:
        """End all of them."""
        for each in list(self._places):
            self._drop(each)

    async def ask(self, request: Request, rules: Sequence[EgressRule]) -> Answer:
        """Send it. ``rules``: those that let it, which say what addresses may be.

        Raises :class:`UpstreamFault`, and whatever reading the request's body does.
        """
        repeatable = request.body is None
        while True:
            connection = await self._free(request, rules)
            try:
                async with asyncio.timeout(self._reach.answer_seconds):
                    return await connection.ask(request, self._host)
            except UpstreamBroken as error:
                if error.unused and repeatable:
                    continue  # it was an old one, and nobody at its other end
                raise UpstreamFault(502, "upstream-broken", str(error)) from None
            except TimeoutError:
                raise UpstreamFault(
                    504,
                    "upstream-timeout",
                    f"{self._destination} did not answer within {self._reach.answer_seconds:g} s",
                ) from None

    async def _free(
        self, request: Request, rules: Sequence[EgressRule]
    ) -> Http1Upstream | Http2Upstream:
        # Each request's own rules: what let an earlier one is nothing to this one.
        await self._admit(rules)
        self._tidy()
        found1 = next((each for each in self._http1 if each.usable), None)
        if found1 is not None:
            found1.busy = True
            return found1
        async with self._opening:
            if not request.websocket:
                over = [each for each in self._http2 if not (each.usable or each.streams)]
                self._http2 = [each for each in self._http2 if each not in over]
                for each in over:
                    self._drop(each)
                found2 = next((each for each in self._http2 if each.usable), None)
                if found2 is not None:
                    return found2
            return await self._open(http2=not request.websocket)

    def _tidy(self) -> None:
        """Of connections that nobody uses, only few stay: a guest may have had many."""
        kept: list[Http1Upstream] = []
        idle = 0
        for each in self._http1:
            if each.busy:
                kept.append(each)
            elif each.usable and idle < _MOST_IDLE:
                idle += 1
                kept.append(each)
            else:
                self._drop(each)
        self._http1 = kept

    def _drop(self, connection: Http1Upstream | Http2Upstream) -> None:
        connection.abort()
        if (give_back := self._places.pop(connection, None)) is not None:
            give_back()

    async def _admit(self, rules: Sequence[EgressRule]) -> None:
        if not self._addresses:
            host = self._destination.host
            if host.address is not None:
                self._addresses = (host.address,)
            else:
                try:
                    self._addresses = await self._reach.resolver.resolve(host.name)
                except ResolveFailed as error:
                    status = 504 if error.late else 502
                    raise UpstreamFault(status, "resolve-failed", error.detail) from None
        verdict = admit(rules, self._destination, self._addresses, self._reach.judge)
        if isinstance(verdict, Denied):
            raise UpstreamFault(403, verdict.reason, verdict.detail)

    async def _open(self, *, http2: bool) -> Http1Upstream | Http2Upstream:
        give_back = self._reach.room.take()
        try:
            return await self._opened(http2=http2, give_back=give_back)
        except BaseException:
            give_back()
            raise

    async def _opened(
        self, *, http2: bool, give_back: Callable[[], None]
    ) -> Http1Upstream | Http2Upstream:
        reader, writer = await self._connect(http2=http2)
        tls = writer.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            connection2 = Http2Upstream(reader, writer, self._destination)
            try:
                await connection2.open()
            except BaseException:
                connection2.abort()
                raise
            self._http2.append(connection2)
            self._places[connection2] = give_back
            return connection2
        connection1 = Http1Upstream(reader, writer, self._destination, self._tidy)
        connection1.busy = True
        self._http1.append(connection1)
        self._places[connection1] = give_back
        return connection1

    async def _connect(self, *, http2: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = self._destination.host.name
        tls = self._reach.context(http2=http2) if self._scheme is Scheme.HTTPS else None
        reason: Exception | None = None
        for address in self._addresses[:_MOST_TRIED]:
            try:
                async with asyncio.timeout(self._reach.connect_seconds):
                    reader, writer = await asyncio.open_connection(
                        str(address),
                        self._destination.port,
                        ssl=tls,
                        server_hostname=name if tls is not None else None,
                        limit=_BUFFER,
                    )
            except ssl.SSLCertVerificationError as error:
                # Another address would not make it true.
                raise UpstreamFault(
                    502, "upstream-certificate", _certificate_fault(self._destination, error)
                ) from None
            except TimeoutError as error:
                reason = error
            except (OSError, ssl.SSLError) as error:
                reason = error
            else:
                tcp = writer.get_extra_info("socket")
                if tcp is not None:
                    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return reader, writer
        if isinstance(reason, TimeoutError):
            seconds = self._reach.connect_seconds
            raise UpstreamFault(
                504, "upstream-timeout", f"{self._destination} was not reached within {seconds:g} s"
            )
        if isinstance(reason, ssl.SSLError):
            raise UpstreamFault(
                502,
                "upstream-tls",
                f"{self._destination} does not speak TLS as it should: {reason.reason or 'no TLS'}",
            )
        why = getattr(reason, "strerror", None) or str(reason)
        raise UpstreamFault(
            502, "upstream-unreachable", f"{self._destination} cannot be reached: {why}"
        )


def _certificate_fault(destination: Destination, error: ssl.SSLCertVerificationError) -> str:
    """Which one it is, in the words of whoever has to renew it."""
    if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
        return f"the certificate of {destination} has expired"
    if error.verify_code == 9:  # X509_V_ERR_CERT_NOT_YET_VALID
        return f"the certificate of {destination} is not valid yet"
    if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
        return f"the certificate of {destination} is for another host"
    return f"the certificate of {destination} is not trusted: {error.verify_message}"
