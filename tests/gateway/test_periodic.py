"""What a gateway does again and again does not end with one fault, in silence."""

import asyncio
from typing import Any

from sqlalchemy.exc import OperationalError

from stockade.gateway import service
from stockade.gateway.audit import Audit
from stockade.gateway.logs import open_log


async def test_an_anchor_that_failed_is_not_the_last() -> None:
    """The trail is only as safe as the last anchor."""
    asked: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    class Faulty(Audit):
        def __init__(self) -> None:
            pass

        def head(self) -> Any:
            loop.call_soon_threadsafe(asked.put_nowait, None)
            raise OperationalError("", {}, Exception("the database is locked"))

    anchoring = asyncio.create_task(service._anchor(Faulty(), 0.01, open_log()))
    async with asyncio.timeout(30):
        await asked.get()
        await asked.get()
    anchoring.cancel()
    await asyncio.wait([anchoring])


async def test_a_sweep_that_failed_is_not_the_last(monkeypatch: Any) -> None:
    """Else what expired would be kept for ever."""
    monkeypatch.setattr(service, "_SWEEP_SECONDS", 0.01)
    asked: asyncio.Queue[None] = asyncio.Queue()

    class Faulty:
        async def sweep(self) -> int:
            asked.put_nowait(None)
            raise OperationalError("", {}, Exception("the database is locked"))

    faulty: Any = Faulty()
    sweeping = asyncio.create_task(service._sweep(faulty, faulty, open_log()))
    async with asyncio.timeout(30):
        await asked.get()
        await asked.get()
    sweeping.cancel()
    await asyncio.wait([sweeping])
