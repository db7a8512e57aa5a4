"""The egress proxy of one execution: it decides on each of the guest's connections."""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from stockade.egress.addresses import Judge
from stockade.egress.answers import Refusal
from stockade.egress.broker_route import BrokerDown, BrokerRoute
from stockade.egress.client_hello import ACCESS_DENIED, BadHello, ClientHello, read_hello
from stockade.egress.connecting import connect, resolve
from stockade.egress.decision import (
    Allowed,
    Denied,
    as_option,
    match,
    missing_rule,
    narrow,
    schemes,
)
from stockade.egress.front import Front, Kind, Reply
from stockade.egress.http_head import OTHER_METHOD, OTHER_PATH, Headers, says_other
from stockade.egress.http_relay import HttpRelay, HttpRequest, Onward, Patience, Streams
from stockade.egress.names import Address, BadHost, Destination, read_host
from stockade.egress.recording import Recording
from stockade.egress.resolving import Resolver
from stockade.egress.room import NoRoom, Room
from stockade.egress.traffic import Source, Traffic, piece_of, tunnel
from stockade.port.egress import EgressEvent, EgressPolicy, EgressRule, EgressUse, Network, Scheme

_log = logging.getLogger(__name__)

_MOST_OUT: Final = 8192
_TLS_HANDSHAKE: Final = 22
_REQUEST: Final = re.compile(rb"[A-Z]{1,24}( |$)")
_LONGEST_METHOD: Final = 24


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the proxy waits for others."""

    front_seconds: float = 10.0
    """For what a guest wants of the proxy."""
    hello_seconds: float = 10.0
    """For what it says then, where that decides."""
    connect_seconds: float = 10.0
    relay: Patience = field(default_factory=Patience)


class EgressProxy:
    """Serves connections of one sandbox. Deny by default; what fails is denied too."""

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolver: Resolver,
        public_networks: Iterable[Network] = (),
        own_addresses: Callable[[], Collection[Address]] = lambda: (),
        broker: BrokerRoute | None = None,
        on_event: Callable[[EgressEvent], None] = lambda _event: None,
        waits: Waits | None = None,
        room: Room | None = None,
    ) -> None:
        """``on_event`` is called from the loop and must not block.

        ``room``: for connections to destinations, of all proxies of this process.
        """
        self.room = room or Room(_MOST_OUT, "connections of all sandboxes together")
        self._open: set[asyncio.Task[None]] = set()
        self._policy = policy
        self._resolver = resolver
        self._judge = Judge(own_addresses, public_networks)
        self._broker = broker
        self._waits = waits or Waits()
        self._traffic = Traffic.under(policy, self.piece)
        self._recording = Recording(self._traffic, on_event)
        self._opened = 0
        self._closed = False

    def __repr__(self) -> str:
        use = self.use
        return (
            f"<EgressProxy {len(self._open)} open, {use.connections} let through, "
            f"{use.denials} denied>"
        )

    @property
    def use(self) -> EgressUse:
        """What was done on the network so far."""
        return self._recording.use

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the guest, and close it. Raises nothing of its own."""
        if self._closed:
            writer.close()
            return
        if len(self._open) >= 2 * self._policy.connections:
            self._opened += 1
            # Not answered: who is to be told would have to be heard first.
            self._recording.refused(self._too_many())
            writer.close()
            return
        # A task of its own: aclose ends it, and not the caller's.
        serving = asyncio.create_task(self._guarded(reader, writer))
        self._open.add(serving)
        # Not below: a caller that is cancelled twice never comes to the end of this.
        serving.add_done_callback(self._open.discard)
        # Nor in the task: one that is cancelled before its first step has no end of its own.
        serving.add_done_callback(lambda _: writer.close())
        try:
            await asyncio.wait((serving,))
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait((serving,))

    async def aclose(self) -> None:
        """End all connections."""
        self._closed = True
        while self._open:
            for each in self._open:
                each.cancel()
            await asyncio.wait(set(self._open))
            await asyncio.sleep(0)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        try:
            await connection.serve()
        except OSError:
            pass  # a peer went away; the event of its end says so
        except Exception:  # noqa: BLE001 - never the guest's to see, and never the end of anything else
            _log.exception("an egress connection failed")

    # --- for one connection ------------------------------------------------------------------

    @property
    def policy(self) -> EgressPolicy:
        return self._policy

    @property
    def waits(self) -> Waits:
        return self._waits

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    @property
    def recording(self) -> Recording:
        return self._recording

    @property
    def judge(self) -> Judge:
        return self._judge

    @property
    def resolver(self) -> Resolver:
        return self._resolver

    @property
    def broker(self) -> BrokerRoute | None:
        return self._broker

    def piece(self) -> int:
        """How much of one connection is held here, now that there are so many."""
        return piece_of(len(self._open))

    def check_ceilings(self) -> None:
        """For one connection more. Raises :class:`Refusal`."""
        self._opened += 1
        self._check_total()
        if len(self._open) > self._policy.connections:
            raise self._too_many()

    def count_another(self) -> None:
        """A guest's connection leads to one destination more. Raises :class:`Refusal`."""
        self._opened += 1
        self._check_total()

    def _check_total(self) -> None:
        total = self._policy.total_connections
        if self._opened > total:
            raise Refusal(429, "total-connections", f"{total} connections were opened, the most")

    def _too_many(self) -> Refusal:
        at_once = self._policy.connections
        return Refusal(429, "connections", f"{at_once} connections are open, the most at once")

    def brokered(self, destination: Destination) -> tuple[Scheme, ...]:
        """What of the destination is the broker's business."""
        if self._broker is None:
            return ()
        name, port = destination.host.name, destination.port
        return tuple(
            scheme
            for scheme in (Scheme.HTTPS, Scheme.HTTP)
            if self._broker.handles(name, port, scheme)
        )

    async def to_broker(self, destination: Destination, *, tls: bool) -> Streams:
        """A connection to the broker. Raises :class:`Refusal`."""
        assert self._broker is not None
        try:
            async with asyncio.timeout(self._waits.connect_seconds):
                return await self._broker.connect(destination.host.name, destination.port, tls)
        except BrokerDown as error:
            status = 504 if error.late else 502
            raise Refusal(status, "broker-down", str(error), str(destination)) from None
        except TimeoutError:
            seconds = self._waits.connect_seconds
            detail = f"the broker did not answer within {seconds:g} s"
            raise Refusal(504, "broker-down", detail, str(destination)) from None
        except OSError as error:
            detail = f"the broker cannot be reached: {error.strerror or 'it did not answer'}"
            raise Refusal(502, "broker-down", detail, str(destination)) from None


class _Connection:
    """One of the guest's."""

    def __init__(
        self, proxy: EgressProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._source = Source(reader)
        self._writer = writer
        self._traffic = proxy.traffic.of_one_connection()
        self._front = Front()
        self._accepted = False
        self._destination = ""
        self._let_through = False
        self._upstreams: list[asyncio.StreamWriter] = []
        self._has_place = False
        self._give_place: Callable[[], None] = lambda: None

    async def serve(self) -> None:
        proxy = self._proxy
        reason = ""
        life = asyncio.timeout(proxy.policy.seconds)
        try:
            async with life:
                await self._decide()
        except Refusal as refusal:
            reason = refusal.reason
            self._record(refusal)
        except TimeoutError:
            # A peer's ETIMEDOUT is one, too.
            reason = "seconds" if life.expired() else "broken"
        except asyncio.CancelledError:
            reason = "closed"
            raise
        except OSError:
            reason = "broken"
            raise
        finally:
            for each in self._upstreams:
                each.close()
            self._give_place()
            if self._let_through:
                proxy.recording.ended(
                    self._destination,
                    self._traffic.sent.total,
                    self._traffic.received.total,
                    reason,
                )

    async def _decide(self) -> None:
        try:
            asked = await self._ask()
            if asked is None:
                return
            self._destination = str(asked)
            brokered = self._proxy.brokered(asked)
            if brokered:
                await self._through_broker(asked, brokered)
            else:
                await self._through_rules(asked)
        except Refusal as refusal:
            self._record(refusal)
            if not refusal.told:
                await self._tell(refusal)
            raise

    async def _ask(self) -> Destination | None:
        """What the guest wants; ``None``: it was served, or wants nothing."""
        proxy, front = self._proxy, self._front
        over: Refusal | None = None
        try:
            proxy.check_ceilings()
        except Refusal as refusal:
            over = refusal
        try:
            async with asyncio.timeout(proxy.waits.front_seconds):
                while (step := front.next()) is None or isinstance(step, Reply):
                    if isinstance(step, Reply):
                        self._writer.write(step.data)
                        await self._writer.drain()
                        continue
                    if not await self._source.more():
                        return None
                    front.receive(self._source.take())
        except TimeoutError:
            detail = f"the proxy was asked for nothing within {proxy.waits.front_seconds:g} s"
            raise Refusal(408, "slow", detail) from None
        self._source.put_back(front.rest)
        if over is not None:
            over.destination = str(step.destination or "")
            raise over
        if step.kind is Kind.HTTP:
            await self._relay(None, _ByRules(self))
            return None
        return step.destination

    # --- by the rules ------------------------------------------------------------------------

    async def _through_rules(self, destination: Destination) -> None:
        proxy = self._proxy
        verdict = match(proxy.policy, destination)
        if isinstance(verdict, Denied):
            raise Refusal.of(verdict, str(destination))
        if all(rule.looks_inside and schemes(rule) == {Scheme.HTTPS} for rule in verdict.rules):
            raise _needs_broker(verdict.rules[0], destination)
        rules, addresses = await resolve(verdict.rules, destination, proxy.resolver, proxy.judge)
        self.take_place()
        upstream = await connect(destination, addresses, proxy.waits.connect_seconds, proxy.piece())
        self._upstreams.append(upstream[1])
        await self._accept()
        spoken = frozenset().union(*(schemes(rule) for rule in rules))
        if Scheme.TCP in spoken:
            rule = next(rule for rule in rules if rule.scheme is Scheme.TCP)
            await self._tunnel(upstream, str(rule))
            return
        scheme = await self._spoken(destination)
        narrowed = narrow(rules, destination, scheme=scheme)
        if isinstance(narrowed, Denied):
            raise Refusal.of(narrowed, str(destination))
        if scheme is Scheme.HTTP:
            await self._relay(
                destination, _ByRules(self, _Judged(destination, rules, addresses, upstream))
            )
            return
        await self._check_hello(destination)
        plain = next((rule for rule in narrowed.rules if not rule.looks_inside), None)
        if plain is None:
            raise _needs_broker(narrowed.rules[0], destination)
        await self._tunnel(upstream, str(plain))

    async def _spoken(self, destination: Destination) -> Scheme:
        """What the guest speaks, by its first bytes."""
        source = self._source
        try:
            async with asyncio.timeout(self._proxy.waits.hello_seconds):
                while len(source.buffer) <= _LONGEST_METHOD:
                    start = bytes(source.buffer)
                    if start[:1] == bytes((_TLS_HANDSHAKE,)):
                        return Scheme.HTTPS
                    if start and not _REQUEST.match(start):
                        break
                    if b" " in start:
                        return Scheme.HTTP
                    if not await source.more():
                        break
                else:
                    if source.buffer[0] == _TLS_HANDSHAKE:
                        return Scheme.HTTPS
                    if _REQUEST.match(bytes(source.buffer[: _LONGEST_METHOD + 1])):
                        return Scheme.HTTP
        except TimeoutError:
            pass  # whoever waits for the other side to speak first speaks neither
        missing = missing_rule(destination, Scheme.TCP)
        hint = f"; {as_option(missing)} would allow anything" if missing else ""
        raise Refusal(
            403,
            "not-tls-or-http",
            f"what is spoken with {destination} is neither TLS nor HTTP{hint}",
            str(destination),
        )

    async def _check_hello(self, destination: Destination) -> None:
        """That TLS is meant for the host that was asked for."""
        hello = await self._hello(destination)
        host = destination.host
        where = str(destination)
        if hello.encrypted:
            raise Refusal(
                403,
                "encrypted-hello",
                f"the TLS hello to {where} has an encrypted part (ECH), "
                "in which another name may be",
                where,
            )
        if hello.server_name is None:
            if host.address is not None:
                return
            raise Refusal(403, "no-sni", f"the TLS hello to {where} names no server", where)
        try:
            named = read_host(hello.server_name)
        except BadHost as error:
            raise Refusal(403, "sni-mismatch", f"the server name: {error.detail}", where) from None
        if named != host:
            raise Refusal(
                403, "sni-mismatch", f"the TLS hello to {where} is for {named.name}", where
            )

    async def _hello(self, destination: Destination) -> ClientHello:
        source = self._source
        where = str(destination)
        try:
            async with asyncio.timeout(self._proxy.waits.hello_seconds):
                while True:
                    hello = read_hello(bytes(source.buffer))
                    if hello is not None:
                        return hello
                    if not await source.more():
                        raise BadHello("its ClientHello is cut short")
        except BadHello as error:
            raise Refusal(
                403, "bad-hello", f"what goes to {where} is no TLS: {error}", where
            ) from None
        except TimeoutError:
            raise Refusal(
                408, "slow", f"no complete TLS hello to {where} came in time", where
            ) from None

    # --- by the broker -----------------------------------------------------------------------

    async def _through_broker(self, destination: Destination, brokered: tuple[Scheme, ...]) -> None:
        tls = Scheme.HTTPS in brokered and (destination.port != 80 or len(brokered) == 1)
        self.take_place()
        # Before the guest is told yes: a broker that is down is a 502 then.
        upstream = await self._proxy.to_broker(destination, tls=tls)
        self._upstreams.append(upstream[1])
        await self._accept()
        scheme = await self._spoken(destination)
        if scheme not in brokered:
            raise Refusal(
                403,
                "scheme",
                f"the broker has {destination} for {' and '.join(brokered)} only",
                str(destination),
            )
        if (scheme is Scheme.HTTPS) is not tls:
            upstream[1].close()
            upstream = await self._proxy.to_broker(destination, tls=not tls)
            self._upstreams.append(upstream[1])
        if scheme is Scheme.HTTPS:
            await self._check_hello(destination)
            await self._tunnel(upstream, "by the broker")
        else:
            await self._relay(destination, _ByRules(self, _Judged(destination, None, (), upstream)))

    # --- both --------------------------------------------------------------------------------

    async def _accept(self) -> None:
        self._writer.write(self._front.accepted())
        await self._writer.drain()
        self._accepted = True

    async def _tunnel(self, upstream: Streams, detail: str) -> None:
        self.let_through(self._destination, detail)
        await tunnel(
            self._source,
            self._writer,
            *upstream,
            self._traffic,
            half_closed_seconds=self._proxy.waits.relay.half_closed_seconds,
        )

    async def _relay(self, fixed: Destination | None, hook: "_ByRules") -> None:
        relay = HttpRelay(
            self._source,
            self._writer,
            hook,
            self._traffic,
            fixed=fixed,
            patience=self._proxy.waits.relay,
            on_refusal=self._record,
        )
        await relay.run()

    def take_place(self) -> None:
        """Before it leads anywhere: no connection of it has more than one. Raises :class:`Refusal`."""
        if self._has_place:
            return
        try:
            self._give_place = self._proxy.room.take()
        except NoRoom as error:
            raise Refusal(503, "no-room", str(error), self._destination) from None
        self._has_place = True

    def let_through(self, destination: str, detail: str) -> None:
        """Count it, once it carries something."""
        self._destination = destination
        self._let_through = True
        self._proxy.recording.allowed(destination, detail)

    def _record(self, refusal: Refusal) -> None:
        """Before the guest is told: it may be gone, and its record made, in the next moment."""
        if not refusal.recorded:
            refusal.recorded = True
            refusal.destination = refusal.destination or self._destination
            self._proxy.recording.refused(refusal)

    async def _tell(self, refusal: Refusal) -> None:
        if not self._accepted:
            answer = self._front.refused(refusal)
        elif self._source.buffer[:1] == bytes((_TLS_HANDSHAKE,)):
            answer = ACCESS_DENIED
        elif _REQUEST.match(bytes(self._source.buffer[: _LONGEST_METHOD + 1])):
            answer = refusal.http()
        else:
            return
        self._writer.write(answer)
        await self._writer.drain()

    @property
    def proxy(self) -> EgressProxy:
        return self._proxy


def _needs_broker(rule: EgressRule, destination: Destination) -> Refusal:
    plain = missing_rule(destination)
    hint = f", and {as_option(plain)} would allow all of it" if plain else ""
    return Refusal(
        403,
        "needs-broker",
        f"{rule} looks into TLS, for which a broker is needed{hint}",
        str(destination),
    )


@dataclass(slots=True)
class _Judged:
    """A destination whose addresses were judged, and the connection that was made to it."""

    destination: Destination
    rules: tuple[EgressRule, ...] | None
    """That admit its addresses; ``None``: the broker judges."""
    addresses: tuple[Address, ...] = ()
    streams: Streams | None = None
    """Made already, and not used yet."""


class _ByRules:
    """The hook for plain HTTP: each request is judged, also the second on one connection."""

    def __init__(self, connection: _Connection, judged: _Judged | None = None) -> None:
        self._connection = connection
        self._judged = judged
        self._connections = 0

    async def request(self, request: HttpRequest) -> Onward:
        """See :class:`~stockade.egress.http_relay.RequestHook`."""
        judged = self._judged
        if judged is None or judged.destination != request.destination:
            judged = self._judged = await self._judge(request)
        if judged.rules is not None:
            request.headers = _checked(judged.rules, request)
        return Onward(request, lambda: self._connect(judged))

    async def _judge(self, request: HttpRequest) -> _Judged:
        proxy = self._connection.proxy
        destination = request.destination
        if Scheme.HTTP in proxy.brokered(destination):
            return _Judged(destination, None)
        # Before its name is resolved: a name that no rule has is not asked for.
        _checked(proxy.policy.rules, request)
        verdict = match(proxy.policy, destination, scheme=Scheme.HTTP)
        assert isinstance(verdict, Allowed)
        rules, addresses = await resolve(verdict.rules, destination, proxy.resolver, proxy.judge)
        return _Judged(destination, rules, addresses)

    async def _connect(self, judged: _Judged) -> Streams:
        proxy = self._connection.proxy
        destination = judged.destination
        streams, judged.streams = judged.streams, None
        if self._connections:
            # The guest's own is counted; where it leads next is one more.
            proxy.count_another()
        self._connections += 1
        self._connection.take_place()
        if streams is not None:
            pass  # made already
        elif judged.rules is None:
            streams = await proxy.to_broker(destination, tls=False)
        else:
            streams = await connect(
                destination, judged.addresses, proxy.waits.connect_seconds, proxy.piece()
            )
        by = "by the broker" if judged.rules is None else str(judged.rules[0])
        self._connection.let_through(str(destination), by)
        return streams


def _checked(rules: tuple[EgressRule, ...], request: HttpRequest) -> Headers:
    """The headers that may go on. Raises :class:`Refusal` for a request that no rule allows."""
    verdict = narrow(
        rules,
        request.destination,
        scheme=Scheme.HTTP,
        method=request.method,
        path=request.target,
    )
    if isinstance(verdict, Denied):
        raise Refusal.of(verdict, str(request.destination))
    gone: frozenset[bytes] = frozenset()
    if all(rule.methods for rule in verdict.rules):
        gone |= OTHER_METHOD
    if all(rule.path for rule in verdict.rules):
        gone |= OTHER_PATH
    return [each for each in request.headers if not says_other(each[0], gone)]
