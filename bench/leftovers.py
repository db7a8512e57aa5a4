"""What a thousand executions leave behind. It must be nothing."""

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.processes import descendants
from bench.report import Promise, Report, Table
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import ExecutionRequest, Limits, Outcome, PythonSource, SandboxRequest, Tier

CALLERS = 4
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_SECONDS = 10.0
# Where something of ours may lie, beside the temporary folder, which is this run's own.
_PLACES = [Path(place) for place in ("/tmp", "/var/tmp", "/run", "/dev/shm")]

_ORDINARY = (ExecutionRequest(PythonSource("print(1)")), Outcome.OK)
# Each with what it would leave, were it let: a process of its own session, files, a full pipe.
_ESCAPING = (
    ExecutionRequest(
        PythonSource(
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        time.sleep(600)\n"
            "    os._exit(0)\n"
            "open('/tmp/file', 'w').write('x' * 100000)\n"
        )
    ),
    Outcome.OK,
)
_ENDLESS = (ExecutionRequest(PythonSource("while True: pass")), Outcome.WALL_CLOCK)
_SHORT = SandboxRequest(limits=Limits(wall_seconds=0.05))

Census = dict[str, frozenset[str]]
"""Kind to the names of what there is of it."""


async def measure(executions: int = 1000) -> Report:
    """One in twenty tries to leave a process behind, as many never end by themselves."""
    with own_temporary_folder() as folder:
        adopt_orphans()
        before = census(folder)
        async with open_local(pool=PoolPolicy.fixed(4), tiers={Tier.NAMESPACE}) as environment:
            await _run(environment, 1)
            # The parked are others than before: their number must be the same, no more.
            warm = _sizes(await _settled(environment, folder, None))
            await _run(environment, executions)
            used = _sizes(await _settled(environment, folder, warm))
        after = await closed(folder, before)
    new = {kind: sorted(after[kind] - before[kind]) for kind in before}
    rows = tuple(
        (
            kind,
            str(len(before[kind])),
            str(warm[kind]),
            str(used[kind]),
            str(len(before[kind]) + len(new[kind])),
        )
        for kind in before
    )
    left = [f"{kind}: {', '.join(names)}" for kind, names in new.items() if names]
    left += [
        f"{kind} while open: {used[kind]}, not {warm[kind]}"
        for kind in warm
        if used[kind] > warm[kind]
    ]
    return Report(
        "leftovers",
        (
            Table(
                f"What {executions} executions leave behind",
                ("what", "before", "open, after 1", f"open, after {executions}", "closed"),
                rows,
                (
                    "Processes are those below this one, which adopts orphans; descriptors its own; "
                    "the rest is the host's, which should be idle. One execution in twenty leaves "
                    "a detached process, as many are ended by their wall clock.",
                    *(f"Left: {line}" for line in left),
                ),
            ),
        ),
        (Promise("left behind by executions", "nothing", _kinds(left) or "nothing", not left),),
        {"before": _sizes(before), "open": warm, "open_after": used, "left": new},
    )


async def _run(environment: LocalEnvironment, executions: int) -> None:
    numbers = iter(range(1, executions + 1))

    async def call() -> None:
        for number in numbers:
            (request, expected), sandbox = _ORDINARY, SandboxRequest()
            if number % 20 == 0:
                (request, expected), sandbox = _ENDLESS, _SHORT
            elif number % 10 == 0:
                request, expected = _ESCAPING
            execution = await environment.run(request, sandbox)
            if execution.outcome is not expected:
                raise RuntimeError(f"{execution.outcome}: {execution.detail}")

    await asyncio.gather(*(call() for _ in range(CALLERS)))


async def _settled(
    environment: LocalEnvironment, folder: Path, wanted: dict[str, int] | None
) -> Census:
    """The census once clean-up and refill are over, or patience is."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        await asyncio.sleep(0.3)
        await environment.warm_up()
        found = census(folder)
        if wanted is None or time.monotonic() > deadline:
            return found
        if all(size <= wanted[kind] for kind, size in _sizes(found).items()):
            return found


async def closed(folder: Path, before: Census) -> Census:
    """Namespaces and cgroups end in the kernel's own time."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        _reap_adopted()
        found = census(folder)
        if time.monotonic() > deadline or all(found[kind] <= before[kind] for kind in before):
            return found
        await asyncio.sleep(0.1)


def census(folder: Path) -> Census:
    """What there is now, of what an executor could leave behind."""
    return {
        "processes": frozenset(map(str, descendants())),
        "mounts": frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroup directories": frozenset(_cgroup_directories()),
        "network namespaces": frozenset(_network_namespaces()),
        "open descriptors": frozenset(_descriptors()),
        "temporary files": frozenset(_temporary_files(folder)),
    }


def _sizes(census: Census) -> dict[str, int]:
    return {kind: len(names) for kind, names in census.items()}


def _cgroup_directories() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if source.split()[0] in ("cgroup", "cgroup2"):
            for path, _, _ in os.walk(fields.split()[4]):
                yield path


def _network_namespaces() -> Iterator[str]:
    listed = subprocess.run(
        ["lsns", "--type", "net", "--json", "--output", "NS"],
        capture_output=True,
        check=True,
    )
    for namespace in json.loads(listed.stdout)["namespaces"]:
        yield str(namespace["ns"])


def _descriptors() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield f"{entry.name} {entry.readlink()}"
        except FileNotFoundError:  # the one that lists
            continue


def _temporary_files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        yield str(path)
    for place in _PLACES:
        if place.is_dir():
            yield from map(str, place.glob("*stockade*"))


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[Path]:
    old = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="stockade-bench-") as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = None
            if old is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = old


def _kinds(left: list[str]) -> str:
    return ", ".join(line.partition(":")[0] for line in left)


def adopt_orphans() -> None:
    """Nothing below us can leave: prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _reap_adopted() -> None:
    # The executor is closed: what it started itself it has waited for.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
