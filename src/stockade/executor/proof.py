"""What every tier does at a sandbox's start: hear its agent, hold its receipt against the promise."""

import asyncio
from collections.abc import Callable, Mapping

from stockade.executor.link import Link
from stockade.executor.pid_namespace import PidNamespaceBoundary
from stockade.port import Enforcement, Unavailable

Faults = Callable[[Mapping[str, object]], list[str]]
"""What a receipt lacks, a sentence each."""

KEPT_BY_THE_EXECUTOR: Mapping[str, Enforcement] = {
    "wall_seconds": Enforcement.ENFORCED,
    "open_files": Enforcement.PER_PROCESS,
    "disk_bytes": Enforcement.ENFORCED,
    "output_bytes": Enforcement.ENFORCED,
    "result_bytes": Enforcement.ENFORCED,
    "artefact_bytes": Enforcement.ENFORCED,
    "record_bytes": Enforcement.ENFORCED,
}
"""The limits that no tier and no host changes: by the executor's own counting, or by rlimit."""


async def check_receipt(link: Link, seconds: float, faults: Faults) -> None:
    """Raises SandboxLost where the agent is silent, :class:`Unavailable` where a wall is missing."""
    loop = asyncio.get_running_loop()
    deadline = loop.call_later(seconds, link.fail, f"the agent said nothing in {seconds:g} s")
    try:
        hello = await link.hello
    finally:
        deadline.cancel()
    receipt = hello["receipt"]
    assert isinstance(receipt, Mapping)
    missing = faults(receipt)
    if missing:
        raise Unavailable("the sandbox lacks what was promised: " + "; ".join(missing))


async def abandon(boundary: PidNamespaceBoundary, link: Link | None) -> None:
    """End a sandbox that did not get as far as a receipt."""
    boundary.kill()
    await boundary.gone()
    if link is not None:
        link.close()
    await boundary.release()
