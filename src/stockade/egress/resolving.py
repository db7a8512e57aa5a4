"""Names to addresses, once for each connection: what was checked is what is connected to."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final, Protocol

from stockade.egress.names import Address

MAX_ANSWERS: Final = 64
_THREADS: Final = 8
_WAITING: Final = 64


class ResolveFailed(Exception):
    """There is no answer; the message is a sentence about the name."""

    def __init__(self, detail: str, *, late: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.late = late


class Resolver(Protocol):
    """Knows the addresses of names."""

    async def resolve(self, name: str) -> Sequence[Address]:
        """All of them, the best one first. Raises :class:`ResolveFailed`."""
        ...


class SystemResolver:
    """The host's own resolver. One may serve all proxies of a process."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        # Of our own: names that hang shall not use up the loop's threads.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")
        self._waiting = 0

    async def resolve(self, name: str) -> Sequence[Address]:
        """See :class:`Resolver`."""
        if self._waiting >= _WAITING:
            raise ResolveFailed(f"too many names are being resolved to resolve {name}", late=True)
        self._waiting += 1
        asked = self._threads.submit(_ask, name)
        asked.add_done_callback(self._loop_done(asyncio.get_running_loop()))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(asked)
        except TimeoutError:
            raise ResolveFailed(
                f"{name} was not resolved within {self._seconds:g} s", late=True
            ) from None
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ResolveFailed(f"{name} cannot be resolved: {why}") from None

    def close(self) -> None:
        """Let go of the threads. Not waited for: the resolver may hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _loop_done(self, loop: asyncio.AbstractEventLoop) -> "_Done":
        def done(_future: object) -> None:
            try:
                loop.call_soon_threadsafe(self._one_less)
            except RuntimeError:
                self._one_less()  # the loop is closed, and nobody counts any more

        return done

    def _one_less(self) -> None:
        self._waiting -= 1


class _Done(Protocol):
    def __call__(self, future: object, /) -> None: ...


def _ask(name: str) -> Sequence[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    answers: dict[Address, None] = {}
    for *_, address in found:
        answers[ip_address(str(address[0]))] = None
    if len(answers) > MAX_ANSWERS:
        raise OSError(None, f"it has {len(answers)} addresses; at most {MAX_ANSWERS} are checked")
    return tuple(answers)
