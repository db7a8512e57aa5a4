"""The receipt of gVisor's guest proves every control; one that lacks any is refused."""

import os
import re
from collections.abc import Mapping

import pytest

from stockade.executor.gvisor.receipt import faults

STATUS = (
    "Uid:\t1001\t1000\t1001\t1000\nGid:\t1000\t1000\t1000\t1000\nSeccomp:\t2\n"
    "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
    "CapBnd:\t0000000000000000\n"
)
MOUNTS = (
    "/ ro 9p\n/dev rw,mode=0755 tmpfs\n/usr ro 9p\n/proc rw proc\n/dev/pts rw devpts\n"
    "/tmp rw,mode=01777 tmpfs\n/workspace rw,mode=755,size=134217728 tmpfs\n"
    "/tmp rw,mode=755,size=134217728 tmpfs\n/proc/1 ro,noexec,mode=555 tmpfs\n"
)
DEVICES = "Inter-|   Receive\n face |bytes\n    lo:       0       0\n"


def receipt(**changed: object) -> Mapping[str, object]:
    """One that proves everything, but for what is changed."""
    return {
        "status": STATUS,
        "mounts": MOUNTS,
        "devices": DEVICES,
        "connect": "ENETUNREACH",
        "write": "EROFS",
        "agent_memory": "EACCES",
        "kernel": "4.4.0",
        "cpus": 2,
    } | changed


def test_a_whole_receipt_has_no_fault() -> None:
    # What the tier promises is enough.
    assert faults(receipt(), 2) == []
    assert faults(receipt(), None) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Uid:\t0\t0\t0\t0", "uids"),
        ("Uid:\t1000\t1000\t1000\t1000", "uids"),
        ("Uid:\t1001\t1000\t0\t1000", "uids"),
        ("Gid:\t0\t0\t0\t0", "gids"),
        ("CapInh:\t0000000000000001", "CapInh"),
        ("CapPrm:\t0000000000200000", "CapPrm"),
        ("CapEff:\t000001ffffffffff", "CapEff"),
        ("CapBnd:\t0000000000000400", "CapBnd"),
        ("Seccomp:\t0", "seccomp"),
        ("Seccomp:\t1", "seccomp"),
    ],
)
def test_a_status_that_lacks_one_is_refused(line: str, said: str) -> None:
    name = line.partition(":")[0]
    changed = re.sub(f"(?m)^{name}:.*$", line, STATUS)
    (fault,) = faults(receipt(status=changed), 2)
    assert said in fault
    # And one that does not tell of it at all.
    (fault,) = faults(receipt(status=re.sub(f"(?m)^{name}:.*\n", "", STATUS)), 2)
    assert said in fault


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"connect": "OK"}, "a connection out is 'OK'"),
        ({"connect": "ETIMEDOUT"}, "a connection out"),
        ({"write": "OK"}, "a write to the image"),
        ({"agent_memory": "OK"}, "reading the agent's memory"),
        ({"kernel": os.uname().release}, "the host's own"),
        ({"kernel": ""}, "kernel is ''"),
        ({"cpus": 64}, "cpus is 64, not 2"),
        ({"cpus": "2"}, "cpus is '2', not 2"),
        ({"devices": DEVICES + "  eth0: 0 0\n"}, "interfaces is ['lo', 'eth0']"),
        ({"devices": ""}, "interfaces is []"),
    ],
)
def test_a_fact_that_is_wrong_is_refused(changed: dict[str, object], said: str) -> None:
    (fault,) = faults(receipt(**changed), 2)
    assert said in fault


@pytest.mark.parametrize("name", ["connect", "write", "agent_memory", "kernel", "cpus", "devices"])
@pytest.mark.parametrize("value", [None, [], {"OK": 1}])
def test_a_fact_that_is_absent_or_of_another_kind_is_refused(name: str, value: object) -> None:
    assert len(faults(receipt(**{name: value}), 2)) == 1


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("/ ro 9p\n", "/ rw 9p\n", "/ is mounted without ro"),
        ("/usr ro 9p\n", "/usr rw 9p\n", "/usr is mounted without ro"),
        ("/usr ro 9p\n", "", "/usr is mounted without ro"),
        ("/workspace rw,", "/workspace ro,", "/workspace is mounted without rw"),
        ("size=134217728 tmpfs\n/tmp", "size=134217728 9p\n/tmp", "the file system on /workspace"),
        ("/proc rw proc", "/proc rw 9p", "the file system on /proc "),
        ("/proc/1 ro,", "/proc/1 rw,", "/proc/1 is mounted without ro"),
        ("/dev/pts", "/mnt rw 9p\n/dev/pts", "'/mnt' is writable, and no profile names it"),
    ],
)
def test_a_mount_that_is_wrong_is_refused(line: str, instead: str, said: str) -> None:
    assert line in MOUNTS
    assert any(said in fault for fault in faults(receipt(mounts=MOUNTS.replace(line, instead)), 2))


def test_a_later_mount_covers_an_earlier_one() -> None:
    """What is in front counts."""
    assert faults(receipt(mounts=MOUNTS + "/usr rw 9p\n"), 2) == ["/usr is mounted without ro"]


def test_nothing_at_all_is_refused() -> None:
    assert len(faults({}, 2)) > 12
