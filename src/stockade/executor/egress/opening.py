"""What an executor needs for egress, and how a sandbox comes to have it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from stockade.executor.descriptors import make_room_beside
from stockade.executor.egress.accepting import Accepting, Proxy
from stockade.executor.egress.trust import (
    system_bundle,
    trust_files,
    trust_variables,
    with_trust,
)
from stockade.executor.egress.variables import proxy_variables
from stockade.executor.link import Link
from stockade.port import (
    CredentialUse,
    DeniedDestination,
    EgressEvent,
    EgressPolicy,
    EgressUse,
    InvalidRequest,
    SandboxRequest,
)
from stockade.port.egress import MAX_DENIED, Network, network_of

if TYPE_CHECKING:
    from stockade.egress.broker_route import BrokerRoute
    from stockade.egress.resolving import SystemResolver
    from stockade.egress.room import Room
    from stockade.executor.egress.own_addresses import OwnAddresses

_MOST_OUT: Final = 8192
"""Connections to destinations, of all sandboxes of an executor together."""
PUBLIC_NETWORKS_VARIABLE = "STOCKADE_EGRESS_PUBLIC_NETWORKS"


class BrokerLease(Protocol):
    """What a broker gives one sandbox. When it ends, the sandbox has no credentials any more."""

    @property
    def route(self) -> "BrokerRoute":
        """The way to the destinations that the broker serves."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Placeholders, for the sandbox's programs."""
        ...

    @property
    def certificate(self) -> str:
        """PEM, of the authority that the programs are to trust beside the usual ones."""
        ...

    async def uses(self) -> Sequence[CredentialUse]:
        """Which credentials were put in since the last call."""
        ...

    @property
    def denied(self) -> Sequence[DeniedDestination]:
        """What the broker refused, of the time that the last ``uses`` was for."""
        ...

    def close(self) -> None:
        """Give it back, at once: whoever does that may be the last thing that is done here."""
        ...


OpenLease = Callable[[SandboxRequest], Awaitable[BrokerLease]]
"""Raises :class:`~stockade.port.Unavailable` where the broker cannot be reached."""


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """What the operator of an executor says about egress."""

    public_networks: tuple[Network, ...] = ()
    """To be treated as public, although they are not: of an operator's own services, say."""
    open_lease: OpenLease | None = None
    """None: there is no broker, and a policy that needs one is refused."""


def parse_networks(field: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Raises :class:`InvalidRequest` for what is no network."""
    if isinstance(texts, str):
        raise InvalidRequest(field, f"{texts!r} is one text: put it into a tuple")
    found = []
    for text in texts:
        network = network_of(str(text))
        if network is None:
            raise InvalidRequest(field, f"{text!r} is not a network such as 10.1.0.0/16")
        found.append(network)
    return tuple(found)


class Egress:
    """Of one executor: what all its sandboxes have in common."""

    def __init__(self, settings: EgressSettings) -> None:
        self._settings = settings
        self._own_addresses: OwnAddresses | None = None
        self._resolver: SystemResolver | None = None
        self._room: Room | None = None

    def __repr__(self) -> str:
        return f"<Egress {self._settings!r}>"

    def check(self, policy: EgressPolicy) -> None:
        """Raises :class:`InvalidRequest` for what this executor cannot keep."""
        if policy.needs_broker and self._settings.open_lease is None:
            rules = [str(rule) for rule in policy.rules if rule.needs_broker]
            what = (
                f"the credentials {', '.join(policy.credentials)} need"
                if policy.credentials
                else f"the rule {rules[0]!r} asks for a method or a path, which over TLS needs"
            )
            raise InvalidRequest(
                "egress",
                f"{what} a broker, and this executor has none: configure one, or leave "
                f"{'them' if policy.credentials else 'method and path'} out",
            )

    async def prepare(self, wanted: SandboxRequest) -> "SandboxEgress | None":
        """Egress for one sandbox to come; none where its policy has none.

        Raises :class:`InvalidRequest`, and what a broker that is out of reach makes of it.
        """
        policy = wanted.egress
        self.check(policy)
        if not policy.listens:
            return None
        open_lease = self._settings.open_lease
        lease = await open_lease(wanted) if policy.needs_broker and open_lease else None
        return SandboxEgress(policy, self._maker(policy, lease), lease)

    def _maker(
        self, policy: EgressPolicy, lease: BrokerLease | None
    ) -> Callable[[Callable[[EgressEvent], None]], Proxy]:
        # Who has no egress does not wait for what it takes.
        from stockade.egress.proxy import EgressProxy
        from stockade.egress.resolving import SystemResolver
        from stockade.egress.room import Room
        from stockade.executor.egress.own_addresses import OwnAddresses

        own = self._own_addresses = self._own_addresses or OwnAddresses()
        resolver = self._resolver = self._resolver or SystemResolver()
        if self._room is None:
            # Descriptors that guests decide on: without a bound, none were left for sandboxes.
            self._room = Room(make_room_beside(_MOST_OUT), "connections of all sandboxes together")
        room = self._room

        def make(on_event: Callable[[EgressEvent], None]) -> Proxy:
            return EgressProxy(
                policy,
                resolver=resolver,
                public_networks=self._settings.public_networks,
                own_addresses=own,
                broker=None if lease is None else lease.route,
                on_event=on_event,
                room=room,
            )

        return make

    def close(self) -> None:
        """No sandbox is left. What it waits for of the resolver, nobody waits for any more."""
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None


class SandboxEgress:
    """Of one sandbox, from before it is taken until it is destroyed."""

    def __init__(
        self,
        policy: EgressPolicy,
        make_proxy: Callable[[Callable[[EgressEvent], None]], Proxy],
        lease: BrokerLease | None,
    ) -> None:
        self._policy = policy
        self._make_proxy = make_proxy
        self._lease = lease
        self._files: Mapping[str, bytes] | None = None
        self.accepting: Accepting | None = None

    def __repr__(self) -> str:
        return f"<SandboxEgress {self.accepting!r}>"

    def attach(self, link: Link) -> None:
        """Listen in the sandbox, before there is a program in it."""
        link.widen()
        self.accepting = Accepting(link, self._policy.connections, self._make_proxy)

    @property
    def environment(self) -> dict[str, str]:
        """For every program; what a request asks for comes before it."""
        lease = {} if self._lease is None else dict(self._lease.environment)
        return with_trust({**proxy_variables(self._policy), **lease}, trust_variables())

    @property
    def files(self) -> Mapping[str, bytes]:
        """For ``/tmp``, before each program: an earlier one may have changed them."""
        if self._files is None:
            certificate = None if self._lease is None else self._lease.certificate
            self._files = trust_files(certificate, system_bundle())
        return self._files

    def begin(self, on_event: Callable[[EgressEvent], None]) -> None:
        """A program is about to start."""
        if self.accepting is not None:
            self.accepting.begin(on_event)

    def cut(self) -> None:
        """End every connection now."""
        if self.accepting is not None:
            self.accepting.cut()

    async def finish(self) -> EgressUse:
        """The program has ended: so has every connection, and this is what they came to."""
        use = EgressUse() if self.accepting is None else await self.accepting.finish()
        if self._lease is None:
            return use
        credentials = tuple(await self._lease.uses())
        # What the broker refused, of a method or a path within TLS.
        denied = (*use.denied, *self._lease.denied)
        more = sum(each.count for each in denied[MAX_DENIED:])
        return replace(
            use,
            credentials=credentials,
            denied=denied[:MAX_DENIED],
            denied_others=use.denied_others + more,
        )

    def close(self) -> None:
        """Nobody listens any more; what was lent goes back."""
        if self.accepting is not None:
            self.accepting.close()
        if self._lease is not None:
            self._lease.close()
