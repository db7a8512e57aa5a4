"""The addresses of the host itself, which no guest is to reach by a name that leads there."""

import ipaddress
import time
from typing import Final

import ifaddr

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_FRESH_SECONDS: Final = 5.0


class OwnAddresses:
    """Asked for before each connection; the kernel is asked every few seconds."""

    def __init__(self) -> None:
        self._known: frozenset[Address] = frozenset()
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<OwnAddresses {len(self._known)} known>"

    def __call__(self) -> frozenset[Address]:
        """All of them, of every interface that there is now."""
        now = time.monotonic()
        if now >= self._until:
            self._known = _addresses()
            self._until = now + _FRESH_SECONDS
        return self._known


def _addresses() -> frozenset[Address]:
    # An IPv6 address comes with its flow and its scope.
    texts = (
        found.ip if isinstance(found.ip, str) else found.ip[0]
        for adapter in ifaddr.get_adapters()
        for found in adapter.ips
    )
    return frozenset(ipaddress.ip_address(text.partition("%")[0]) for text in texts)
