"""Comparing what the agent proves in its machine with what the tier promises.

Its kernel is a guest's, so all of this is a claim of the machine's. It finds a template that was
made wrongly; what keeps the guest in is the machine monitor and its jail.
"""

from collections.abc import Mapping
from typing import Final

from stockade.executor.own_kernel import expect_own_kernel
from stockade.executor.receipt import CAPABILITIES, NO_CAPABILITY, Expectations, Receipt

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
    expectations = Expectations()
    expect_own_kernel(expectations, facts, cpus, _MOUNTS, _ALSO_MOUNTED)
    expect = expectations.expect
    for capability_set in CAPABILITIES:
        expect(capability_set, facts.status.get(capability_set), [NO_CAPABILITY])
    expect("no_new_privs", facts.status.get("NoNewPrivs"), ["1"])
    expect("block devices", facts.words.get("blocks"), "vda ro\n")
    expect("controllers", facts.words.get("controllers"), "cpu memory pids")
    return expectations.faults
