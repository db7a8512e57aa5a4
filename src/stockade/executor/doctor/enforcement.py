"""By what each limit is kept: a sentence for every way in which a tier says it keeps one."""

from collections.abc import Mapping

from stockade.port import Enforcement

_ENFORCED = Enforcement.ENFORCED
_PER_PROCESS = Enforcement.PER_PROCESS
_ABSENT = Enforcement.ABSENT

_HOST_COUNTS = "the host counts what it reads of the wire"
_BY: Mapping[tuple[str, Enforcement], str] = {
    ("wall_seconds", _ENFORCED): "the host's monotonic clock, then SIGKILL to the pid namespace",
    ("cpu_seconds", _ENFORCED): "{cgroup} {cpu_time}, watched by the host; RLIMIT_CPU as well",
    ("cpu_seconds", _PER_PROCESS): "RLIMIT_CPU: several processes together may use a multiple",
    ("cpus", _ENFORCED): "{cgroup} {cpu_share}; pinned to that many CPUs, so nproc says it",
    ("cpus", _ABSENT): "pinned to that many whole CPUs, no more: a fraction is not kept",
    ("memory_bytes", _ENFORCED): "{cgroup} {memory}; the workspace counts",
    (
        "memory_bytes",
        _PER_PROCESS,
    ): "RLIMIT_DATA: several processes together may use a multiple; the workspace has its own limit",
    ("processes", _ENFORCED): "{pids}RLIMIT_NPROC in a user namespace of its own",
    ("open_files", _PER_PROCESS): "RLIMIT_NOFILE",
    ("disk_bytes", _ENFORCED): "the size of the tmpfs behind /workspace and /tmp",
    ("inodes", _ENFORCED): "nr_inodes of the tmpfs behind /workspace and /tmp",
    ("output_bytes", _ENFORCED): _HOST_COUNTS,
    ("result_bytes", _ENFORCED): _HOST_COUNTS,
    ("artefact_bytes", _ENFORCED): "the host takes no more than is left of it",
    ("record_bytes", _ENFORCED): "the host keeps a head and a tail of that size",
}
_FILES: Mapping[str, Mapping[str, str]] = {
    "cgroup v2": {
        "cpu_time": "cpu.stat",
        "cpu_share": "cpu.max",
        "memory": "memory.max",
        "pids": "cgroup v2 pids.max; ",
    },
    "cgroup v1": {
        "cpu_time": "cpuacct.usage",
        "cpu_share": "cpu.cfs_quota_us",
        "memory": "memory.limit_in_bytes",
        "pids": "cgroup v1 pids.max; ",
    },
}


def explain(
    kept: Mapping[str, Enforcement], cgroup: str, cgroup_keeps: Mapping[str, Enforcement]
) -> dict[str, tuple[Enforcement, str]]:
    """Field of ``Limits`` to how it is kept, and by what.

    ``cgroup`` is ``cgroup v1``, ``cgroup v2`` or empty.
    """
    names = {
        "cgroup": cgroup or "cgroup",
        **_FILES.get(cgroup, dict.fromkeys(_FILES["cgroup v2"], "")),
    }
    if cgroup_keeps.get("processes") is not _ENFORCED:
        names["pids"] = ""
    return {
        # A way that has no sentence yet is still told truly.
        field: (
            how,
            _BY.get((field, how), f"{how}, in a way that has no description").format(**names),
        )
        for field, how in kept.items()
    }
