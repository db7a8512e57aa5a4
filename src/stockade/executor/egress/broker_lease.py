"""A sandbox's lease at the broker, as the executor's egress wants it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stockade.egress.broker_route import BrokerDown
from stockade.executor.egress.broker_link import (
    BrokerAddress,
    BrokeredSandbox,
    BrokerLink,
    BrokerRefused,
)
from stockade.executor.egress.trust import system_bundle, trust_files, trust_variables
from stockade.port import CredentialUse, InvalidRequest, SandboxRequest, Unavailable

_FOLDER: Final = ".stockade"
_PLACE: Final = f"/workspace/{_FOLDER}"


class Lease:
    """What the broker lends to one sandbox."""

    def __init__(self, sandbox: BrokeredSandbox, files: Mapping[str, bytes]) -> None:
        self.route = sandbox
        """The way to the destinations that the broker serves."""
        self.environment = {**trust_variables(_PLACE), **sandbox.environment}
        """For the sandbox's programs: where the certificates are, and placeholders."""
        self.files = files
        """For the workspace, by path."""

    def __repr__(self) -> str:
        return f"<Lease of {self.route!r}>"

    async def uses(self) -> tuple[CredentialUse, ...]:
        """Which credentials were put in since the last call."""
        return await self.route.uses()

    async def aclose(self) -> None:
        """Give it back."""
        await self.route.aclose()


class Leases:
    """Opens them, at one broker."""

    def __init__(self, address: BrokerAddress, token: str) -> None:
        self._link = BrokerLink(address, token)
        self._bundle = system_bundle()

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
        try:
            # Of all that Java trusts a store of its own is made: that takes a while.
            files = await asyncio.to_thread(
                trust_files, sandbox.certificate, self._bundle, folder=_FOLDER
            )
        except BaseException:
            await sandbox.aclose()
            raise
        return Lease(sandbox, files)


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
