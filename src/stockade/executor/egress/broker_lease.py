"""A sandbox's lease at the broker, as the executor's egress wants it."""

from pathlib import Path

from stockade.egress.broker_route import BrokerDown
from stockade.executor.egress.broker_link import (
    BrokerAddress,
    BrokeredSandbox,
    BrokerLink,
    BrokerRefused,
)
from stockade.port import (
    CredentialUse,
    DeniedDestination,
    InvalidRequest,
    SandboxRequest,
    Unavailable,
)


class Lease:
    """What the broker lends to one sandbox."""

    def __init__(self, sandbox: BrokeredSandbox) -> None:
        self.route = sandbox
        """The way to the destinations that the broker serves."""
        self.environment = sandbox.environment
        """Placeholders, for the sandbox's programs."""
        self.certificate = sandbox.certificate
        """Of the authority that they are to trust."""

    def __repr__(self) -> str:
        return f"<Lease of {self.route!r}>"

    async def uses(self) -> tuple[CredentialUse, ...]:
        """Which credentials were put in since the last call."""
        return await self.route.uses()

    @property
    def denied(self) -> tuple[DeniedDestination, ...]:
        """What the broker refused, of the time that the last ``uses`` was for."""
        return self.route.denied

    def close(self) -> None:
        """Give it back."""
        self.route.close()


class Leases:
    """Opens them, at one broker."""

    def __init__(self, address: BrokerAddress, token: str) -> None:
        self._link = BrokerLink(address, token)

    def __repr__(self) -> str:
        return f"<Leases of {self._link!r}>"

    async def __call__(self, wanted: SandboxRequest) -> Lease:
        """Raises :class:`Unavailable` where it cannot be reached, :class:`InvalidRequest` where it
        refuses."""
        execution, _, ticket = (wanted.ticket or "").rpartition(":")
        if wanted.egress.credentials and not ticket:
            raise InvalidRequest(
                "egress",
                "credentials are lent by a ticket, which a gateway gets: ask it, not the executor",
            )
        try:
            sandbox = await self._link.open(
                tenant=wanted.tenant,
                execution=execution or "unnamed",
                ticket=ticket or None,
                rules=wanted.egress.rules,
            )
        except BrokerDown as error:
            raise Unavailable(str(error)) from None
        except BrokerRefused as error:
            raise InvalidRequest("egress", f"the broker refuses: {error}") from None
        return Lease(sandbox)


def parse_address(text: str, ca: Path | None) -> BrokerAddress:
    """``unix:/run/stockade-broker/data.sock`` or ``tls:HOST:PORT``. Raises ``ValueError``."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest.startswith("/") and "\0" not in rest:
        return BrokerAddress(path=Path(rest))
    host, _, port = rest.rpartition(":")
    if kind == "tls" and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65_535:
        import ssl

        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return BrokerAddress(host=host.strip("[]"), port=int(port), tls=context)
    raise ValueError(f"{text!r} is neither unix:/PATH nor tls:HOST:PORT")
