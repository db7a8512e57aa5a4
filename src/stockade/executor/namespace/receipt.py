"""Comparing what the agent proves of its confinement with what the profile promises."""

import os
from collections.abc import Mapping
from typing import Final

GUEST_ID: Final = "1000"
_NO_CAPABILITY: Final = "0000000000000000"
_CAPABILITIES: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
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


def faults(receipt: Mapping[str, object], host_id: int, cpus: int | None) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything.

    ``host_id`` is the sandbox's user id in the zygote's user namespace.
    """
    facts = {name: value for name, value in receipt.items() if isinstance(value, str | int)}
    status = _status(str(facts.get("status", "")))
    found: list[str] = []

    def expect(name: str, value: object, wanted: object) -> None:
        if value != wanted:
            found.append(f"{name} is {value!r}, not {wanted!r}")

    expect("uids", status.get("Uid"), [GUEST_ID] * 4)
    expect("gids", status.get("Gid"), [GUEST_ID] * 4)
    for capability_set in _CAPABILITIES:
        expect(capability_set, status.get(capability_set), [_NO_CAPABILITY])
    expect("no_new_privs", status.get("NoNewPrivs"), ["1"])
    expect("seccomp", status.get("Seccomp"), ["2"])  # SECCOMP_MODE_FILTER, proc(5)
    expect("uid_map", str(facts.get("uid_map", "")).split(), [GUEST_ID, str(host_id), "1"])
    expect("interfaces", _interfaces(str(facts.get("devices", ""))), ["lo"])
    expect("a connection out", facts.get("connect"), "ENETUNREACH")
    expect("a write to the image", facts.get("write"), "EROFS")
    expect("reading the agent's memory", facts.get("agent_memory"), "EACCES")
    expect("kernel", facts.get("kernel"), os.uname().release)
    if cpus is not None:
        expect("cpus", facts.get("cpus"), cpus)
    return found + _mount_faults(_mounts(str(facts.get("mounts", ""))))


def _status(text: str) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.split() for name, _, value in lines}


def _interfaces(text: str) -> list[str]:
    """The names in /proc/net/dev, below its two lines of headings."""
    return [line.partition(":")[0].strip() for line in text.splitlines()[2:]]


def _mounts(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Mount point to file system and flags; a later mount covers an earlier one."""
    mounts = {}
    for line in text.splitlines():
        match line.split(" "):
            case [place, flags, kind]:
                mounts[place] = (kind, frozenset(flags.split(",")))
    return mounts


def _mount_faults(mounts: Mapping[str, tuple[str, frozenset[str]]]) -> list[str]:
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
        if not place.startswith(_ALSO_MOUNTED):
            found.append(f"{place!r} is mounted, which no profile names")
        elif "ro" not in mounts[place][1]:
            found.append(f"{place} is writable")
    return found
