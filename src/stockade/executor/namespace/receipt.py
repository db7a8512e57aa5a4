"""Comparing what the agent proves of its confinement with what the profile promises."""

import os
from collections.abc import Mapping
from typing import Final

from stockade.executor.receipt import (
    CAPABILITIES,
    GUEST_ID,
    NO_CAPABILITY,
    Expectations,
    Mounts,
    Receipt,
)

# Mount point to file system and the flags without which it is not what was promised.
_MOUNTS: Final[Mapping[str, tuple[str | None, frozenset[str]]]] = {
    "/": ("tmpfs", frozenset({"ro", "nosuid", "nodev"})),
    "/usr": (None, frozenset({"ro", "nosuid", "nodev"})),
    "/workspace": ("tmpfs", frozenset({"rw", "nosuid", "nodev"})),
    "/tmp": ("tmpfs", frozenset({"rw", "nosuid", "nodev"})),  # noqa: S108 - inside
    "/proc": ("proc", frozenset({"nosuid", "nodev", "noexec"})),
    "/dev/pts": ("devpts", frozenset({"nosuid", "noexec"})),
}
_ALSO_MOUNTED: Final = ("/dev/", "/etc/", "/bin", "/sbin", "/lib", "/usr/")


def faults(
    receipt: Mapping[str, object],
    host_id: int,
    cpus: int | None,
    also_mounted: tuple[str, ...] = (),
) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything.

    ``host_id`` is the sandbox's user id in the zygote's user namespace. ``also_mounted``: where
    else its image puts something, which is read-only too.
    """
    facts = Receipt.read(receipt)
    status, words = facts.status, facts.words
    expectations = Expectations()
    expect = expectations.expect
    expect("uids", status.get("Uid"), [GUEST_ID] * 4)
    expect("gids", status.get("Gid"), [GUEST_ID] * 4)
    for capability_set in CAPABILITIES:
        expect(capability_set, status.get(capability_set), [NO_CAPABILITY])
    expect("no_new_privs", status.get("NoNewPrivs"), ["1"])
    expect("seccomp", status.get("Seccomp"), ["2"])  # SECCOMP_MODE_FILTER, proc(5)
    expect("uid_map", str(words.get("uid_map", "")).split(), [GUEST_ID, str(host_id), "1"])
    expect("interfaces", facts.interfaces, ["lo"])
    expect("a connection out", words.get("connect"), "ENETUNREACH")
    expect("a write to the image", words.get("write"), "EROFS")
    expect("reading the agent's memory", words.get("agent_memory"), "EACCES")
    expect("kernel", words.get("kernel"), os.uname().release)
    if cpus is not None:
        expect("cpus", words.get("cpus"), cpus)
    return expectations.faults + _mount_faults(facts.mounts, (*_ALSO_MOUNTED, *also_mounted))


def _mount_faults(mounts: Mounts, also_mounted: tuple[str, ...]) -> list[str]:
    found = []
    for place, (kind, flags) in _MOUNTS.items():
        if place not in mounts:
            found.append(f"{place} is not mounted")
            continue
        mounted_kind, mounted_flags = mounts[place]
        missing = flags - mounted_flags
        if missing:
            found.append(f"{place} is mounted without {', '.join(sorted(missing))}")
        if kind is not None and mounted_kind != kind:
            found.append(f"{place} is {mounted_kind!r}, not {kind}")
    for place in mounts.keys() - _MOUNTS.keys():
        if not place.startswith(also_mounted):
            found.append(f"{place!r} is mounted, which no profile names")
        elif "ro" not in mounts[place][1]:
            found.append(f"{place} is writable")
    return found
