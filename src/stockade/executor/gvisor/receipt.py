"""Comparing what the agent proves in gVisor with what the tier promises.

gVisor's kernel tells no ``NoNewPrivs``, no ambient set and few mount flags. What stands in
for them is that it is another kernel: no right of the guest's is one in the host's.
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
    "/usr": (None, "ro"),
    "/workspace": ("tmpfs", "rw"),
    "/tmp": ("tmpfs", "rw"),  # noqa: S108 - inside
    "/proc": ("proc", None),
    "/proc/1": ("tmpfs", "ro"),
}
# The kernel's own file systems, with nothing of the host in them.
_ALSO_MOUNTED: Final = frozenset({"tmpfs", "devpts", "devtmpfs", "mqueue"})


def faults(receipt: Mapping[str, object], cpus: int | None) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything."""
    facts = Receipt.read(receipt)
    words = facts.words
    expectations = Expectations()
    expect = expectations.expect
    # A program's are the guest's alone: it can neither signal the agent nor limit it.
    expect("uids", facts.status.get("Uid"), [_AGENT_ID, GUEST_ID] * 2)
    expect("gids", facts.status.get("Gid"), [GUEST_ID] * 4)
    for capability_set in CAPABILITIES:
        if capability_set != "CapAmb":
            expect(capability_set, facts.status.get(capability_set), [NO_CAPABILITY])
    expect("the seccomp mode", facts.status.get("Seccomp"), ["2"])
    expect("interfaces", facts.interfaces, ["lo"])
    expect("a connection out", words.get("connect"), "ENETUNREACH", "EHOSTUNREACH")
    expect("a write to the image", words.get("write"), "EROFS", "EACCES")
    expect("reading the agent's memory", words.get("agent_memory"), "EACCES", "ENOENT")
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
