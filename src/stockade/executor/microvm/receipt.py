"""Comparing what the agent proves in its machine with what the tier promises.

Its kernel is a guest's, so all of this is a claim of the machine's. It finds a template that was
made wrongly; what keeps the guest in is the machine monitor and its jail. The kernel's release
proves nothing: a host of the same Debian has the same one. Its disk and its cgroups are no host's.
"""

from collections.abc import Mapping
from typing import Final

from stockade.executor.own_kernel import expect_own_kernel
from stockade.executor.receipt import CAPABILITIES, NO_CAPABILITY, Expectations, Receipt

_IMAGE: Final = "vda ro"
_OWN_DISK: Final = "vdb rw"
# The kernel's own file systems.
_ALSO_MOUNTED: Final = frozenset({"tmpfs", "devpts", "devtmpfs"})


def faults(receipt: Mapping[str, object], cpus: int | None, *, own_disk: bool = False) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything.

    ``own_disk``: scratch files are on a disk, and not in the machine's RAM.
    """
    facts = Receipt.read(receipt)
    expectations = Expectations()
    expect_own_kernel(expectations, facts, cpus, _mounts(own_disk), _ALSO_MOUNTED)
    expect = expectations.expect
    for capability_set in CAPABILITIES:
        expect(capability_set, facts.status.get(capability_set), [NO_CAPABILITY])
    expect("no_new_privs", facts.status.get("NoNewPrivs"), ["1"])
    blocks = sorted(str(facts.words.get("blocks", "")).splitlines())
    expect("block devices", blocks, [_IMAGE, _OWN_DISK] if own_disk else [_IMAGE])
    expect("controllers", facts.words.get("controllers"), "cpu memory pids")
    return expectations.faults


def _mounts(own_disk: bool) -> dict[str, tuple[str | None, str | None]]:
    """Mount point to file system and a flag."""
    scratch = "ext4" if own_disk else "tmpfs"
    return {
        "/": (None, "ro"),
        "/workspace": (scratch, "rw"),
        "/tmp": (scratch, "rw"),  # noqa: S108 - inside
        "/proc": ("proc", None),
    }
