"""What runsc's processes are on the host: who, with which rights, and what they can see."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.executor import open_local
from stockade.port import ExecutionRequest, PythonSource, Tier

pytestmark = pytest.mark.tier("gvisor")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a plain user has one id for all")

# It asks for a priority that gVisor's kernel grants, and that must not reach the host.
_PROGRAM = PythonSource("import os, time\nos.nice(-20)\nprint('ready', flush=True)\ntime.sleep(30)")
_ON_THE_HOST = "supervisor"


@dataclass(frozen=True)
class Process:
    pid: int
    role: str
    status: dict[str, str]

    @property
    def uids(self) -> set[str]:
        return set(self.status["Uid"].split())

    def namespace(self, kind: str) -> str:
        return str(Path(f"/proc/{self.pid}/ns/{kind}").readlink())


def _of_sandboxes(root: int) -> Iterator[Process]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # another one of this host, which has ended
            children.setdefault(int(stat[1]), []).append(int(path.name))
    level = [(pid, _ON_THE_HOST) for pid in children.get(root, [])]
    while level:
        below = []
        for pid, role in level:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            yield Process(pid, role, dict(line.split(":\t", 1) for line in lines if ":\t" in line))
            below += [(child, _role(role, child)) for child in children.get(pid, [])]
        level = below


def _role(parent: str, pid: int) -> str:
    name = Path(f"/proc/{pid}/cmdline").read_bytes()
    if name.startswith(b"runsc-gofer"):
        return "gofer"
    return {_ON_THE_HOST: "init", "init": "runsc"}.get(parent, "kernel")


@asynccontextmanager
async def two_sandboxes() -> AsyncIterator[list[list[Process]]]:
    """The processes of each of two sandboxes that run a program."""
    async with open_local(warm=False, tiers={Tier.GVISOR}) as environment:
        found, seen, running = [], set[int](), []
        for _ in range(2):
            ready = asyncio.Event()

            async def said(_stream: object, _data: bytes, ready: asyncio.Event = ready) -> None:
                ready.set()

            running.append(await environment.start(ExecutionRequest(_PROGRAM), on_output=said))
            await asyncio.wait_for(ready.wait(), 30)
            processes = [p for p in _of_sandboxes(os.getpid()) if p.pid not in seen]
            seen |= {process.pid for process in processes}
            found.append(processes)
        yield found
        for execution in running:
            await execution.cancel()
            await execution.wait()


async def test_all_roles_are_looked_at() -> None:
    async with two_sandboxes() as sandboxes:
        for processes in sandboxes:
            roles = {process.role for process in processes}
            assert roles == {_ON_THE_HOST, "init", "runsc", "gofer", "kernel"}


@as_root
async def test_none_but_the_supervisor_is_root_and_no_two_sandboxes_share_an_id() -> None:
    async with two_sandboxes() as sandboxes:
        ids = [
            set[str]().union(*(p.uids for p in processes if p.role != _ON_THE_HOST))
            for processes in sandboxes
        ]
    assert all("0" not in of_one for of_one in ids)
    assert not ids[0] & ids[1]


@as_root
async def test_snapshots_can_be_reached_by_root_and_the_sandboxes_group_alone() -> None:
    async with two_sandboxes() as sandboxes:
        (init,) = (process for process in sandboxes[0] if process.role == "init")
        group = int(init.status["Gid"].split()[0])
        (folder,) = Path(f"/proc/{init.pid}/root/run/stockade/executors").iterdir()
        status = folder.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, group, 0o710)
        # Below it are files that all may read, so the folder is the wall.
        assert group != 0


async def test_the_guests_kernel_has_no_right_and_few_calls() -> None:
    async with two_sandboxes() as sandboxes:
        for process in (p for processes in sandboxes for p in processes):
            if process.role == "kernel":
                for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                    assert int(process.status[name], 16) == 0, (process, name)
            if process.role in ("kernel", "gofer"):
                assert process.status["Seccomp"] == "2"
            if process.role != _ON_THE_HOST:
                assert process.status["NoNewPrivs"] == "1"


async def test_none_but_the_supervisor_is_in_a_namespace_of_the_hosts() -> None:
    async with two_sandboxes() as sandboxes:
        for process in (p for processes in sandboxes for p in processes):
            if process.role != _ON_THE_HOST:
                for kind in ("user", "pid", "mnt", "net", "ipc", "uts"):
                    assert process.namespace(kind) != str(Path(f"/proc/self/ns/{kind}").readlink())
                devices = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()[2:]
                assert [line.partition(":")[0].strip() for line in devices] == ["lo"]


async def test_of_the_hosts_files_the_image_and_runscs_own_are_left() -> None:
    async with two_sandboxes() as sandboxes:
        for process in (p for processes in sandboxes for p in processes):
            if process.role in ("init", "runsc"):
                root = Path(f"/proc/{process.pid}/root")
                assert not (root / "etc/passwd").exists()
                assert {path.name for path in root.iterdir()} <= {
                    "dev", "etc", "lib", "proc", "run", "tmp", "usr",
                }  # fmt: skip
                assert {path.name for path in (root / "dev").iterdir()} <= {
                    "null", "urandom", "zero",
                }  # fmt: skip


async def test_a_crash_leaves_no_core_and_a_priority_is_the_guests_own() -> None:
    async with two_sandboxes() as sandboxes:
        for process in (p for processes in sandboxes for p in processes):
            assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (1, 1)
            # runsc itself makes some of them give way.
            assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 0


async def test_nothing_of_the_executors_is_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKADE_TEST_CANARY", "canary")
    async with two_sandboxes() as sandboxes:
        for process in (p for processes in sandboxes for p in processes):
            assert b"CANARY" not in Path(f"/proc/{process.pid}/environ").read_bytes()
            if process.role == "init":
                opened = [p.readlink() for p in Path(f"/proc/{process.pid}/fd").iterdir()]
                assert not [path for path in opened if str(path).startswith("socket:")]
