"""Opens sockets that see the network itself, or reach kernel code that few use."""

import errno
import socket

from stockade.cli.attack.programs.kit import refused, run

STREAM, DATAGRAM, RAW, RDM, SEQPACKET = 1, 2, 3, 4, 5
KINDS = (
    ("raw IPv4", 2, RAW, 1), ("raw IPv6", 10, RAW, 58), ("packet", 17, RAW, 3),
    ("packet datagram", 17, DATAGRAM, 3), ("netlink route", 16, RAW, 0),
    ("netlink netfilter", 16, RAW, 12), ("netlink uevent", 16, DATAGRAM, 15),
    ("vsock", 40, STREAM, 0), ("alg", 38, SEQPACKET, 0), ("bluetooth", 31, RAW, 1),
    ("tipc", 30, RDM, 0), ("rds", 21, SEQPACKET, 0), ("can", 29, RAW, 1), ("xdp", 44, RAW, 0),
    ("key", 15, RAW, 2), ("x25", 9, SEQPACKET, 0), ("ax25", 3, DATAGRAM, 0),
    ("appletalk", 5, DATAGRAM, 0), ("nfc", 39, RAW, 0), ("kcm", 41, DATAGRAM, 0),
    ("smc", 43, STREAM, 0), ("qipcrtr", 42, DATAGRAM, 0), ("sctp", 2, STREAM, 132),
    ("mptcp", 2, STREAM, 262), ("dccp", 2, 6, 33), ("icmp datagram", 2, DATAGRAM, 1),
)  # fmt: skip


def attack() -> None:
    for name, family, kind, protocol in KINDS:
        refused(
            name,
            lambda: socket.socket(family, kind, protocol).fileno(),
            also=(errno.ESOCKTNOSUPPORT,),
        )
    refused("netlink pair", lambda: socket.socketpair(16, RAW, 0))


if __name__ == "__main__":
    run(attack)
