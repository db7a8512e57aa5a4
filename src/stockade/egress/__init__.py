"""What a sandbox's connections meet: the rules, and the relays that keep them. docs/egress.md."""

from stockade.egress.broker_route import BrokerDown, BrokerRoute
from stockade.egress.proxy import EgressProxy, Waits
from stockade.egress.resolving import ResolveFailed, Resolver, SystemResolver

__all__ = [
    "BrokerDown",
    "BrokerRoute",
    "EgressProxy",
    "ResolveFailed",
    "Resolver",
    "SystemResolver",
    "Waits",
]
