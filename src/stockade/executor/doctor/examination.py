"""The whole examination: tiers, limits, facts, and what to do."""

import asyncio
import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stockade.executor.cgroups import CgroupError, LegacyTree, UnifiedTree, find_cgroups
from stockade.executor.doctor import host
from stockade.executor.doctor.enforcement import explain
from stockade.executor.doctor.probe import Trial, try_tier
from stockade.executor.doctor.report import Report, TierStatus
from stockade.executor.namespace.image import INTERPRETER, native_folder
from stockade.port import Enforcement, Tier
from stockade.port.policy import STRENGTH

_OWN_DIRECTORY = re.compile(r"/stockade-\d+-\d+\b")
_BUILT = (
    "stockade-launch",
    "stockade-supervise",
    "stockade-agent",
    "stockade-init",
    "libstockade.so",
)
_NODE = ("/usr/local/bin/node", "/usr/bin/node")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """What was found of them."""

    kind: str
    """``cgroup v1``, ``cgroup v2`` or empty."""
    description: str
    keeps: Mapping[str, Enforcement]
    remedies: tuple[str, ...]
    leftovers: tuple[str, ...]


def examine(*, allow_emulation: bool = False) -> Report:
    """Start what can be started, and say what is missing. Not inside a running event loop."""
    # First, and given up again: the trial opens a tree of its own, in the same place.
    cgroups = _look_at_cgroups()
    trials = {
        tier: asyncio.run(try_tier(tier, allow_emulation=allow_emulation))
        for tier in (*STRENGTH, Tier.WASM)
    }
    namespaces = host.read_user_namespaces()
    trial = trials[Tier.NAMESPACE]
    statuses = {tier: trial.status for tier, trial in trials.items()}
    statuses[Tier.NAMESPACE] = _with_obstacles(trial.status, namespaces)
    served = next((trial for trial in trials.values() if trial.status.available), trial)
    return Report(
        tiers=tuple(statuses.values()),
        enforcement=explain(served.enforcement, cgroups.kind, cgroups.keeps),
        facts=_facts(cgroups, served, namespaces),
        remedies=tuple(dict.fromkeys(_remedies(cgroups, trial, namespaces))),
    )


def _look_at_cgroups() -> Cgroups:
    tree = find_cgroups()
    kind = ""
    if isinstance(tree, UnifiedTree):
        kind = "cgroup v2"
    elif isinstance(tree, LegacyTree):
        kind = "cgroup v1"
    # Without the name of our own directory, which is about to go.
    description = _OWN_DIRECTORY.sub("", tree.description)
    keeps = tree.enforcement()
    remedies, leftovers = tuple(tree.remedies), list(tree.leftovers)
    try:
        tree.close()
    except CgroupError as error:
        leftovers.append(str(error))
    return Cgroups(kind, description, keeps, remedies, tuple(leftovers))


def _with_obstacles(status: TierStatus, namespaces: host.UserNamespaces) -> TierStatus:
    """Put the setting that explains a failure in front of the failure's own words."""
    if status.available or not namespaces.obstacles:
        return status
    return TierStatus(
        status.tier, False, f"user namespaces are {namespaces.fact} ({status.detail})"
    )


def _facts(cgroups: Cgroups, trial: Trial, namespaces: host.UserNamespaces) -> dict[str, str]:
    kernel = os.uname()
    python = trial.python or ("not started" if INTERPRETER.exists() else f"no {INTERPRETER}")
    return {
        "kernel": f"{kernel.sysname} {kernel.release} {kernel.machine}",
        "cgroups": cgroups.description,
        "user namespaces": namespaces.fact,
        "user": host.describe_user(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "Python inside": python,
        "node inside": next((path for path in _NODE if Path(path).exists()), "none: no JavaScript"),
    }


def _remedies(cgroups: Cgroups, trial: Trial, namespaces: host.UserNamespaces) -> list[str]:
    remedies = []
    if not trial.status.available:
        remedies += _remedies_for_start(trial.status.detail, namespaces)
    if Enforcement.ABSENT in cgroups.keeps.values():
        remedies += [f"for the limits: {do}" for do in cgroups.remedies]
    remedies += [f"remove by hand what a dead executor left: {what}" for what in cgroups.leftovers]
    return remedies


def _remedies_for_start(why: str, namespaces: host.UserNamespaces) -> list[str]:
    remedies = [obstacle.remedy for obstacle in namespaces.obstacles]
    if not INTERPRETER.exists():
        remedies.append(f"install {INTERPRETER}, which runs inside: apt-get install python3")
    remedies += [
        f"build {native_folder() / name}, with a C compiler (in a checkout: ./dev setup)"
        for name in _BUILT
        if not (native_folder() / name).exists()
    ]
    if host.kernel_is_old(os.uname().release):
        oldest = ".".join(map(str, host.OLDEST_KERNEL))
        remedies.append(f"use Linux {oldest} or later; this is {os.uname().release}")
    if host.in_container() and os.strerror(errno.EPERM) in why:
        remedies.append(
            "in Docker, whose own filter forbids new namespaces: docker run --security-opt "
            "seccomp=unconfined --security-opt systempaths=unconfined"
        )
    return remedies
