"""What a sandbox with a kernel of its own has to prove, whatever that kernel is."""

from collections.abc import Mapping
from typing import Final

from stockade.executor.receipt import GUEST_ID, Expectations, Receipt

AGENT_ID: Final = "1001"

Places = Mapping[str, tuple[str | None, str | None]]
"""Mount point to file system and a flag; None: any."""


def expect_own_kernel(
    expectations: Expectations,
    facts: Receipt,
    cpus: int | None,
    places: Places,
    also: frozenset[str],
) -> None:
    """``cpus``: how many it may see; None: any. ``also``: file systems of the kernel itself."""
    words, expect = facts.words, expectations.expect
    # A program's are the guest's alone: it can neither signal the agent nor limit it.
    expect("uids", facts.status.get("Uid"), [AGENT_ID, GUEST_ID] * 2)
    expect("gids", facts.status.get("Gid"), [GUEST_ID] * 4)
    expect("the seccomp mode", facts.status.get("Seccomp"), ["2"])
    expect("interfaces", facts.interfaces, ["lo"])
    expect("a connection out", words.get("connect"), "ENETUNREACH", "EHOSTUNREACH")
    expect("a write to the image", words.get("write"), "EROFS", "EACCES")
    expect("reading the agent's memory", words.get("agent_memory"), "EACCES", "ENOENT")
    if not words.get("kernel"):
        expectations.faults.append(f"kernel is {words.get('kernel')!r}")
    if cpus is not None:
        expect("cpus", words.get("cpus"), cpus)
    for place, (kind, flag) in places.items():
        mounted_kind, flags = facts.mounts.get(place, ("nothing", frozenset[str]()))
        if kind is not None:
            expect(f"the file system on {place}", mounted_kind, kind)
        if flag is not None and flag not in flags:
            expectations.faults.append(f"{place} is mounted without {flag}")
    for place, (mounted, flags) in facts.mounts.items():
        if place not in places and mounted not in also and "ro" not in flags:
            expectations.faults.append(f"{place!r} is writable, and no profile names it")
