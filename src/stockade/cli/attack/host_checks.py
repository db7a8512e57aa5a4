"""What is watched on the host around an attack."""

import asyncio
import contextlib
import hashlib
import os
import resource
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import stockade
from stockade.port import Execution

_RSS_GROWTH_KIB = 64 * 1024
"""How much the executor's own memory may grow by one attack."""
_SLICE_IDS = 4097
_SETTLE_SECONDS = 5.0
_NATIVE = Path(stockade.__file__).parent / "executor" / "namespace" / "native"


@dataclass(slots=True)
class HostWatch:
    """Traps on the host, and what was caught since the last look."""

    folder: Path
    secret: Path
    canaries: tuple[str, ...]
    facts: dict[str, object]
    caught: list[str] = field(default_factory=list)
    baseline: set[int] = field(default_factory=set)
    ids: range = range(0)
    _digests: dict[str, str] = field(default_factory=dict)
    _peak: int = 0

    def arm(self) -> None:
        """Note how things are, before an attack."""
        self.caught.clear()
        self._peak = _peak_kib()
        if not self._digests:
            self._digests = self._digest()

    async def know_processes(self) -> None:
        """Note which processes the executor has while no sandbox lives."""
        # The last one's may still be on their way out.
        self.baseline, before = _descendants(), set[int]()
        while self.baseline != before:
            await asyncio.sleep(0.1)
            self.baseline, before = _descendants(), self.baseline
        own = os.geteuid()
        ids = {uid for pid in self.baseline if (uid := _uid(pid)) not in (None, own)}
        if ids:
            self.ids = range(min(ids), min(ids) + _SLICE_IDS)

    def sandbox_processes(self) -> set[int]:
        """Processes of sandboxes that live now."""
        found = _descendants()
        if self.ids:
            found |= {pid for pid in _pids() if _uid(pid) in self.ids}
        return {pid for pid in found - self.baseline if _state(pid) not in ("Z", "X", "")}

    def look(self, executions: Iterable[Execution]) -> list[str]:
        """What an attack left or took, a sentence each. Call it when the record is there."""
        found = list(self.caught)
        for name, digest in self._digest().items():
            if digest != self._digests.get(name):
                found.append(f"{name} was changed")
        growth = _peak_kib() - self._peak
        if growth > _RSS_GROWTH_KIB:
            found.append(f"the executor's memory grew by {growth} KiB")
        if sorted(self.folder.iterdir()) != [self.secret]:
            found.append(f"files were made in {self.folder}")
        for execution in executions:
            text = b"\0".join(
                (
                    execution.stdout.content,
                    execution.stderr.content,
                    execution.result or b"",
                    *(artefact.data for artefact in execution.artefacts),
                )
            )
            if any(canary.encode() in text for canary in self.canaries):
                found.append("a secret of the host came out")
        return found

    async def settled(self) -> list[str]:
        """Wait until the executor has cleaned up; what then still lives is a finding."""
        end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while left := self.sandbox_processes():
            if asyncio.get_running_loop().time() > end:
                return [f"{len(left)} processes live on: {sorted(left)[:5]}"]
            await asyncio.sleep(0.02)
        return []

    def _digest(self) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(_NATIVE.iterdir())
            if path.is_file() and os.access(path, os.X_OK)
        }


@contextlib.asynccontextmanager
async def watch_host() -> AsyncIterator[HostWatch]:
    """Set the traps; open the environment within, so that it inherits the canary."""
    token = secrets.token_hex(8)
    canaries = (f"canary-{secrets.token_hex(16)}", f"canary-{secrets.token_hex(16)}")
    secret = _make_secret(canaries[0])
    folder = secret.parent
    os.environ["STOCKADE_ATTACK_CANARY"] = canaries[1]
    watch = HostWatch(folder, secret, canaries, {})

    def trap(name: str) -> object:
        async def caught(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            watch.caught.append(f"{name} of the host was reached")
            writer.close()

        return caught

    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for host in ("127.0.0.1", "::1"):
            try:
                server = await asyncio.start_server(trap(host), host, 0)  # type: ignore[arg-type]
            except OSError:
                continue  # a host without IPv6
            await stack.enter_async_context(server)
            ports.append(server.sockets[0].getsockname()[1])
        name = f"stockade-attack-{token}"
        await stack.enter_async_context(
            await asyncio.start_unix_server(trap("a socket"), "\0" + name)  # type: ignore[arg-type]
        )
        watch.facts.update(
            secret=str(secret),
            ports=ports,
            abstract=name,
            addresses=_own_addresses(),
            host_pids=[pid for pid in (os.getpid(), os.getppid()) if pid > 50],
            agent_folder="/opt/stockade",
            plain_user=os.geteuid() != 0,
            uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
            kernel_says=_kernel_says(),
            names=[str(Path(stockade.__file__).parent), f"stockade-{os.getpid()}-"],
        )
        try:
            yield watch
        finally:
            # Gone already where another watch ended in this process.
            os.environ.pop("STOCKADE_ATTACK_CANARY", None)
            shutil.rmtree(folder)


def _kernel_says() -> dict[str, str]:
    """Digests of what the host's kernel tells of itself, for a guest to compare its own with."""
    paths = ("cmdline", "version", "sys/kernel/random/boot_id", "sys/kernel/hostname")
    found = {}
    for path in (Path("/proc", name) for name in paths):
        with contextlib.suppress(OSError):
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _make_secret(text: str) -> Path:
    """A file that every user of the host can read."""
    folder = Path(tempfile.mkdtemp(prefix="stockade-attack-"))
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.write_text(text)
    return secret


@dataclass(frozen=True, slots=True)
class Traces:
    """What an executor could leave on a host."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    processes: frozenset[int]
    files: frozenset[str]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> "Traces":
        """What of this process is there now."""
        own = f"stockade-{os.getpid()}-"
        cgroups = [
            str(path)
            for root in Path("/sys/fs/cgroup").glob("*")
            if root.is_dir()
            for path in (*root.glob("stockade-*"), *root.glob("*/stockade-*"))
            if own in path.name
        ]
        # Their key and number: the rest of a line changes with who uses them, a database say.
        segments = [
            f"{kind.name} {' '.join(line.split()[:2])}"
            for kind in Path("/proc/sysvipc").glob("*")
            for line in kind.read_text().splitlines()[1:]
        ]
        return cls(
            frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
            frozenset(cgroups),
            frozenset(_descendants()),
            frozenset(str(p) for p in (*_shm(), *Path(tempfile.gettempdir()).glob("stockade-*"))),
            frozenset(segments),
        )

    def added(self, before: "Traces") -> list[str]:
        """What is there now that was not before."""
        return [
            f"{name}: {sorted(map(str, added))[:3]}"
            for name in ("mounts", "cgroups", "processes", "files", "segments")
            if (added := getattr(self, name) - getattr(before, name))
        ]


def _shm() -> list[Path]:
    folder = Path("/dev/shm")  # noqa: S108 - looked at, not used
    return list(folder.iterdir()) if folder.is_dir() else []


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _own_addresses() -> list[str]:
    """This host's address on the way out; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [sock.getsockname()[0]]


def _pids() -> set[int]:
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, ... (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _uid(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _descendants() -> set[int]:
    parents = {pid: int(_stat(pid)[1]) for pid in _pids()}
    found: set[int] = set()
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found |= level
    return found
