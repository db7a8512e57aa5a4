"""Which cgroups are used, on hosts of every shape: an imitation of cgroup v2 in plain files."""

import fcntl
import os
from pathlib import Path

import pytest

from stockade.executor.cgroups import (
    CgroupError,
    CgroupUsage,
    GuestCeilings,
    NoTree,
    UnifiedTree,
    find_cgroups,
)
from stockade.executor.cgroups.directory import own_name
from stockade.executor.cgroups.mounts import Hierarchy, read_hierarchies
from stockade.port import Enforcement

from .fakes import SOMEBODY, FakeHost

KEPT, ABSENT = Enforcement.ENFORCED, Enforcement.ABSENT
ALL = "cpuset cpu io memory pids"
OURS = own_name()


class Machine:
    """A host with cgroup v2, and the two files in which it says so."""

    def __init__(self, directory: Path, controllers: str = ALL) -> None:
        (directory / "cgroup").mkdir()
        self.host = FakeHost(directory / "cgroup", controllers)
        self._files = directory

    def where(self, path: str) -> tuple[Path, Path]:
        own, mounts = self._files / "self", self._files / "mountinfo"
        own.write_text(f"0::{path}\n")
        mounts.write_text(f"41 31 0:38 / {self.host.root} rw,relatime - cgroup2 cgroup2 rw\n")
        return own, mounts

    def delegated(self, path: str, *others: int, controllers: str = "cpu memory pids") -> Path:
        """A cgroup with the controllers and with us in it."""
        above = self.host.root
        for name in path.strip("/").split("/"):
            (above / "cgroup.subtree_control").write_text(controllers)
            above = self.host.cgroup(str((above / name).relative_to(self.host.root)))
        self.host.put(above, os.getpid(), *others)
        return above


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is made here belongs to whoever runs the tests; only the choices of root go away.
    monkeypatch.setattr(os, "geteuid", lambda: 1234)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_a_delegated_cgroup_serves_after_we_have_moved_out_of_its_way(
    machine: Machine, as_user: None
) -> None:
    service = machine.delegated("/app.slice/stockade.service")
    tree = find_cgroups(*machine.where("/app.slice/stockade.service"), machine.host)
    assert isinstance(tree, UnifiedTree)
    assert tree.enforcement() == {
        "memory_bytes": KEPT, "processes": KEPT, "cpu_seconds": KEPT, "cpus": KEPT,
    }  # fmt: skip
    assert tree.remedies == []
    assert machine.host.processes(service) == []
    assert machine.host.processes(service / OURS / "executor") == [os.getpid()]
    assert tree.description == f"cgroup v2: memory, pids, cpu in {service}/{OURS}"
    tree.close()
    assert machine.host.processes(service) == [os.getpid()]
    assert machine.host.enabled(service) == []
    assert machine.host.tree() == ["app.slice", "app.slice/stockade.service"]


async def test_a_sandbox_gets_its_ceilings_and_is_counted(machine: Machine, as_user: None) -> None:
    service = machine.delegated("/service")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    guest = tree.create("sandbox-1", GuestCeilings(1 << 29, 256, 1.5))
    directory = service / OURS / "sandbox-1"

    def content(*names: str) -> list[str]:
        return [(directory / name).read_text() for name in names]

    limits = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max")
    assert content(*limits) == ["536870912", "0", "1", "256", "150000 100000"]
    guest.set_ceilings(GuestCeilings(1 << 30, 512, 2.5))
    assert content(*limits) == ["1073741824", "0", "1", "512", "250000 100000"]
    assert guest.usage() == CgroupUsage(1.5, 4096, 7, 2, 5)
    assert guest.empty()
    fds = guest.join_fds()
    assert fds == guest.join_fds()
    assert [Path(f"/proc/self/fd/{fd}").readlink() for fd in fds] == [directory / "cgroup.procs"]
    assert not any(os.get_inheritable(fd) for fd in fds)
    await guest.remove()
    assert not directory.exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])
    await guest.remove()
    tree.close()


async def test_a_sandbox_that_stays_is_named(machine: Machine, as_user: None) -> None:
    service = machine.delegated("/service")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    guest = tree.create("sandbox-1", GuestCeilings(1 << 29, 256, 1))
    machine.host.put(service / OURS / "sandbox-1", SOMEBODY)
    with pytest.raises(CgroupError, match=f"cannot remove {service}/{OURS}/sandbox-1: Device or"):
        await guest.remove(patience=0.05)
    machine.host.put(machine.host.root, SOMEBODY)
    await guest.remove()
    tree.close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "probe", "executor", "a.b", "-a", "é", "a\n"]
)
def test_a_name_that_is_no_plain_component_is_refused(
    machine: Machine, as_user: None, name: str
) -> None:
    machine.delegated("/service")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    with pytest.raises(CgroupError, match="is not a name"):
        tree.create(name, GuestCeilings(1 << 29, 256, 1))
    tree.close()


def test_a_creation_that_fails_half_way_leaves_nothing(machine: Machine, as_user: None) -> None:
    service = machine.delegated("/service")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    tree.create("twice", GuestCeilings(1 << 29, 256, 1))
    with pytest.raises(CgroupError, match=r"cannot make twice: .*File exists"):
        tree.create("twice", GuestCeilings(1 << 29, 256, 1))
    machine.host.broken = "pids.max"
    with pytest.raises(CgroupError, match=r"cannot set pids\.max of half"):
        tree.create("half", GuestCeilings(1 << 29, 256, 1))
    assert not (service / OURS / "half").exists()
    tree.close()


def test_a_second_executor_in_the_process_goes_beside_the_first(
    machine: Machine, as_user: None
) -> None:
    service = machine.delegated("/service")
    first = find_cgroups(*machine.where("/service"), machine.host)
    second = find_cgroups(*machine.where(f"/service/{OURS}/executor"), machine.host)
    assert isinstance(second, UnifiedTree)
    assert second.directory.path == f"{service}/{OURS}.2"
    assert KEPT is second.enforcement()["memory_bytes"]
    # The controllers are in use beside it, so the first cannot move us back.
    first.close()
    assert machine.host.processes(service / OURS / "executor") == [os.getpid()]
    second.close()
    assert machine.host.tree() == ["service", f"service/{OURS}", f"service/{OURS}/executor"]


def test_other_processes_in_the_cgroup_are_named_as_the_obstacle(
    machine: Machine, as_user: None
) -> None:
    machine.delegated("/session.scope", SOMEBODY, SOMEBODY + 1)
    tree = find_cgroups(*machine.where("/session.scope"), machine.host)
    assert isinstance(tree, NoTree)
    assert "2 other processes are in" in tree.description
    assert any("systemd-run --user --scope -p Delegate=yes" in text for text in tree.remedies)
    # We are back where we were.
    assert os.getpid() in machine.host.processes(machine.host.root / "session.scope")
    assert machine.host.tree() == ["session.scope"]


def test_root_makes_its_own_place_where_its_cgroup_is_shared(
    machine: Machine, as_root: None
) -> None:
    machine.delegated("/session.scope", SOMEBODY)
    tree = find_cgroups(*machine.where("/session.scope"), machine.host)
    assert isinstance(tree, UnifiedTree)
    assert tree.directory.path == f"{machine.host.root}/{OURS}"
    assert os.getpid() in machine.host.processes(machine.host.root / "session.scope")
    tree.close()
    assert machine.host.tree() == ["session.scope"]


def test_host_without_the_memory_controller(machine: Machine, as_user: None) -> None:
    """CASES.md 113: the missing controller is named, and nothing pretends to be kept."""
    machine.delegated("/service", controllers="cpu pids")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    assert isinstance(tree, UnifiedTree)
    assert tree.enforcement() == {
        "memory_bytes": ABSENT, "processes": KEPT, "cpu_seconds": KEPT, "cpus": KEPT,
    }  # fmt: skip
    assert "no memory: it is not in" in tree.description
    assert any("cgroup_enable=memory" in text for text in tree.remedies)
    guest = tree.create("one", GuestCeilings(1 << 29, 256, 1))
    assert guest.usage() == CgroupUsage(1.5, None, 7, 0, 5)
    tree.close()


@pytest.mark.parametrize(
    ("liar", "field", "said"),
    [
        ("memory", "memory_bytes", "memory is not counted"),
        ("pids", "processes", "pids.max does not stop a fork"),
    ],
)
def test_limit_that_is_dead_configuration(
    machine: Machine, as_user: None, liar: str, field: str, said: str
) -> None:
    """CASES.md 154: a control file that takes the value and does nothing is not a limit."""
    machine.delegated("/service")
    machine.host.lies.add(liar)
    tree = find_cgroups(*machine.where("/service"), machine.host)
    assert tree.enforcement()[field] is ABSENT
    assert f"no {liar}: {said}" in tree.description
    tree.close()


def test_users_without_the_cpu_controller_are_told_how_to_get_it(
    machine: Machine, as_user: None
) -> None:
    machine.delegated("/service", controllers="memory pids")
    tree = find_cgroups(*machine.where("/service"), machine.host)
    assert tree.enforcement()["cpus"] is ABSENT
    assert any("Delegate=cpu cpuset io memory pids" in text for text in tree.remedies)
    tree.close()


@pytest.mark.usefixtures("as_user")
class TestCrippledHost:
    def check(self, tree: object, said: str) -> None:
        assert isinstance(tree, NoTree)
        assert set(tree.enforcement().values()) == {ABSENT}
        assert said in tree.description
        assert tree.remedies
        guest = tree.create("one", GuestCeilings(1 << 29, 256, 1))
        assert (guest.join_fds(), guest.usage()) == ([], CgroupUsage())
        tree.close()

    def test_no_controller(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path, "hugetlb")
        machine.delegated("/service", controllers="hugetlb")
        self.check(find_cgroups(*machine.where("/service"), machine.host), "no memory: it is not")
        assert machine.host.tree() == ["service"]

    def test_read_only(self, machine: Machine) -> None:
        machine.delegated("/service")
        machine.host.read_only = True
        self.check(find_cgroups(*machine.where("/service"), machine.host), "Read-only file system")

    def test_nothing_mounted(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.write_text("")
        self.check(find_cgroups(empty, empty), "cgroup v2 is not mounted")

    def test_no_proc(self, tmp_path: Path) -> None:
        none = tmp_path / "none"
        self.check(find_cgroups(none, none), "cgroup v2 is not mounted")

    def test_a_cgroup_out_of_view(self, machine: Machine) -> None:
        self.check(find_cgroups(*machine.where("/../../service"), machine.host), "no cgroups")

    def test_a_cgroup_that_is_not_there(self, machine: Machine) -> None:
        self.check(find_cgroups(*machine.where("/gone"), machine.host), "No such file")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what others own is left alone")
class TestDeadExecutors:
    DEAD = f"stockade-{os.getpid()}-1"

    def test_what_a_dead_executor_left_is_removed(self, machine: Machine, as_root: None) -> None:
        machine.host.cgroup(f"/{self.DEAD}/sandbox-1")
        machine.host.cgroup("/stockade-5000000-77.2/executor")
        machine.host.cgroup("/stockade-not-ours")
        machine.host.cgroup("/stockadeX-1-1")
        tree = find_cgroups(*machine.where("/"), machine.host)
        assert tree.leftovers == []
        tree.close()
        assert machine.host.tree() == ["stockade-not-ours", "stockadeX-1-1"]

    def test_what_stays_is_reported(self, machine: Machine, as_root: None) -> None:
        machine.host.cgroup(f"/{self.DEAD}/sandbox-1", SOMEBODY)
        tree = find_cgroups(*machine.where("/"), machine.host)
        assert tree.leftovers == [
            f"{machine.host.root}/{self.DEAD}/sandbox-1: Device or resource busy"
        ]
        tree.close()

    def test_a_living_executors_directory_is_left_alone(
        self, machine: Machine, as_root: None
    ) -> None:
        first = find_cgroups(*machine.where("/"), machine.host)
        first.create("sandbox-1", GuestCeilings(1 << 29, 256, 1))
        second = find_cgroups(*machine.where("/"), machine.host)
        assert f"{OURS}/sandbox-1" in machine.host.tree()
        second.close()
        first.close()

    def test_a_lock_protects_an_executor_of_another_pid_namespace(
        self, machine: Machine, as_root: None
    ) -> None:
        theirs = machine.host.cgroup("/stockade-5000000-77")
        fd = os.open(theirs, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        tree = find_cgroups(*machine.where("/"), machine.host)
        assert theirs.exists()
        assert "a process holds its lock" in tree.leftovers[0]
        tree.close()
        os.close(fd)


class TestMounts:
    def read(self, tmp_path: Path, cgroup: str, mounts: str) -> tuple[Hierarchy, ...]:
        (tmp_path / "c").write_text(cgroup)
        (tmp_path / "m").write_text(mounts)
        return read_hierarchies(tmp_path / "c", tmp_path / "m").legacy

    def test_controllers_mounted_together_are_one_hierarchy(self, tmp_path: Path) -> None:
        assert self.read(
            tmp_path,
            "4:cpu,cpuacct:/a\n3:memory:/b\n1:name=systemd:/c\n0::/c\n",
            "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "31 25 0:27 / /mnt/with\\040space rw shared:3 - cgroup cgroup rw,memory\n",
        ) == (
            Hierarchy(
                ("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/a"
            ),
            Hierarchy(("memory",), "/mnt/with space", "/mnt/with space/b"),
        )

    def test_a_container_sees_only_its_part(self, tmp_path: Path) -> None:
        assert self.read(
            tmp_path,
            "3:memory:/docker/x/y\n2:pids:/elsewhere\n1:cpu:/docker/x\n",
            "30 25 0:26 /docker/x /m ro - cgroup cgroup rw,memory\n"
            "31 25 0:27 /docker/x /p ro - cgroup cgroup rw,pids\n"
            "32 25 0:28 /docker/x /c ro - cgroup cgroup rw,cpu\n",
        ) == (
            Hierarchy(("memory",), "/m", "/m/y"),
            Hierarchy(("pids",), "/p", None),
            Hierarchy(("cpu",), "/c", "/c"),
        )

    def test_lines_that_make_no_sense_are_passed_over(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "x\n\n:\n", "x\n - \n1 2 3 - cgroup\n") == ()
