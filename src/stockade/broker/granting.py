"""Whether a sandbox's request may go out, and with which of its credentials."""

from collections.abc import Iterable
from dataclasses import dataclass

from stockade.api.credentials import Way, WayKind
from stockade.broker.store import Opened
from stockade.egress.decision import Denied, narrow
from stockade.egress.names import Destination
from stockade.port.egress import EgressRule, Scheme


@dataclass(frozen=True, slots=True)
class Granted:
    """A credential, and the way it goes into a request."""

    credential: str
    secret: str
    way: Way

    def __repr__(self) -> str:
        return f"<Granted {self.credential} by {self.way.kind}>"


@dataclass(frozen=True, slots=True)
class Permitted:
    """It may go, with these."""

    rules: tuple[EgressRule, ...]
    """That let it."""
    granted: tuple[Granted, ...]


class Access:
    """What one sandbox may do by way of the broker."""

    def __init__(self, rules: Iterable[EgressRule], credentials: Iterable[Opened]) -> None:
        self._rules = tuple(rules)
        self._grants: list[tuple[EgressRule, Way, Opened]] = [
            (grant.egress_rule, grant.way, opened)
            for opened in credentials
            for grant in opened.grants
        ]

    @property
    def rules(self) -> tuple[EgressRule, ...]:
        """Of the policy and of all grants."""
        return (*self._rules, *(rule for rule, _, _ in self._grants))

    def destinations(self) -> list[tuple[str, int]]:
        """What is to be led here: hosts of grants, and of rules that look into TLS."""
        found = [(rule.host, rule.port) for rule, _, _ in self._grants]
        found += [(rule.host, rule.port) for rule in self._rules if rule.needs_broker]
        return list(dict.fromkeys(found))

    def revoke(self, credential: str) -> None:
        """From now on it is not used, and opens no destination."""
        self._grants = [each for each in self._grants if each[2].name != credential]

    def decide(
        self, destination: Destination, scheme: Scheme, method: str, path: str
    ) -> Permitted | Denied:
        """For one request: nothing of one before it counts."""
        verdict = narrow(self.rules, destination, scheme=scheme, method=method, path=path)
        if isinstance(verdict, Denied):
            return verdict
        fitting = [
            (rule, way, opened)
            for rule, way, opened in self._grants
            if not isinstance(
                narrow((rule,), destination, scheme=scheme, method=method, path=path), Denied
            )
        ]
        # The one for the longest path counts where two would go to the same place of a request.
        fitting.sort(key=lambda each: len(each[0].path), reverse=True)
        granted: dict[str, Granted] = {}
        for _, way, opened in fitting:
            granted.setdefault(_place(way, opened.name), Granted(opened.name, opened.secret, way))
        return Permitted(verdict.rules, tuple(granted.values()))


def _place(way: Way, credential: str) -> str:
    match way.kind:
        case WayKind.HEADER:
            return f"header {(way.name or '').lower()}"
        case WayKind.QUERY:
            return f"query {way.name}"
        case WayKind.PLACEHOLDER:
            return f"placeholder {credential}"
    return "header authorization"
