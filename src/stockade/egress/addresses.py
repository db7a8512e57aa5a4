"""Which addresses are nobody's business of a guest, by our own table.

``ipaddress`` is used to read addresses and never to judge them: for it 64:ff9b::a9fe:a9fe and
2002:a9fe:a9fe::1 are global, and ::ffff:169.254.169.254 is not link-local.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

from stockade.egress.names import Address
from stockade.port.egress import Network


@dataclass(frozen=True, slots=True)
class Special:
    """A network that is refused unless a rule names it."""

    network: Network
    reason: str
    """The stable code."""
    what: str
    source: str
    """Who says so."""

    def __str__(self) -> str:
        return f"{self.what}, {self.network}"


def _special(network: str, reason: str, what: str, source: str) -> Special:
    return Special(ip_network(network), reason, what, source)


_METADATA: Final = "metadata-address"
_LOOPBACK: Final = "loopback-address"
_PRIVATE: Final = "private-address"
_LINK_LOCAL: Final = "link-local-address"
_MULTICAST: Final = "multicast-address"
_RESERVED: Final = "reserved-address"
_EMBEDDING: Final = "embedding-address"
OWN: Final = "own-address"

# The narrower one first: the first that fits is what a denial names.
SPECIAL: Final = (
    _special("169.254.169.254/32", _METADATA, "cloud metadata", "AWS, Google, Azure, Oracle"),
    _special("169.254.170.2/32", _METADATA, "container credentials", "AWS ECS"),
    _special("169.254.170.23/32", _METADATA, "pod credentials", "AWS EKS"),
    _special("100.100.100.200/32", _METADATA, "cloud metadata", "Alibaba"),
    _special("168.63.129.16/32", _METADATA, "cloud metadata", "Azure WireServer"),
    _special("192.0.0.192/32", _METADATA, "cloud metadata", "Oracle, older"),
    _special("fd00:ec2::/32", _METADATA, "cloud metadata", "AWS over IPv6"),
    _special("fd20:ce::254/128", _METADATA, "cloud metadata", "Google over IPv6"),
    _special("0.0.0.0/8", _LOOPBACK, "this host", "RFC 1122, 3.2.1.3"),
    _special("127.0.0.0/8", _LOOPBACK, "loopback", "RFC 1122, 3.2.1.3"),
    _special("::/128", _LOOPBACK, "this host", "RFC 4291"),
    _special("::1/128", _LOOPBACK, "loopback", "RFC 4291"),
    _special("10.0.0.0/8", _PRIVATE, "private use", "RFC 1918"),
    _special("172.16.0.0/12", _PRIVATE, "private use", "RFC 1918"),
    _special("192.168.0.0/16", _PRIVATE, "private use", "RFC 1918"),
    _special("100.64.0.0/10", _PRIVATE, "carrier-grade NAT", "RFC 6598"),
    _special("fc00::/7", _PRIVATE, "unique local", "RFC 4193"),
    _special("fec0::/10", _PRIVATE, "site local", "RFC 3879"),
    _special("169.254.0.0/16", _LINK_LOCAL, "link local", "RFC 3927"),
    _special("fe80::/10", _LINK_LOCAL, "link local", "RFC 4291"),
    _special("224.0.0.0/4", _MULTICAST, "multicast", "RFC 5771"),
    _special("ff00::/8", _MULTICAST, "multicast", "RFC 4291"),
    _special("192.0.0.0/24", _RESERVED, "protocol assignments", "RFC 6890"),
    _special("192.0.2.0/24", _RESERVED, "documentation", "RFC 5737"),
    _special("192.31.196.0/24", _RESERVED, "AS112", "RFC 7535"),
    _special("192.52.193.0/24", _RESERVED, "automatic multicast tunneling", "RFC 7450"),
    _special("192.88.99.0/24", _RESERVED, "6to4 relays", "RFC 7526"),
    _special("192.175.48.0/24", _RESERVED, "AS112", "RFC 7534"),
    _special("198.18.0.0/15", _RESERVED, "benchmarks", "RFC 2544"),
    _special("198.51.100.0/24", _RESERVED, "documentation", "RFC 5737"),
    _special("203.0.113.0/24", _RESERVED, "documentation", "RFC 5737"),
    _special("240.0.0.0/4", _RESERVED, "reserved, and broadcast", "RFC 1112, RFC 919"),
    _special("100::/64", _RESERVED, "discard only", "RFC 6666"),
    _special("100:0:0:1::/64", _RESERVED, "dummy prefix", "RFC 9780"),
    _special("2001:db8::/32", _RESERVED, "documentation", "RFC 3849"),
    _special("3fff::/20", _RESERVED, "documentation", "RFC 9637"),
    _special("5f00::/16", _RESERVED, "segment routing", "RFC 9602"),
    _special("::ffff:0:0/96", _EMBEDDING, "an IPv4 address inside IPv6", "RFC 4291"),
    _special("::ffff:0:0:0/96", _EMBEDDING, "an IPv4 address inside IPv6", "RFC 2765"),
    _special("::/96", _EMBEDDING, "an IPv4 address inside IPv6", "RFC 4291"),
    _special("64:ff9b:1::/48", _EMBEDDING, "local NAT64", "RFC 8215"),
    _special("2001::/32", _EMBEDDING, "Teredo", "RFC 4380"),
    _special("2002::/16", _EMBEDDING, "6to4", "RFC 3056, RFC 7526"),
    # Last: its parts above are told by name, and nothing within is for programs.
    _special("2001::/23", _RESERVED, "protocol assignments", "RFC 2928"),
)

# Global unicast is all that IANA gives out of IPv6; NAT64's own prefix is judged by what it holds.
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_UNASSIGNED: Final = Special(IPv6Network("::/0"), _RESERVED, "not assigned", "RFC 4291, IANA")

METADATA_NAMES: Final = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.com",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.oraclecloud.com",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
        "rancher-metadata",
    }
)
"""Names of metadata services: an answer is not believed to be public because it looks so."""

_IPV4_WITHIN: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("::/96"), 0),
    (_NAT64, 0),
    (IPv6Network("64:ff9b:1::/48"), 0),
    (IPv6Network("2002::/16"), 80),
    (IPv6Network("2001::/32"), 64),
)


def embedded(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address carries a connection to."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    found = [
        IPv4Address(number >> shift & 0xFFFF_FFFF)
        for network, shift in _IPV4_WITHIN
        if address in network and number > 1  # :: and ::1 are addresses of their own
    ]
    if address in _IPV4_WITHIN[-1][0]:  # Teredo's client is written inverted
        found.append(IPv4Address(~number & 0xFFFF_FFFF))
    if number >> 32 & 0xFFFF_FFFF in (0x5EFE, 0x0200_5EFE):  # ISATAP, RFC 5214
        found.append(IPv4Address(number & 0xFFFF_FFFF))
    return tuple(found)


class Judge:
    """Says of an address what is special about it."""

    def __init__(
        self,
        own: Callable[[], Collection[Address]] = lambda: (),
        public_networks: Iterable[Network] = (),
    ) -> None:
        """``own``: the host's addresses, as they are now.

        ``public_networks``: what the operator says is public here although the table says not.
        It never opens loopback, metadata and the host's own addresses.
        """
        self._own = own
        self._public = tuple(public_networks)

    def special(self, address: Address) -> Special | None:
        """What is special about it; ``None`` where any rule may lead there."""
        address = _plain(address)
        found = [self._special_itself(each) for each in (*embedded(address), address)]
        return next((each for each in found if each is not None), None)

    def named(self, address: Address, networks: Iterable[Network]) -> bool:
        """Whether the networks of a rule name it: it, and what it carries, if that is special."""
        address = _plain(address)
        wanted = [
            address,
            *(each for each in embedded(address) if self._special_itself(each) is not None),
        ]
        known = tuple(networks)
        return all(any(each in network for network in known) for each in wanted)

    def _special_itself(self, address: Address) -> Special | None:
        if any(address == _plain(each) for each in self._own()):
            alone = (
                IPv4Network(address) if isinstance(address, IPv4Address) else IPv6Network(address)
            )
            return Special(alone, OWN, "an address of the host itself", "the host")
        found = next((each for each in SPECIAL if address in each.network), None)
        if found is None and isinstance(address, IPv6Address):
            known = address in _GLOBAL_UNICAST or address in _NAT64
            found = None if known else _UNASSIGNED
        if found is None or found.reason in (_METADATA, _LOOPBACK):
            return found
        return None if any(address in network for network in self._public) else found


def _plain(address: Address) -> Address:
    """Without a zone, which takes no part in where it belongs."""
    return IPv6Address(int(address)) if isinstance(address, IPv6Address) else address
