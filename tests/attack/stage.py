"""A stage for the whole battery: the host is watched from its beginning to after its end."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from stockade.cli.attack.host_checks import Traces
from stockade.cli.attack.run import Arena, open_arena
from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionEnvironment, Tier

T = TypeVar("T")


@dataclass
class Stage:
    """An event loop that lives as long as the arena, for tests that are no coroutines."""

    loop: asyncio.AbstractEventLoop
    before: Traces
    tier: Tier
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    opened: Arena | None = None

    def run(self, work: Callable[[Arena], Coroutine[object, object, T]]) -> T:
        async def with_arena() -> T:
            if self.opened is None:
                self.opened = await self.stack.enter_async_context(
                    open_arena(self._open, self.tier)
                )
            return await work(self.opened)

        return self.loop.run_until_complete(with_arena())

    def _open(self) -> AbstractAsyncContextManager[ExecutionEnvironment]:
        """As the command does; what a machine is emulated by is no matter here."""
        return open_local(
            warm=self.tier is Tier.MICROVM,
            pool=PoolPolicy.fixed(0),
            tiers={self.tier},
            allow_emulation=True,
        )

    def close(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.opened = None
