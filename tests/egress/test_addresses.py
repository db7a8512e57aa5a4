"""Addresses are judged by our own table, whatever they are wrapped into."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.egress.addresses import SPECIAL, Judge


def wrapped(inner: str) -> list[str]:
    """An IPv4 address in each of its forms in IPv6."""
    number = int(IPv4Address(inner))
    high, low = number >> 16, number & 0xFFFF
    flipped = number ^ 0xFFFF_FFFF
    return [
        f"::ffff:{inner}",
        f"::{high:x}:{low:x}",
        f"::ffff:0:{high:x}:{low:x}",
        f"64:ff9b::{high:x}:{low:x}",
        f"64:ff9b:1::{high:x}:{low:x}",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:{high:x}:{low:x}::1",
        f"2001:0:808:808:0:0:{flipped >> 16:x}:{flipped & 0xFFFF:x}",
        f"2606:4700::5efe:{high:x}:{low:x}",
        f"2606:4700::200:5efe:{high:x}:{low:x}",
    ]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.169.254", "metadata-address"),
        ("169.254.170.2", "metadata-address"),
        ("169.254.170.23", "metadata-address"),
        ("100.100.100.200", "metadata-address"),
        ("168.63.129.16", "metadata-address"),
        ("192.0.0.192", "metadata-address"),
        ("fd00:ec2::254", "metadata-address"),
        ("fd20:ce::254", "metadata-address"),
        ("0.0.0.0", "loopback-address"),
        ("127.255.255.255", "loopback-address"),
        ("::", "loopback-address"),
        ("::1", "loopback-address"),
        ("10.255.255.255", "private-address"),
        ("172.31.255.255", "private-address"),
        ("192.168.0.1", "private-address"),
        ("100.64.0.1", "private-address"),
        ("100.127.255.255", "private-address"),
        ("fc00::1", "private-address"),
        ("fdff::1", "private-address"),
        ("fec0::1", "private-address"),
        ("169.254.0.1", "link-local-address"),
        ("fe80::1", "link-local-address"),
        ("fe80::1%eth0", "link-local-address"),
        ("224.0.0.1", "multicast-address"),
        ("ff02::1", "multicast-address"),
        ("192.0.2.1", "reserved-address"),
        ("198.18.0.1", "reserved-address"),
        ("198.51.100.1", "reserved-address"),
        ("203.0.113.1", "reserved-address"),
        ("192.88.99.1", "reserved-address"),
        ("240.0.0.1", "reserved-address"),
        ("255.255.255.255", "reserved-address"),
        ("2001:db8::1", "reserved-address"),
        ("100::1", "reserved-address"),
        ("3fff::1", "reserved-address"),
        ("4000::1", "reserved-address"),
        ("200::1", "reserved-address"),
        ("2002:808:808::1", "embedding-address"),
        ("::ffff:8.8.8.8", "embedding-address"),
    ],
)
def test_special(address: str, reason: str) -> None:
    found = Judge().special(ip_address(address))
    assert found is not None
    assert found.reason == reason


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.1", "11.0.0.1",
                "2606:4700::1111", "2a00::1", "64:ff9b::808:808", "169.253.1.1", "223.255.255.255"]
)  # fmt: skip
def test_public(address: str) -> None:
    assert Judge().special(ip_address(address)) is None


@pytest.mark.parametrize("inner", ["169.254.169.254", "127.0.0.1", "10.0.0.1", "100.64.0.1"])
def test_no_wrapping_makes_it_public(inner: str) -> None:
    plain = Judge().special(ip_address(inner))
    assert plain is not None
    for address in wrapped(inner):
        special = Judge().special(ip_address(address))
        assert special is not None, address
        assert special.reason == plain.reason, address


def test_a_rule_for_the_inner_network_names_no_wrapping() -> None:
    networks = (ip_network("10.0.0.0/8"),)
    assert Judge().named(ip_address("10.0.0.1"), networks)
    for address in wrapped("10.0.0.1"):
        assert not Judge().named(ip_address(address), networks), address
        assert not Judge().named(ip_address(address), (ip_network(f"{address}/128"),)), address


def test_the_hosts_own_addresses() -> None:
    own = Judge(lambda: (ip_address("8.8.8.8"), ip_address("2606:4700::1")))
    for address in ("8.8.8.8", "2606:4700::1", "64:ff9b::808:808"):
        found = own.special(ip_address(address))
        assert found is not None, address
        assert found.reason == "own-address"
    assert own.special(ip_address("8.8.4.4")) is None


def test_an_operators_network_opens_neither_loopback_nor_metadata_nor_the_host() -> None:
    everything = Judge(
        lambda: (ip_address("10.0.0.1"),), [ip_network("0.0.0.0/0"), ip_network("::/0")]
    )
    for address in ("10.0.0.2", "203.0.113.1", "fd00::1"):
        assert everything.special(ip_address(address)) is None, address
    for address in ("10.0.0.1", "127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254",
                    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"):  # fmt: skip
        assert everything.special(ip_address(address)) is not None, address


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_a_wrapped_address_is_never_more_public_than_itself(address: IPv4Address) -> None:
    judge = Judge()
    for each in wrapped(str(address)):
        if judge.special(address) is not None:
            assert judge.special(ip_address(each)) is not None


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_every_address_is_judged(address: IPv6Address) -> None:
    found = Judge().special(address)
    assert found is not None or str(address)[:1] in "236"


def test_each_row_says_who_says_so() -> None:
    assert all(each.source and each.what for each in SPECIAL)
