"""What the openings of tiers with a kernel of their own have in common."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from stockade.executor.namespace.identity import Identities
from stockade.executor.owners import Owners
from stockade.executor.sandbox import Profile
from stockade.executor.snapshot_tier import SnapshotTier
from stockade.executor.state import StateFolder

T = TypeVar("T")
Opened = TypeVar("Opened", bound=SnapshotTier[Any])


async def open_and_prove(
    identities: Identities,
    first: Profile,
    build: Callable[[StateFolder, Owners | None], Awaitable[Opened]],
) -> Opened:
    """Build a tier on a folder and ids of its own, and start its first sandbox.

    Raises what that raises, and leaves nothing then, nor where it is cancelled.
    """
    tier = await open_unproven(identities, build)
    try:
        await tier.prove(first)
    except BaseException:
        # What is being started ends before its folder and its ids are given back.
        await asyncio.shield(tier.close())
        raise
    return tier


async def open_unproven(
    identities: Identities, build: Callable[[StateFolder, Owners | None], Awaitable[Opened]]
) -> Opened:
    """The same, of a tier whose first sandbox is somebody's already."""
    state = StateFolder()
    owners = None
    try:
        if identities.distinct:
            owners = Owners(identities)
            state.share_with(owners.group)
        return await build(state, owners)
    except BaseException:
        state.close()
        if owners is not None:
            owners.close()
        raise


async def in_thread(find: Callable[[], T], let_go: Callable[[T], None] | None = None) -> T:
    """What it finds. A thread is not cancelled: who gives up waits for it, for it has a process.

    ``let_go``: of what was found too late.
    """
    finding = asyncio.create_task(asyncio.to_thread(find))
    try:
        return await asyncio.shield(finding)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            found = await finding
            if let_go is not None:
                let_go(found)
        raise
