"""Trying a tier: a sandbox is started and a program runs in it.

The presence of a device, a file or a kernel setting proves nothing and is not asked for.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

from stockade.executor.cgroups import CgroupError
from stockade.executor.doctor.report import TierStatus
from stockade.executor.kvm import why_no_kvm
from stockade.executor.local import open_local
from stockade.port import (
    Enforcement,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    PythonSource,
    SandboxRequest,
    StockadeError,
    Tier,
    Unavailable,
)
from stockade.port.policy import STRENGTH

# Longer than what has a deadline of its own inside, so that those speak first; but for a boot's,
# which is for the slowest host that there may be.
PATIENCE_SECONDS = 150.0

OpenEnvironment = Callable[[], AbstractAsyncContextManager[ExecutionEnvironment]]

# What it prints tells that it ran, and on which Python. The sum is not in the source.
_PROGRAM = "import sys; print(6 * 7, '.'.join(map(str, sys.version_info[:3])))"
_EXPECTED = "42"
_BUILT_ON = {
    Tier.NAMESPACE: f"namespaces and seccomp of Linux {os.uname().release}",
    Tier.GVISOR: "runsc, a kernel in user space",
    Tier.MICROVM: "a machine of its own",
    Tier.VM: "a machine booted for one job, with a disk of its own",
    Tier.WASM: "WebAssembly within the namespace tier's walls, for who names it",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of starting one tier."""

    status: TierStatus
    enforcement: Mapping[str, Enforcement] = field(default_factory=dict)
    python: str | None = None
    """The version of the Python inside; ``None`` where none was started."""


async def probe_tiers(
    tiers: Collection[Tier] = STRENGTH, *, allow_emulation: bool = False
) -> dict[Tier, TierStatus]:
    """Each of these, by default all that there are, to what came of starting it."""
    return {
        tier: (await try_tier(tier, allow_emulation=allow_emulation)).status
        for tier in STRENGTH
        if tier in tiers
    }


async def try_tier(
    tier: Tier, open_environment: OpenEnvironment | None = None, *, allow_emulation: bool = False
) -> Trial:
    """Run one program in a new sandbox of the tier."""
    execution: Execution | None = None
    failure = ""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with (
                open_environment or partial(_open_cold, tier, allow_emulation)
            )() as environment:
                execution = await environment.run(
                    ExecutionRequest(PythonSource(_PROGRAM)),
                    SandboxRequest(tenant="doctor", limits=Limits(wall_seconds=10.0), tier=tier),
                )
    except TimeoutError:
        failure = f"no answer within {PATIENCE_SECONDS:g} s"
    except Unavailable as error:
        failure = error.missing.get(tier, str(error))
    except (StockadeError, CgroupError, OSError) as error:
        failure = str(error)
    if execution is None:
        return _failed(tier, failure)
    words = execution.stdout.text().split()
    if not execution.ok or words[:1] != [_EXPECTED] or len(words) != 2:
        said = execution.stderr.text().strip()[-300:]
        return _failed(
            tier,
            f"a sandbox came up, but its program ended as {execution.outcome}: "
            f"{execution.detail}" + (f"; it said: {said}" if said else ""),
        )
    detail = _BUILT_ON[tier]
    emulated = tier in (Tier.MICROVM, Tier.VM) and why_no_kvm() is not None
    if emulated:
        detail += ", in software emulation: no boundary, and only for who names the tier"
    if failure:
        detail += f"; but its end left something behind: {failure}"
    return Trial(
        TierStatus(tier, True, detail, execution.timings.waited * 1000, emulated),
        execution.enforcement,
        words[1],
    )


def _open_cold(
    tier: Tier, allow_emulation: bool
) -> AbstractAsyncContextManager[ExecutionEnvironment]:
    return open_local(warm=False, tiers={tier}, allow_emulation=allow_emulation)


def _failed(tier: Tier, why: str) -> Trial:
    return Trial(TierStatus(tier, False, why))
