"""The connections of one sandbox: taken from its agent, handed to the proxy, ended in time."""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Final, Protocol

from stockade.executor.egress.channel import READER_LIMIT, ChannelTransport, Shares
from stockade.executor.egress.variables import PORT
from stockade.executor.link import Link
from stockade.executor.wire import Data, Event, Reset
from stockade.port import EgressEvent, EgressUse, SandboxLost

AHEAD: Final = 8
"""Channels that wait for a connection each; the kernel's backlog holds what comes meanwhile."""
MOST_LINGERING: Final = 64
"""Connections of which all was said on our side, and which the guest keeps."""
_AGAIN_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Proxy(Protocol):
    """Decides on connections and carries them: :class:`~stockade.egress.proxy.EgressProxy`."""

    @property
    def use(self) -> EgressUse:
        """So far."""
        ...

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. Raises nothing."""
        ...

    async def aclose(self) -> None:
        """End all of them."""
        ...


MakeProxy = Callable[[Callable[[EgressEvent], None]], Proxy]


class _Slot:
    """One channel: it waits for a connection, and then is that."""

    def __init__(self, accepting: "Accepting") -> None:
        self._accepting = accepting
        self.channel = 0
        self.transport: ChannelTransport | None = None

    def on_event(self, event: Event) -> None:
        """What came on it."""
        if self.transport is not None:
            self.transport.on_event(event)
        else:
            self._accepting.on_waiting(self, event)


class Accepting:
    """Keeps channels ahead, as long as fewer than ``most`` connections are open.

    One proxy serves one execution, so that counts and ceilings are that execution's own.
    """

    def __init__(self, link: Link, most: int, make_proxy: MakeProxy) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._most = most
        self._make_proxy = make_proxy
        self._proxy: Proxy | None = None
        self._waiting: set[_Slot] = set()
        self._open: set[ChannelTransport] = set()
        self._served: set[ChannelTransport] = set()
        self._lingering: dict[ChannelTransport, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._shares = Shares()
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        link.broken.add_done_callback(self._on_broken)
        # Now, and so before any program: none can take the port first.
        self._open_ahead()

    def __repr__(self) -> str:
        return f"<Accepting {len(self._open)} connections, {len(self._waiting)} waited for>"

    # --- one execution ---

    def begin(self, on_event: Callable[[EgressEvent], None]) -> None:
        """From now on connections are an execution's."""
        self._proxy = self._make_proxy(on_event)

    def cut(self) -> None:
        """End every connection now."""
        for transport in [*self._open, *self._lingering]:
            transport.abort()
        self._cancel_all()

    async def finish(self) -> EgressUse:
        """The execution has ended, and so does what is left of its connections."""
        proxy, self._proxy = self._proxy, None
        if proxy is None:
            return EgressUse()
        self.cut()
        ending = asyncio.ensure_future(proxy.aclose())
        _, late = await asyncio.wait({*self._tasks, ending}, timeout=_PATIENCE_SECONDS)
        if late:
            _log.error("%d connections of an egress proxy did not end", len(late))
        return proxy.use

    def _cancel_all(self) -> None:
        for task in self._tasks:
            # Once: a second time would cut short what the first one is tidying up.
            if not task.cancelling():
                task.cancel()

    def close(self) -> None:
        """Take no more, and end what there is."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self.cut()
        waiting, self._waiting = self._waiting, set()
        for slot in waiting:
            self._link.reset_channel(slot.channel, "no more connections")
        self._link.broken.remove_done_callback(self._on_broken)

    # --- connections ---

    def _open_ahead(self) -> None:
        if self._again is not None:
            return
        try:
            while (
                not self._closed
                and len(self._waiting) < AHEAD
                and len(self._waiting) + len(self._open) < self._most
            ):
                slot = _Slot(self)
                slot.channel = self._link.open("accept", struct.pack("!H", PORT), slot.on_event)
                self._waiting.add(slot)
        except SandboxLost:
            self._closed = True

    def on_waiting(self, slot: _Slot, event: Event) -> None:
        """What came on a channel that has no connection yet."""
        self._waiting.discard(slot)
        match event:
            case Data(_, data):
                self._link.consumed(slot.channel, len(data))
                self._take(slot)
                self._open_ahead()
            case Reset():
                # The agent has no room. It is asked again, but not without end at once.
                if self._again is None and not self._closed:
                    self._again = self._loop.call_later(_AGAIN_SECONDS, self._on_again)
            case _:
                self._link.reset_channel(slot.channel, "not a connection")

    def _on_again(self) -> None:
        self._again = None
        self._open_ahead()

    def _take(self, slot: _Slot) -> None:
        reader = asyncio.StreamReader(limit=READER_LIMIT, loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport = ChannelTransport(
            self._link, slot.channel, protocol, self._shares, self._on_change
        )
        slot.transport = transport
        self._open.add(transport)
        if self._proxy is None:  # no program runs, so nobody is there
            transport.abort()
            return
        self._served.add(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        task = self._loop.create_task(self._serve(self._proxy, transport, reader, writer))
        self._tasks.add(task)
        # Not in the task: it may be cancelled before it has begun.
        task.add_done_callback(lambda done: self._on_served(done, transport))

    async def _serve(
        self,
        proxy: Proxy,
        transport: ChannelTransport,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            await proxy.serve(reader, writer)
        except Exception:  # noqa: BLE001 - logged, and the connection is ended
            # One connection's fault is not the executor's.
            _log.exception("the egress proxy failed")
            transport.abort()

    def _on_served(self, task: "asyncio.Task[None]", transport: ChannelTransport) -> None:
        self._tasks.discard(task)
        self._served.discard(transport)
        transport.close()
        self._settle(transport)

    def _on_change(self, transport: ChannelTransport) -> None:
        self._lingering.pop(transport, None)
        if transport.lingering:
            self._lingering[transport] = None
            if len(self._lingering) > MOST_LINGERING:
                next(iter(self._lingering)).abort()
        self._settle(transport)

    def _settle(self, transport: ChannelTransport) -> None:
        """It counts no more when its proxy is done with it, and all was sent to the guest."""
        if transport not in self._served and (transport.over or transport.lingering):
            self._open.discard(transport)
            self._open_ahead()

    def _on_broken(self, reason: "asyncio.Future[str]") -> None:
        self._closed = True
        self._waiting.clear()
        for transport in [*self._open, *self._lingering]:
            transport.lost(ConnectionResetError(f"the sandbox was lost: {reason.result()}"))
        self._cancel_all()
