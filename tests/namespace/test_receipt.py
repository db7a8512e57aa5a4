"""The receipt of a real sandbox proves every control; one that lacks any is refused."""

import os
import re
from collections.abc import Mapping

import pytest

from stockade.executor.namespace.receipt import faults

ID = 7
STATUS = (
    "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n"
    "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
    "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
)
MOUNTS = (
    "/ ro,nosuid,nodev,relatime tmpfs\n/usr ro,nosuid,nodev,relatime ext4\n"
    "/etc/alternatives ro,nosuid,nodev ext4\n/dev/null ro,nosuid,noexec devtmpfs\n"
    "/proc rw,nosuid,nodev,noexec proc\n/workspace rw,nosuid,nodev tmpfs\n"
    "/tmp rw,nosuid,nodev tmpfs\n/proc rw,nosuid,nodev,noexec proc\n"
    "/dev/pts rw,nosuid,noexec devpts\n"
)
DEVICES = "Inter-|   Receive\n face |bytes\n    lo:       0       0\n"


def receipt(**changed: object) -> Mapping[str, object]:
    """One that proves everything, but for what is changed."""
    return {
        "status": STATUS,
        "uid_map": f"      1000          {ID}          1\n",
        "mounts": MOUNTS,
        "devices": DEVICES,
        "connect": "ENETUNREACH",
        "write": "EROFS",
        "agent_memory": "EACCES",
        "kernel": os.uname().release,
        "cpus": 2,
    } | changed


def test_a_whole_receipt_has_no_fault() -> None:
    # What the tier promises is enough.
    assert faults(receipt(), ID, 2) == []
    assert faults(receipt(), ID, None) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Uid:\t0\t0\t0\t0", "uids"),
        ("Uid:\t1000\t0\t1000\t1000", "uids"),
        ("Gid:\t0\t0\t0\t0", "gids"),
        ("CapInh:\t0000000000000001", "CapInh"),
        ("CapPrm:\t0000000000200000", "CapPrm"),
        ("CapEff:\t000001ffffffffff", "CapEff"),
        ("CapBnd:\t0000000000000400", "CapBnd"),
        ("CapAmb:\t0000000000000400", "CapAmb"),
        ("NoNewPrivs:\t0", "no_new_privs"),
        ("Seccomp:\t0", "seccomp"),
        ("Seccomp:\t1", "seccomp"),
    ],
)
def test_a_right_that_is_left_is_a_fault(line: str, said: str) -> None:
    # One line of the status that differs is named.
    name = line.split(":", maxsplit=1)[0]
    changed = re.sub(rf"(?m)^{name}:.*$", line, STATUS)
    assert changed != STATUS
    (fault,) = faults(receipt(status=changed), ID, 2)
    assert said in fault


@pytest.mark.parametrize("name", [line.split(":")[0] for line in STATUS.splitlines()])
def test_a_line_that_is_missing_is_a_fault(name: str) -> None:
    # Not told is not proven.
    changed = re.sub(rf"(?m)^{name}:.*\n", "", STATUS)
    assert len(faults(receipt(status=changed), ID, 2)) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uid_map", "0 0 4294967295"),
        ("uid_map", f"1000 {ID + 1} 1"),
        ("uid_map", f"1000 {ID} 2"),
        ("devices", DEVICES + "  eth0:       0       0\n"),
        ("devices", ""),
        ("connect", ""),
        ("connect", "ECONNREFUSED"),
        ("connect", "ETIMEDOUT"),
        ("write", ""),
        ("write", "EACCES"),
        ("agent_memory", ""),
        ("kernel", "4.4.0"),
        ("cpus", 64),
    ],
)
def test_a_fact_that_differs_is_a_fault(name: str, value: object) -> None:
    # Each attempt has to fail in the one way that the wall makes it fail.
    assert len(faults(receipt(**{name: value}), ID, 2)) == 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("/workspace rw,nosuid,nodev tmpfs\n", "", "/workspace is not mounted"),
        ("/workspace rw,nosuid,nodev", "/workspace rw,nodev", "nosuid"),
        ("/tmp rw,nosuid,nodev", "/tmp rw,nosuid", "nodev"),
        ("/usr ro,", "/usr rw,", "ro"),
        ("/ ro,", "/ rw,", "ro"),
        ("/workspace rw,nosuid,nodev tmpfs", "/workspace rw,nosuid,nodev ext4", "ext4"),
        ("/etc/alternatives ro,", "/etc/alternatives rw,", "/etc/alternatives is writable"),
        ("/dev/null ro,", "/dev/null rw,", "/dev/null is writable"),
        ("/dev/null", "/home ro,nosuid,nodev ext4\n/dev/null", "'/home' is mounted"),
        ("/dev/null", "/sys ro,nosuid sysfs\n/dev/null", "'/sys' is mounted"),
        ("/dev/pts rw,nosuid,noexec devpts\n", "", "/dev/pts is not mounted"),
    ],
)
def test_a_mount_that_differs_is_a_fault(before: str, after: str, said: str) -> None:
    # Missing, writable, or one that no profile names.
    assert before in MOUNTS
    found = faults(receipt(mounts=MOUNTS.replace(before, after)), ID, 2)
    assert any(said in fault for fault in found)


@pytest.mark.parametrize("value", [None, 5, [], {"a": 1}, True])
def test_nonsense_is_a_fault(value: object) -> None:
    # The agent may say anything; nothing of it raises.
    for name in receipt():
        assert faults(receipt(**{name: value}), ID, 2)
