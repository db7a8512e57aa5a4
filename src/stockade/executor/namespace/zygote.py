"""The executor's hold on one zygote: start it, ask it for sandboxes, end it."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stockade.executor.namespace.identity import IdentitySlice, SoleSlice
from stockade.executor.namespace.image import INTERPRETER, HostImage, native_folder
from stockade.port import SandboxLost, Unavailable

START_SECONDS = 20.0
ANSWER_SECONDS = 10.0
_AFFINITY_WORDS = 16
# ``struct stockade_request`` of native/sandbox.h, and what it is a request for.
_REQUEST = struct.Struct(f"=HHIQQ{_AFFINITY_WORDS}Q")
_CLONE, _ENTER = 1, 2
_ANSWER_SIZE = 16
# The zygote serves inside main(). What follows runs in the program's process, where the
# program is executed from here, at the bottom of the stack. Not isolated (-I), so that
# sys.flags are a program's own: the environment is ours, and there is nothing in the root
# to be imported from.
BOOT = """
import sys
sys.path[0] = '/opt/stockade'
from stockade_guest import zygote
run = zygote.main(sys.argv[1:])
try:
    exec(run.compile(), run.names)
except BaseException:
    run.failed()
run.finish()
"""
# Loaded once per tenant, free for each program. Chosen by what agents' programs import
# most, and few: each costs every sandbox the copying of its pages.
PRELOADED = (
    "json", "re", "math", "random", "collections", "itertools", "functools", "datetime", "time",
    "string", "io", "os", "csv", "base64", "operator", "copy", "struct", "contextlib", "heapq",
    "bisect", "textwrap",
)  # fmt: skip


class Zygote:
    """A warm interpreter of one tenant, outside every sandbox and without any guest code.

    It ends with its control socket, with the launcher, and with the executor: by any of
    them, and every sandbox that it cloned ends with it.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: socket.socket,
        identity: IdentitySlice | SoleSlice,
    ) -> None:
        self._process = process
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._pidfd = -1  # the launcher has given up already; it will have said why
        self._control = control
        self.identity = identity
        self.housing: asyncio.Task[None] | None = None
        """Its way into cgroups of its own, which the tier begins when it first needs it."""
        self._at_end: Callable[[], Awaitable[None]] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[int | None]] = deque()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._errors = bytearray()
        self._loop.add_reader(control, self._readable)
        self._listening = asyncio.create_task(self._listen())

    def __repr__(self) -> str:
        state = "dead" if self.dead else "alive"
        return f"<Zygote {self._process.pid} {state}, {len(self._waiting)} asked for>"

    @classmethod
    async def start(
        cls,
        image: HostImage,
        identity: IdentitySlice | SoleSlice,
        preloaded: Sequence[str],
        boot: str = BOOT,
    ) -> "Zygote":
        """Start one. Raises :class:`Unavailable` with the launcher's own words.

        ``boot``: the Python that serves as the zygote inside, and becomes a program in a clone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            arguments = [
                str(native_folder() / "stockade-launch"),
                *("--parent", str(os.getpid()), "--control", str(theirs.fileno())),
                *("--map", str(identity.base), str(identity.count)),
            ]
            for bind in image.binds:
                arguments += ["--bind", str(bind.source), bind.target]
            for copy in image.copies:
                arguments += ["--copy", str(copy.source), copy.target]
            arguments += ["--", str(INTERPRETER), "-c", boot, *preloaded]
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={},
            )
        except OSError as error:
            ours.close()
            raise Unavailable(f"the launcher cannot be started: {error}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        zygote = cls(process, ours, identity)
        try:
            await asyncio.wait_for(asyncio.shield(zygote._ready), START_SECONDS)
        except (TimeoutError, SandboxLost) as error:
            await zygote.end()
            said = zygote.errors or f"it was not ready within {START_SECONDS:g} s"
            raise Unavailable(f"the namespace tier cannot be started: {said}") from error
        except BaseException:
            await zygote.end()
            raise
        return zygote

    @property
    def dead(self) -> bool:
        """Whether it serves no more."""
        return self._control.fileno() < 0 or self._process.returncode is not None

    @property
    def errors(self) -> str:
        """What it said on standard error: the last of it, on one line."""
        return " ".join(self._errors.decode("utf-8", "replace").split())[-500:]

    async def enter_cgroups(self, doors: Sequence[int]) -> None:
        """Have it enter its own cgroups, once; the doors stay the caller's."""
        await self._ask(_pack(_ENTER, 0, 0, 0, ()), doors)

    async def clone(
        self,
        offset: int,
        disk_bytes: int,
        inodes: int,
        cpus: Sequence[int],
        descriptors: Sequence[int],
    ) -> int:
        """Ask for one sandbox; returns its pidfd, which the caller owns.

        ``offset``: its user id within the zygote's slice. ``cpus``: those it may run on;
        none: any. ``descriptors``: wire in, wire out, then the cgroups' doors, still the
        caller's.
        """
        pidfd = await self._ask(_pack(_CLONE, offset, disk_bytes, inodes, cpus), descriptors)
        if pidfd is None:
            raise SandboxLost("the zygote made a sandbox and gave no handle of it")
        return pidfd

    async def _ask(self, packet: bytes, descriptors: Sequence[int]) -> int | None:
        if self.dead:
            raise SandboxLost(f"the zygote is dead: {self.errors}")
        answer: asyncio.Future[int | None] = self._loop.create_future()
        # Requests are answered in order. A full socket means that one is being worked on.
        deadline = self._loop.time() + ANSWER_SECONDS
        while True:
            try:
                socket.send_fds(self._control, [packet], list(descriptors))
                break
            except BlockingIOError:
                if self._loop.time() > deadline:
                    raise SandboxLost("the zygote takes no more requests") from None
                await asyncio.sleep(0.001)
            except OSError as error:
                raise SandboxLost(f"the zygote is gone: {error.strerror}") from error
        self._waiting.append(answer)
        stuck = self._loop.call_later(ANSWER_SECONDS, self._process_kill)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(_discard)
            raise
        finally:
            stuck.cancel()

    def at_end(self, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Have something cleaned up once nothing of it lives."""
        self._at_end = clean_up

    async def end(self) -> None:
        """End it and every sandbox of it; returns when they are gone."""
        self._hang_up("the zygote was ended")
        self._process_kill()
        await self._process.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        if self._at_end is not None:
            clean_up, self._at_end = self._at_end, None
            await clean_up()

    def _process_kill(self) -> None:
        # The launcher: pid 1 of the tenant's tree dies with it, and the tree with pid 1.
        # A zygote that does not answer is stuck, and ends so as well.
        if self._process.returncode is None and self._pidfd >= 0:
            # Not send_signal(): it may reap the process before the event loop does.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _readable(self) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, _ANSWER_SIZE, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        if not packet:
            self._hang_up(f"the zygote is gone: {self.errors}")
            return
        if not self._ready.done():
            self._ready.set_result(None)
            return
        answer = self._waiting.popleft()
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            if answer.cancelled():
                os.close(descriptors[0])
            else:
                answer.set_result(descriptors[0])
        elif not answer.cancelled():
            error = int.from_bytes(packet, sys.byteorder)
            if error == 0:
                answer.set_result(None)
            else:
                answer.set_exception(SandboxLost(f"the zygote: {os.strerror(error)}"))

    def _hang_up(self, reason: str) -> None:
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        asked: list[asyncio.Future[Any]] = [*self._waiting, self._ready]
        for answer in asked:
            if not answer.done():
                answer.set_exception(SandboxLost(reason))
                answer.exception()  # somebody may have stopped waiting
        self._waiting.clear()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._errors += data
            del self._errors[:-4096]


def _pack(kind: int, offset: int, disk_bytes: int, inodes: int, cpus: Sequence[int]) -> bytes:
    affinity = [0] * _AFFINITY_WORDS
    for cpu in cpus:
        affinity[cpu // 64] |= 1 << (cpu % 64)
    return _REQUEST.pack(_REQUEST.size, kind, offset, disk_bytes, inodes, *affinity)


def _discard(answer: "asyncio.Future[int | None]") -> None:
    """Close the pidfd of a sandbox that nobody waits for; its wire is closed already."""
    if not answer.cancelled() and answer.exception() is None:
        pidfd = answer.result()
        if pidfd is not None:
            os.close(pidfd)
