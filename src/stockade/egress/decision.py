"""What a policy says to a destination. Pure: it is asked, and does nothing."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from stockade.egress.addresses import METADATA_NAMES, Judge, Special
from stockade.egress.names import Address, Destination, Host, printable
from stockade.port.egress import EgressPolicy, EgressRule, Network, Scheme
from stockade.port.errors import InvalidRequest

# What servers undo, or read in two ways, before they look at a path.
_AMBIGUOUS: Final = re.compile(
    r"%2e|%2f|%5c|%00|%25|;|\\|//|[^!-~]|/\.{1,2}(?:/|$)|%(?![0-9a-f]{2})", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """At least one rule allows it; all that do, in the policy's order."""

    rules: tuple[EgressRule, ...]

    @property
    def rule(self) -> EgressRule:
        """The one that is named where one is asked for."""
        return self.rules[0]


@dataclass(frozen=True, slots=True)
class Denied:
    """No rule allows it."""

    reason: str
    """The stable code."""
    detail: str
    """One sentence, and how to allow it."""
    missing: str | None = None
    """The rule that would allow it, as one writes it; ``None`` where none can."""


Verdict = Allowed | Denied


def match(
    policy: EgressPolicy,
    destination: Destination,
    *,
    scheme: Scheme | None = None,
    method: str | None = None,
    path: str | None = None,
) -> Verdict:
    """What the rules say, as far as it is known what is wanted. Addresses: :func:`admit`."""
    return narrow(policy.rules, destination, scheme=scheme, method=method, path=path)


def narrow(
    rules: Sequence[EgressRule],
    destination: Destination,
    *,
    scheme: Scheme | None = None,
    method: str | None = None,
    path: str | None = None,
) -> Verdict:
    """The rules that allow it."""
    there = tuple(rule for rule in rules if _leads_to(rule, destination))
    if not there:
        missing = missing_rule(destination, scheme)
        what = f"{method} {_url(destination, scheme, path)}" if method else str(destination)
        return _denied("no-rule", f"no rule allows {printable_line(what)}", missing)
    if scheme is not None:
        spoken = tuple(rule for rule in there if scheme in schemes(rule))
        if not spoken:
            wanted = "a connection that is neither TLS nor HTTP"
            wanted = {Scheme.HTTPS: "TLS", Scheme.HTTP: "HTTP without TLS"}.get(scheme, wanted)
            return _denied(
                "scheme",
                f"{there[0]} does not allow {wanted} to {destination}",
                missing_rule(destination, scheme),
            )
        there = spoken
    if method is None or path is None:
        return Allowed(there)
    return _look_inside(there, destination, scheme, method, path)


def _look_inside(
    rules: tuple[EgressRule, ...],
    destination: Destination,
    scheme: Scheme | None,
    method: str,
    path: str,
) -> Verdict:
    by_method = tuple(rule for rule in rules if not rule.methods or method in rule.methods)
    missing = missing_rule(destination, scheme, method, path)
    if not by_method:
        return _denied("method", f"{rules[0]} does not allow {printable(method, 40)}", missing)
    bare = path.partition("?")[0]
    if all(rule.path for rule in by_method):
        if _AMBIGUOUS.search(bare):
            return Denied(
                "ambiguous-path",
                f"{printable(bare, 120)!r} can be read as more than one path, and "
                f"{by_method[0]} decides by the path",
            )
        by_path = tuple(rule for rule in by_method if _is_within(bare, rule.path))
        if not by_path:
            return _denied(
                "path", f"{by_method[0]} does not allow {printable(bare, 120)!r}", missing
            )
        return Allowed(by_path)
    # One without a path allows it whatever the path is; those with one add nothing.
    return Allowed(tuple(rule for rule in by_method if not rule.path))


def admit(
    rules: Sequence[EgressRule], destination: Destination, answers: Sequence[Address], judge: Judge
) -> Verdict:
    """The rules that allow the destination at each of the addresses that it has.

    One answer that may not be is enough to refuse them all: who answers so means to be reached
    there.
    """
    admitting = tuple(rule for rule in rules if _admits(rule, destination.host, answers, judge))
    if admitting:
        return Allowed(admitting)
    host = destination.host
    if not answers:
        return Denied("no-address", f"{host} has no address")
    special = [(each, found) for each in answers if (found := judge.special(each)) is not None]
    if not special:
        missing = _rule_text(host.name, destination.port, None, ("0.0.0.0/0", "::/0"))
        return _denied("metadata-name", f"{host} is the name of a metadata service", missing)
    address, found = special[0]
    if host.address is not None:
        return _denied(
            found.reason,
            f"{host} is special ({found})",
            _rule_text(host.name, destination.port, None),
        )
    answered = f"{host} has the address {address} ({found})"
    if len(special) < len(answers):
        return Denied(
            "mixed-addresses",
            f"{answered} beside public ones; a name with both is refused whole",
        )
    inside = tuple(sorted({str(ip_network(each)) for each in answers}))
    if any(judge.special(each) and not _nameable(each, judge) for each in answers):
        return Denied(found.reason, answered)
    return _denied(
        found.reason, answered, _rule_text(host.name, destination.port, None, inside[:8])
    )


def _nameable(address: Address, judge: Judge) -> bool:
    return judge.named(address, (ip_network(address),))


def _admits(rule: EgressRule, host: Host, answers: Sequence[Address], judge: Judge) -> bool:
    if not answers:
        return False
    networks: tuple[Network, ...]
    if rule.network is not None:
        networks = (rule.network,)
    else:
        networks = tuple(ip_network(each) for each in rule.addresses)
    all_named = bool(networks) and all(judge.named(each, networks) for each in answers)
    if host.name in METADATA_NAMES:
        return all_named and rule.host == host.name
    return all_named or all(judge.special(each) is None for each in answers)


def schemes(rule: EgressRule) -> frozenset[Scheme]:
    """What may be spoken by the rule. One without a scheme means what its port is for."""
    if rule.scheme is not None:
        return frozenset({rule.scheme})
    if rule.port == 80:
        return frozenset({Scheme.HTTP})
    if rule.port == 443:
        return frozenset({Scheme.HTTPS})
    return frozenset({Scheme.HTTP, Scheme.HTTPS})


def missing_rule(
    destination: Destination,
    scheme: Scheme | None = None,
    method: str | None = None,
    path: str | None = None,
) -> str | None:
    """The rule that would allow it; a narrow one where more than the destination is known."""
    host, port = destination.host.name, destination.port
    usual = {80: Scheme.HTTP, 443: Scheme.HTTPS}.get(port, scheme)
    shown = scheme if scheme is Scheme.TCP or scheme is not usual else None
    bare = (path or "").partition("?")[0]
    if method is not None and not _AMBIGUOUS.search(bare):
        narrowed = _rule_text(host, port, scheme, (), (method,), bare)
        if narrowed is not None:
            return narrowed
    return _rule_text(host, port, shown)


def as_option(rule: str) -> str:
    """How a person would type it."""
    return f"--allow {shlex.quote(rule)}"


def printable_line(text: str, most: int = 300) -> str:
    """As :func:`~stockade.egress.names.printable`, with its spaces."""
    return " ".join(printable(word, most) for word in text.split(" ")[:64])[:most]


def _rule_text(
    host: str,
    port: int,
    scheme: Scheme | None,
    addresses: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    path: str = "",
) -> str | None:
    try:
        return str(EgressRule(host, port, scheme, methods, path, addresses))
    except InvalidRequest:
        return None


def _denied(reason: str, said: str, missing: str | None) -> Denied:
    if missing is None:
        return Denied(reason, said)
    return Denied(reason, f"{said}; {as_option(missing)} would allow it", missing)


def _url(destination: Destination, scheme: Scheme | None, path: str | None) -> str:
    prefix = f"{scheme}://" if scheme else ""
    return f"{prefix}{destination}{(path or '').partition('?')[0][:200]}"


def _leads_to(rule: EgressRule, destination: Destination) -> bool:
    host = destination.host
    if rule.port != destination.port:
        return False
    network = rule.network
    if host.address is not None or network is not None:
        return host.address is not None and network is not None and host.address in network
    if rule.host.startswith("*."):
        return host.name.endswith(rule.host[1:]) and len(host.name) > len(rule.host) - 1
    return host.name == rule.host


def _is_within(path: str, prefix: str) -> bool:
    """By whole segments: /v1 has /v1 and /v1/x in it, and /v1beta not."""
    if prefix.endswith("/"):
        return path.startswith(prefix)
    return path == prefix or path.startswith(f"{prefix}/")


__all__ = [
    "Allowed",
    "Denied",
    "Special",
    "Verdict",
    "admit",
    "as_option",
    "match",
    "missing_rule",
    "narrow",
    "schemes",
]
