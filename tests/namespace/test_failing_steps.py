"""CASES 82, 109: whichever step of making a sandbox fails, nothing runs and nothing stays taken.

The steps here are the executor's own. What fails below them, in the launcher and the set-up, is
in tests/doctor/test_crippled_hosts.py: on hosts that lack what a step needs.
"""

import glob
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.kit import command, descendants, descriptors, until

from stockade.executor import PoolPolicy, open_local
from stockade.executor.affinity import CpuRotation
from stockade.executor.cgroups import CgroupError, GuestCeilings
from stockade.executor.link import Link
from stockade.executor.namespace import tier as namespace_tier
from stockade.executor.namespace.identity import IdentitySlice, SoleSlice
from stockade.executor.namespace.tier import NamespaceTier
from stockade.executor.namespace.zygote import Zygote
from stockade.port import SandboxLost, Tier, Unavailable

pytestmark = [pytest.mark.plain_user, pytest.mark.tier("namespace")]

ALWAYS_ALIVE = 2  # the launcher and the warm interpreter
FULL = OSError(24, "Too many open files")


def raising(error: Exception) -> Callable[..., Any]:
    def step(*_: object) -> None:
        raise error

    return step


def after(step: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """The clone lives when the executor hears of the failure, and has no handle of it."""

    async def failing(*arguments: Any) -> int:
        os.close(await step(*arguments))
        raise SandboxLost("the zygote gave no handle")

    return failing


async def cgroup_tree(tier: NamespaceTier) -> type:
    return type(tier._cgroups)


async def cgroup_of_a_guest(tier: NamespaceTier) -> type:
    one = tier._cgroups.create("sandbox-probe", GuestCeilings(1 << 30, 10, 1.0))
    await one.remove()
    return type(one)


# What to break, and how.
STEPS: dict[str, tuple[Any, str, object]] = {
    "its cgroup": (cgroup_tree, "create", raising(CgroupError("no space left"))),
    "its CPUs": (CpuRotation, "choose", raising(FULL)),
    "its wire": (os, "pipe", raising(FULL)),
    "the clone": (Zygote, "clone", raising(SandboxLost("the zygote is gone"))),
    "the clone's handle": (Zygote, "clone", after(Zygote.clone)),
    "its first word": (Link, "_readable", lambda _: None),
    "its receipt": (namespace_tier, "faults", lambda *_: ["no_new_privs is not set"]),
    "its counters": (cgroup_of_a_guest, "open_counters", raising(FULL)),
}


def cgroups() -> list[str]:
    above = f"/sys/fs/cgroup/**/stockade-{os.getpid()}-*"
    return glob.glob(f"{above}/sandbox-*", recursive=True)  # noqa: PTH207


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    where, name, broken = STEPS[step]
    kind: Any = IdentitySlice if os.geteuid() == 0 else SoleSlice
    taken: list[int] = []
    acquire, release = kind.acquire, kind.release

    def acquired(self: Any) -> int:
        taken.append(acquire(self))
        return taken[-1]

    def released(self: Any, offset: int) -> None:
        release(self, offset)
        taken.remove(offset)

    monkeypatch.setattr(kind, "acquire", acquired)
    monkeypatch.setattr(kind, "release", released)
    opened: list[str] = []
    monkeypatch.setattr(Link, "open", note(opened, Link.open))
    async with open_local(pool=PoolPolicy.fixed(0), tiers={Tier.NAMESPACE}) as environment:
        assert (await environment.run(command("true"))).ok
        assert opened == ["program"]
        await until(lambda: taken == [] and cgroups() == [], 5)
        before = descriptors()
        with monkeypatch.context() as patch:
            if where in (cgroup_tree, cgroup_of_a_guest):
                where = await where(environment._tiers.opened(Tier.NAMESPACE))
            patch.setattr(where, name, broken)
            if step == "its first word":
                patch.setattr(namespace_tier, "HELLO_SECONDS", 0.1)
            for _ in range(3):
                with pytest.raises((Unavailable, SandboxLost)):
                    await environment.run(command("true"))
        # The guest was never asked to start anything.
        assert opened == ["program"]
        await until(lambda: len(descendants()) == ALWAYS_ALIVE, 5)
        await until(lambda: taken == [] and cgroups() == [], 5)
        assert len(descriptors()) <= len(before), set(descriptors().values()) - {*before.values()}
        assert (await environment.run(command("true"))).ok


def note(names: list[str], step: Callable[..., int]) -> Callable[..., int]:
    def noting(self: Link, service: str, *arguments: Any) -> int:
        names.append(service)
        return step(self, service, *arguments)

    return noting
