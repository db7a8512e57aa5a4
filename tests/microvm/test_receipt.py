"""What a machine's agent has to prove: each fact that is wrong refuses the sandbox."""

import os

import pytest

from stockade.executor.microvm.receipt import faults

_STATUS = "\n".join(
    [
        "Uid:\t1001\t1000\t1001\t1000",
        "Gid:\t1000\t1000\t1000\t1000",
        *(f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ]
)
_MOUNTS = """\
/ ro,nosuid erofs
/dev ro,nosuid tmpfs
/dev/pts rw,nosuid devpts
/proc rw,nosuid proc
/workspace rw,nosuid tmpfs
/tmp rw,nosuid tmpfs
"""
_GOOD = {
    "status": _STATUS,
    "mounts": _MOUNTS,
    "devices": "Inter-|\n face |\n    lo: 0\n",
    "connect": "ENETUNREACH",
    "write": "EROFS",
    "agent_memory": "EACCES",
    "blocks": "vda ro\n",
    "controllers": "cpu memory pids",
    "kernel": "6.12.1-cloud",
    "cpus": 2,
}


def test_what_is_as_promised() -> None:
    assert faults(_GOOD, 2) == []
    assert faults(_GOOD, None) == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"status": _STATUS.replace("1001", "0")}, "uids"),
        ({"status": _STATUS.replace("CapEff:\t0", "CapEff:\t1")}, "CapEff"),
        ({"status": _STATUS.replace("CapAmb:\t0", "CapAmb:\t1")}, "CapAmb"),
        ({"status": _STATUS.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")}, "no_new_privs"),
        ({"status": _STATUS.replace("Seccomp:\t2", "Seccomp:\t0")}, "seccomp"),
        ({"mounts": _MOUNTS.replace("/ ro", "/ rw")}, "/ is mounted without ro"),
        ({"mounts": _MOUNTS + "/mnt rw ext4\n"}, "'/mnt' is writable"),
        ({"devices": _GOOD["devices"] + "  eth0: 0\n"}, "interfaces"),  # type: ignore[operator]
        ({"connect": ""}, "a connection out"),
        ({"write": ""}, "a write to the image"),
        ({"agent_memory": ""}, "the agent's memory"),
        ({"blocks": "vda rw\n"}, "block devices"),
        ({"blocks": "vda ro\nvdb rw\n"}, "block devices"),
        ({"controllers": "cpu"}, "controllers"),
        ({"kernel": ""}, "kernel is ''"),
        ({"cpus": 1}, "cpus"),
    ],
)
def test_each_wall_that_is_missing(wrong: dict[str, object], fault: str) -> None:
    (found,) = faults({**_GOOD, **wrong}, 2)
    assert fault in found


def test_a_host_of_the_images_own_debian() -> None:
    """Its kernel has the same name, and is another."""
    assert faults({**_GOOD, "kernel": os.uname().release}, 2) == []


def test_a_receipt_of_nothing_proves_nothing() -> None:
    assert len(faults({}, 2)) > 15


_ON_DISK = {
    "mounts": _MOUNTS.replace("/workspace rw,nosuid tmpfs", "/workspace rw,nosuid ext4").replace(
        "/tmp rw,nosuid tmpfs", "/tmp rw,nosuid ext4"
    ),
    "blocks": "vdb rw\nvda ro\n",
}


def test_a_machine_with_a_disk_of_its_own() -> None:
    """In whatever order its kernel names the two."""
    assert faults({**_GOOD, **_ON_DISK}, 2, own_disk=True) == []
    assert len(faults({**_GOOD, **_ON_DISK}, 2)) == 3


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"mounts": _MOUNTS}, "the file system on /workspace is 'tmpfs', not 'ext4'"),
        ({"blocks": "vda ro\n"}, "block devices"),
        ({"blocks": "vda rw\nvdb rw\n"}, "block devices"),
        ({"blocks": "vda ro\nvdb rw\nvdc rw\n"}, "block devices"),
    ],
)
def test_a_disk_that_is_none(wrong: dict[str, object], fault: str) -> None:
    found = faults({**_GOOD, **_ON_DISK, **wrong}, 2, own_disk=True)
    assert fault in found[0]
