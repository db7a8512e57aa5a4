"""What would happen to a request, step by step, without one being made."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stockade.egress.addresses import Judge
from stockade.egress.answers import Refusal
from stockade.egress.connecting import resolve
from stockade.egress.decision import Denied, Verdict, match, schemes
from stockade.egress.names import Address, BadHost, Destination, printable, read_authority
from stockade.egress.resolving import ResolveFailed, Resolver
from stockade.port.egress import EgressPolicy, Scheme

_URL: Final = re.compile(r"(?:(?P<scheme>[A-Za-z]+)://)?(?P<authority>[^/?#]*)(?P<rest>[^#]*)")
_PORTS: Final = {Scheme.HTTPS: 443, Scheme.HTTP: 80}


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a verdict comes about."""

    steps: tuple[str, ...]
    reason: str
    """The stable code of a denial; empty where it is allowed."""
    detail: str

    @property
    def allowed(self) -> bool:
        """Whether a connection would be made."""
        return not self.reason


async def explain(
    policy: EgressPolicy,
    url: str,
    *,
    method: str = "GET",
    resolver: Resolver | None = None,
    judge: Judge | None = None,
    brokered: bool = False,
) -> Explanation:
    """Go the proxy's way. Without a resolver the addresses are left out.

    ``brokered``: whether there is a broker, which ends TLS for rules that look into it.
    """
    steps: list[str] = []
    found = _URL.fullmatch(url)
    scheme = None
    if found is not None and found["scheme"] is not None:
        if found["scheme"].lower() not in list(Scheme):
            return _denied(
                steps, "scheme", f"{printable(found['scheme'])} is not https, http or tcp"
            )
        scheme = Scheme(found["scheme"].lower())
    if found is None or not found["authority"]:
        return _denied(steps, "bad-host", f"{printable(url)} has no host")
    try:
        destination = read_authority(found["authority"], _PORTS.get(scheme or Scheme.HTTPS))
    except BadHost as error:
        return _denied(steps, error.reason, error.detail)
    if scheme is None and destination.port == 80:
        scheme = Scheme.HTTP
    steps.append(f"{printable(url)} is {destination} by {scheme or 'TLS or HTTP'}")

    verdict = _judged(policy, destination, scheme, method, found["rest"] or "/")
    if isinstance(verdict, Denied):
        return _denied(steps, verdict.reason, verdict.detail)
    steps += [f"the rule {rule} allows it" for rule in verdict.rules]
    tls = scheme is Scheme.HTTPS or Scheme.HTTP not in schemes(verdict.rule)
    if scheme is not Scheme.TCP and tls and all(rule.looks_inside for rule in verdict.rules):
        if not brokered:
            return _denied(
                steps,
                "needs-broker",
                f"{verdict.rule} looks into TLS, for which a broker is needed",
            )
        steps.append("a broker ends TLS for it, and resolves the name itself")
    if resolver is None and destination.host.address is None:
        steps.append("its addresses were not looked up")
    else:
        try:
            rules, addresses = await resolve(
                verdict.rules, destination, resolver or _Nobody(), judge or Judge()
            )
        except Refusal as refusal:
            return _denied(steps, refusal.reason, refusal.detail)
        steps += _addresses(destination, addresses)
        verdict = type(verdict)(rules)
    return Explanation(tuple(steps), "", f"by the rule {verdict.rule}")


class _Nobody:
    """For an address, which needs no answer."""

    async def resolve(self, name: str) -> Sequence[Address]:
        raise ResolveFailed(f"{name} was not looked up")


def _judged(
    policy: EgressPolicy, destination: Destination, scheme: Scheme | None, method: str, rest: str
) -> Verdict:
    if scheme is Scheme.TCP or scheme is None:
        return match(policy, destination, scheme=scheme)
    target = rest if rest.startswith("/") else f"/{rest}"
    verdict = match(policy, destination, scheme=scheme, method=method, path=target)
    if isinstance(verdict, Denied):
        # A tcp rule allows whatever is spoken, and nobody looks at it.
        opaque = match(policy, destination, scheme=Scheme.TCP)
        return verdict if isinstance(opaque, Denied) else opaque
    return verdict


def _addresses(destination: Destination, addresses: Sequence[object]) -> list[str]:
    if destination.host.address is not None:
        return ["its address may be reached"]
    return [
        f"{destination.host} has the address {each}, which may be reached" for each in addresses
    ]


def _denied(steps: list[str], reason: str, detail: str) -> Explanation:
    return Explanation(tuple(steps), reason, detail)
