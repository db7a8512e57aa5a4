"""The program of the inner machine's host: Stockade with KVM, and what came of it, as JSON.

It runs on the image's own Python, beside the package ``stockade``, and imports nothing else.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import termios
import time
import traceback
import tty
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

os.environ["STOCKADE_QEMU"] = "/workspace/qemu/qemu"
os.environ["STOCKADE_IMAGES"] = "/workspace/images"
os.environ["STOCKADE_SCRATCH"] = "/run/scratch"

from stockade.executor import kvm
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import Execution, ExecutionRequest, Limits, PythonSource, SandboxRequest, Tier

_ANSWERS: Final = Path("/dev/ttyS1")
_LONGEST_COMPLAINT: Final = 4000
_COPIES: Final = 2
_PROBES: Final = 5
_PROGRAM: Final = """
import os, time
print(6 * 7, os.urandom(16).hex(), os.uname().release, time.time())
"""
_ENDLESS: Final = "while True: pass"
_WALL_SECONDS: Final = 2.0

_began = time.monotonic()


def tell(words: str) -> None:
    """On the console, for whoever wonders where it stands."""
    print(f"inside: {time.monotonic() - _began:.1f} s: {words}", file=sys.stderr, flush=True)  # noqa: T201


async def use_copies(answer: dict[str, Any]) -> None:
    """Open the tier as its users do, run a program in each of some copies, close it."""
    # Nothing ahead of need: what is made is what is looked at.
    pool = PoolPolicy(floor=0, ceiling=0)
    async with open_local(tiers={Tier.MICROVM}, pool=pool, preloaded=("json",)) as stockade:
        tell(f"open: {stockade!r}")
        async with AsyncExitStack() as stack:
            sessions = []
            for _ in range(_COPIES):
                sessions.append(await stack.enter_async_context(await stockade.open_session()))
                tell("a copy")
            answer["machines"] = machines()
            answer["executions"] = []
            for session in sessions:
                execution = await session.run(ExecutionRequest(PythonSource(_PROGRAM)))
                answer["executions"].append(describe(execution))
        hurried = SandboxRequest(limits=Limits(wall_seconds=_WALL_SECONDS))
        endless = await stockade.run(ExecutionRequest(PythonSource(_ENDLESS)), hurried)
        answer["endless"] = describe(endless)


async def use_dedicated(answer: dict[str, Any]) -> None:
    """One job in a machine that is booted for it."""
    make_scratch()
    async with open_local(tiers={Tier.VM}, preloaded=("json",)) as stockade:
        tell(f"open: {stockade!r}")
        wanted = SandboxRequest(tier=Tier.VM)
        execution = await stockade.run(ExecutionRequest(PythonSource(_PROGRAM)), wanted)
        answer["executions"] = [describe(execution)]
        assert execution.attestation is not None
        answer["accelerator"] = execution.attestation.accelerator


def make_scratch() -> None:
    """A disk that is no memory: that of a dedicated machine is a file on one."""
    place = Path(os.environ["STOCKADE_SCRATCH"])
    place.mkdir()
    subprocess.run(["/usr/sbin/mke2fs", "-q", "-t", "ext4", "/dev/vdc"], check=True)
    # The image has no mount(8).
    if ctypes.CDLL(None).mount(b"/dev/vdc", bytes(place), b"ext4", 0, None) != 0:
        raise OSError("the scratch disk cannot be mounted")


async def use_stockade(tier: str, answer: dict[str, Any]) -> None:
    """And what is left of it."""
    before = what_is_here()
    await (use_dedicated if tier == Tier.VM else use_copies)(answer)
    tell("closed")
    answer["left"] = sorted(what_is_here() - before)


def wanted_tier() -> str:
    """From the kernel's command line."""
    words = Path("/proc/cmdline").read_text().split()
    return next(word.partition("=")[2] for word in words if word.startswith("tier="))


def describe(execution: Execution) -> dict[str, Any]:
    """What is asserted of a record, and the time when it was there."""
    tell(f"an execution: {execution.outcome}")
    return {
        "outcome": str(execution.outcome),
        "detail": execution.detail,
        "tier": str(execution.tier),
        "stdout": execution.stdout.text(),
        "stderr": execution.stderr.text()[-1000:],
        "enforcement": {name: str(kept) for name, kept in execution.enforcement.items()},
        "cpu_seconds": execution.usage.cpu_seconds,
        "now": time.time(),
    }


def why_no_kvm() -> str | None:
    """As the executor asks; anew where it took long: what is run the first time is translated."""
    why = None
    for _ in range(_PROBES):
        if (why := kvm.why_no_kvm()) is None:
            break
    return why


def machines() -> list[dict[str, Any]]:
    """The VMMs that live, and what the kernel says of each: none of it is QEMU's word."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            if "-nodefaults" not in words or "stockade-supervise" in words[0]:
                continue
            opened = [str(each.readlink()) for each in (process / "fd").iterdir()]
            lines = (process / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found.append(
            {
                "accelerator": words[words.index("-accel") + 1].partition(",")[0],
                "cpu": words[words.index("-cpu") + 1],
                "restored": "-incoming" in words,
                "kvm": sorted(each for each in opened if each.startswith("anon_inode:kvm")),
                "status": {
                    name: status[name]
                    for name in ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
                },
            }
        )
    return found


def what_is_here() -> set[str]:
    """Of processes, cgroups, files and descriptors: what a sandbox could leave behind."""
    here = {f"process {path.name}: {name_of(path)}" for path in Path("/proc").glob("[0-9]*")}
    # The kernel's own threads come and go.
    here = {each for each in here if not each.endswith(": ")}
    for folder in ("/sys/fs/cgroup", "/run/stockade/executors", "/tmp"):
        for root, _, names in os.walk(folder):
            here.add(root)
            here |= {f"{root}/{name}" for name in names if not folder.startswith("/sys")}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            here.add(f"descriptor {descriptor.name}: {descriptor.readlink()}")
        except OSError:
            continue  # the one that the folder was read by
    return here


def name_of(process: Path) -> str:
    """How it was started; nothing, for a thread of the kernel's and for what has ended."""
    try:
        return (process / "cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def send(answer: dict[str, Any]) -> None:
    """One line, as it is."""
    with _ANSWERS.open("wb", buffering=0) as port:
        tty.setraw(port.fileno())
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[port.write(data) :]
        termios.tcdrain(port.fileno())


def main() -> None:
    """Whatever happens is said."""
    answer: dict[str, Any] = {"kernel": os.uname().release}
    try:
        answer["why_no_kvm"] = why_no_kvm()
        tell(f"KVM: {answer['why_no_kvm'] or 'works'}")
        # What was to be seen of the probe was seen. Now a busy machine may take its time: to be
        # slow is what this CPU is, and is no reason for the tier to refuse it.
        kvm._LONGEST_SECONDS = 10.0  # type: ignore[misc]
        asyncio.run(use_stockade(wanted_tier(), answer))
    except BaseException:  # noqa: BLE001 - it is told where it can be read
        answer["failure"] = traceback.format_exc()[-_LONGEST_COMPLAINT:]
        tell(answer["failure"])
    answer["seconds"] = time.monotonic() - _began
    send(answer)


if __name__ == "__main__":
    main()
