"""What the commands have of this machine; tests hand in another one as click's ``ctx.obj``."""

import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stockade.cli.service import Service
    from stockade.executor.doctor.report import Report
    from stockade.port import ExecutionEnvironment, Tier


def open_local(tiers: "Collection[Tier]") -> "AbstractAsyncContextManager[ExecutionEnvironment]":
    """The executor of this machine, for one call that these tiers may serve."""
    from stockade import executor

    return executor.open_local(warm=False, tiers=tiers, allow_emulation=emulation_allowed())


def open_for_calls(
    tiers: "Collection[Tier]",
) -> "AbstractAsyncContextManager[ExecutionEnvironment]":
    """The same for many calls, one after another: a machine is a copy, and not booted each time."""
    from stockade import executor
    from stockade.port import Tier

    return executor.open_local(
        warm=set(tiers) == {Tier.MICROVM},
        pool=executor.PoolPolicy.fixed(0),
        tiers=tiers,
        allow_emulation=emulation_allowed(),
    )


def emulation_allowed() -> bool:
    """Whether machines that software emulates, which are no boundary, may be started."""
    return os.environ.get("STOCKADE_ALLOW_EMULATION") == "1"


def examine() -> "Report":
    """What this machine can start."""
    from stockade.executor import doctor

    return doctor.examine(allow_emulation=emulation_allowed())


class Host(NamedTuple):
    """Where sandboxes come from, and the three descriptors."""

    open_environment: "Callable[[Collection[Tier]], AbstractAsyncContextManager[ExecutionEnvironment]]" = open_local
    examine: "Callable[[], Report]" = examine
    stdin: int = 0
    stdout: int = 1
    stderr: int = 2
    open_for_calls: "Callable[[Collection[Tier]], AbstractAsyncContextManager[ExecutionEnvironment]]" = open_for_calls
    service: "Service | None" = None
    """Where they come from, if not from here."""
