"""The way to the broker, as the proxy sees it."""

import asyncio
from typing import Protocol

from stockade.port.egress import Scheme


class BrokerDown(Exception):
    """The broker cannot be reached, or does not take the connection; the message says why."""

    def __init__(self, detail: str, *, late: bool = False) -> None:
        super().__init__(detail)
        self.late = late
        """Whether it is there, as far as is known, and does not answer in time."""


class BrokerRoute(Protocol):
    """Hands connections to a broker, for destinations that are its business."""

    def handles(self, host: str, port: int, scheme: Scheme) -> bool:
        """Whether connections to there are the broker's. It judges them then, and no rule does."""
        ...

    async def connect(
        self, host: str, port: int, tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream that takes what the guest sends: TLS from its first byte, or HTTP/1.1.

        Raises :class:`BrokerDown`.
        """
        ...
