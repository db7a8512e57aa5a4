"""Comparing what the agent proves in gVisor with what the tier promises.

gVisor's kernel tells no ``NoNewPrivs``, no ambient set and few mount flags. What stands in
for them is that it is another kernel: no right of the guest's is one in the host's.
"""

import os
from collections.abc import Mapping
from typing import Final

from stockade.executor.own_kernel import expect_own_kernel
from stockade.executor.receipt import CAPABILITIES, NO_CAPABILITY, Expectations, Receipt

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
    expectations = Expectations()
    expect_own_kernel(expectations, facts, cpus, _MOUNTS, _ALSO_MOUNTED)
    if facts.words.get("kernel") == os.uname().release:
        expectations.faults.append(f"kernel is {os.uname().release!r}, the host's own")
    for capability_set in CAPABILITIES:
        if capability_set != "CapAmb":
            expectations.expect(capability_set, facts.status.get(capability_set), [NO_CAPABILITY])
    return expectations.faults
