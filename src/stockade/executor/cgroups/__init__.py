"""Limits kept by control groups: v2 where they were delegated, v1, or none."""

from stockade.executor.cgroups.absent import NoTree
from stockade.executor.cgroups.legacy import LegacyTree
from stockade.executor.cgroups.probe import find_cgroups
from stockade.executor.cgroups.tree import (
    CgroupError,
    CgroupTree,
    CgroupUsage,
    GuestCeilings,
    GuestCgroup,
)
from stockade.executor.cgroups.unified import UnifiedTree

__all__ = [
    "CgroupError",
    "CgroupTree",
    "CgroupUsage",
    "GuestCeilings",
    "GuestCgroup",
    "LegacyTree",
    "NoTree",
    "UnifiedTree",
    "find_cgroups",
]
