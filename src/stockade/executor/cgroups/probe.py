"""Which cgroups this host lets us use, found out by using them."""

import os
from pathlib import Path

from stockade.executor.cgroups.absent import NoTree
from stockade.executor.cgroups.directory import is_executor_leaf
from stockade.executor.cgroups.kernel import Host, LinuxHost
from stockade.executor.cgroups.legacy import LegacyTree
from stockade.executor.cgroups.mounts import Hierarchy, read_hierarchies
from stockade.executor.cgroups.tree import CgroupError, CgroupTree
from stockade.executor.cgroups.unified import CONTROLLERS, UnifiedTree, remedies_for

SELF_CGROUP = Path("/proc/self/cgroup")
MOUNTINFO = Path("/proc/self/mountinfo")


def find_cgroups(
    self_cgroup: Path = SELF_CGROUP, mountinfo: Path = MOUNTINFO, host: Host | None = None
) -> CgroupTree:
    """Open the best tree: v2 with every controller, else whichever has more, else none.

    Never raises for a host that lacks something: the tree says what is missing.
    """
    host = host or LinuxHost()
    hierarchies = read_hierarchies(self_cgroup, mountinfo)
    reasons: list[str] = []
    unified: UnifiedTree | None = None
    if hierarchies.unified is None:
        reasons.append("cgroup v2 is not mounted")
    else:
        for parent in _parents(hierarchies.unified):
            try:
                tree = UnifiedTree(host, parent)
            except OSError as error:
                reasons.append(f"cgroup v2 in {parent}: {error.strerror or error}")
                continue
            if len(tree.controllers) == len(CONTROLLERS):
                _close(unified, reasons)
                return tree
            reasons.append(tree.description)
            if len(tree.controllers) > (len(unified.controllers) if unified else 0):
                _close(unified, reasons)
                unified = tree
            else:
                _close(tree, reasons)
    legacy = LegacyTree(host, hierarchies)
    useful = sum(name in legacy.controllers for name in CONTROLLERS)
    if unified is not None:
        if useful <= len(unified.controllers):
            _close(legacy, reasons)
            return unified
        _close(unified, reasons)
    if legacy.controllers:
        return legacy
    reasons.append(legacy.description)
    unavailable = dict.fromkeys(CONTROLLERS, "cgroup.controllers")
    return NoTree(reasons, list(dict.fromkeys([*remedies_for(unavailable), *legacy.remedies])))


def _close(tree: CgroupTree | None, reasons: list[str]) -> None:
    try:
        if tree is not None:
            tree.close()
    except CgroupError as error:
        reasons.append(str(error))


def _parents(unified: Hierarchy) -> list[str]:
    parents = []
    if unified.own is not None:
        parents.append(unified.own)
        if is_executor_leaf(unified.own):
            # An executor runs in this process already, or started it: go beside it.
            parents.insert(0, str(Path(unified.own).parents[1]))
        # DelegateSubgroup= puts us one below the cgroup that was delegated.
        above = str(Path(unified.own).parent)
        if unified.own != unified.mount_point and _is_delegated(above):
            parents.append(above)
    if os.geteuid() == 0 and unified.mount_point not in parents:
        parents.append(unified.mount_point)
    return parents


def _is_delegated(path: str) -> bool:
    for attribute in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(path, attribute) == b"1":
                return True
        except OSError:
            continue
    return False
