"""Comparing what the agent proves of its confinement with what the profile promises."""

import os
from collections.abc import Mapping
from typing import Final

GUEST_ID: Final = "1000"
_NO_CAPABILITY: Final = "0000000000000000"
_CAPABILITIES: Final = ("inheritable", "permitted", "effective", "bounding", "ambient")
# Mount point to file system and the flags without which it is not what was promised.
_MOUNTS: Final[Mapping[str, tuple[str | None, frozenset[str]]]] = {
    "/": ("tmpfs", frozenset({"ro", "nosuid", "nodev"})),
    "/usr": (None, frozenset({"ro", "nosuid", "nodev"})),
    "/opt/stockade/stockade_guest": (None, frozenset({"ro", "nosuid", "nodev"})),
    "/workspace": ("tmpfs", frozenset({"rw", "nosuid", "nodev"})),
    "/tmp": ("tmpfs", frozenset({"rw", "nosuid", "nodev"})),  # noqa: S108 - inside
    "/proc": ("proc", frozenset({"nosuid", "nodev", "noexec"})),
    "/dev/pts": ("devpts", frozenset({"nosuid", "noexec"})),
}
_ALSO_MOUNTED: Final = ("/dev/", "/etc/", "/bin", "/sbin", "/lib", "/opt/stockade/", "/usr/")


def faults(receipt: Mapping[str, object], host_id: int, cpus: int | None) -> list[str]:
    """What the receipt lacks, a sentence each; empty where it proves everything.

    ``host_id`` is the sandbox's user id in the zygote's user namespace.
    """
    found: list[str] = []

    def expect(name: str, wanted: object) -> None:
        if receipt.get(name) != wanted:
            found.append(f"{name} is {receipt.get(name)!r}, not {wanted!r}")

    expect("uids", "\t".join([GUEST_ID] * 4))
    expect("gids", "\t".join([GUEST_ID] * 4))
    expect("uid_map", [GUEST_ID, str(host_id), "1"])
    for capability_set in _CAPABILITIES:
        expect(capability_set, _NO_CAPABILITY)
    expect("no_new_privs", "1")
    expect("seccomp", "2")  # SECCOMP_MODE_FILTER, proc(5)
    expect("interfaces", ["lo"])
    expect("connect", "ENETUNREACH")
    expect("write", "EROFS")
    expect("agent_memory", "EACCES")
    expect("kernel", os.uname().release)
    if cpus is not None:
        expect("cpus", cpus)
    found += _mount_faults(receipt.get("mounts"))
    return found


def _mount_faults(mounts: object) -> list[str]:
    if not isinstance(mounts, Mapping):
        return ["the mounts are not told"]
    found = []
    for place, (kind, flags) in _MOUNTS.items():
        mount = mounts.get(place)
        if not (isinstance(mount, list) and len(mount) == 2):
            found.append(f"{place} is not mounted")
            continue
        missing = flags - set(str(mount[1]).split(","))
        if missing:
            found.append(f"{place} is mounted without {', '.join(sorted(missing))}")
        if kind is not None and mount[0] != kind:
            found.append(f"{place} is {mount[0]!r}, not {kind}")
    for place, mount in mounts.items():
        if place in _MOUNTS:
            continue
        if not place.startswith(_ALSO_MOUNTED):
            found.append(f"{place!r} is mounted, which no profile names")
        elif not place.startswith("/dev/") and "ro" not in str(mount[1]).split(","):
            found.append(f"{place} is writable")
    return found
