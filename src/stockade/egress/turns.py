"""Turns of the loop, for work whose size a peer decides."""

import asyncio
from typing import Final

_AT_ONCE: Final = 32


class Turns:
    """What comes in one read may be thousands of steps, none of which waits for anything.

    All other connections would wait for them.
    """

    def __init__(self) -> None:
        self._steps = 0

    async def step(self) -> None:
        """One was done: now and then it is the others' turn."""
        self._steps += 1
        if self._steps % _AT_ONCE == 0:
            await asyncio.sleep(0)
