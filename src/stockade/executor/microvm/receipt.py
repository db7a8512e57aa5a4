"""Comparing what the agent proves in its machine with what the tier promises.

Its kernel is a guest's, so all of this is a claim of the machine's. It finds a template that was
made wrongly; what keeps the guest in is the machine monitor and its jail.
"""

import os
from collections.abc import Mapping
from typing import Final

from stockade.executor.receipt import (
    CAPABILITIES,
    GUEST_ID,
    NO_CAPABILITY,
    Expectations,
    Receipt,
)

_AGENT_ID: Final = "1001"
# Mount point to file system and a flag.
_MOUNTS: Final = {
    "/": (None, "ro"),
    "/workspace": ("tmpfs", "rw"),
    "/tmp": ("tmpfs", "rw"),  # noqa: S108 - inside
    "/proc": ("proc", None),
}
# The kernel's own file systems.
_ALSO_MOUNTED: Final = frozenset({"tmpfs", "devpts", "devtmpfs"})


def faults(receipt: Mapping[str, object], cpus: int | None) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything."""
    facts = Receipt.read(receipt)
    words = facts.words
    expectations = Expectations()
    expect = expectations.expect
    expect("uids", facts.status.get("Uid"), [_AGENT_ID, GUEST_ID] * 2)
    expect("gids", facts.status.get("Gid"), [GUEST_ID] * 4)
    for capability_set in CAPABILITIES:
        expect(capability_set, facts.status.get(capability_set), [NO_CAPABILITY])
    expect("no_new_privs", facts.status.get("NoNewPrivs"), ["1"])
    expect("the seccomp mode", facts.status.get("Seccomp"), ["2"])
    expect("interfaces", facts.interfaces, ["lo"])
    expect("a connection out", words.get("connect"), "ENETUNREACH", "EHOSTUNREACH")
    expect("a write to the image", words.get("write"), "EROFS", "EACCES")
    expect("reading the agent's memory", words.get("agent_memory"), "EACCES", "ENOENT")
    expect("block devices", words.get("blocks"), "vda ro\n")
    expect("controllers", words.get("controllers"), "cpu memory pids")
    if words.get("kernel") in (os.uname().release, "", None):
        expectations.faults.append(f"kernel is {words.get('kernel')!r}, the host's own")
    if cpus is not None:
        expect("cpus", words.get("cpus"), cpus)
    for place, (kind, flag) in _MOUNTS.items():
        mounted_kind, flags = facts.mounts.get(place, ("nothing", frozenset[str]()))
        if kind is not None:
            expect(f"the file system on {place}", mounted_kind, kind)
        if flag is not None and flag not in flags:
            expectations.faults.append(f"{place} is mounted without {flag}")
    for place, (kind, flags) in facts.mounts.items():
        if place not in _MOUNTS and kind not in _ALSO_MOUNTED and "ro" not in flags:
            expectations.faults.append(f"{place!r} is writable, and no profile names it")
    return expectations.faults
