"""Staging an attack: what the host does while the program attacks."""

import asyncio
import json
import signal
import time
from importlib import resources

from stockade.cli.attack.model import Attack, Observed, Scene
from stockade.port import (
    EgressPolicy,
    EgressRule,
    ExecutionRequest,
    FileRefused,
    PythonScript,
    PythonSource,
    SandboxLost,
    SandboxRequest,
    Scheme,
    Stream,
)

_PROGRAMS = "stockade.cli.attack.programs"
_KIT = "stockade/cli/attack/programs/kit.py"
_READY_SECONDS = 8.0
_FETCHES = 300


def request(scene: Scene, attack: Attack, *arguments: str) -> ExecutionRequest:
    """The attacking program, with what it needs to know."""
    folder = resources.files(_PROGRAMS)
    facts = {**scene.facts, "names_to_make": list(attack.artefacts)}
    return ExecutionRequest(
        PythonScript(
            "attack.py",
            folder.joinpath(f"{attack.program}.py").read_bytes(),
            arguments or attack.arguments,
            fresh=attack.fresh,
        ),
        environment={"STOCKADE_ATTACK": json.dumps(facts)},
        files={_KIT: folder.joinpath("kit.py").read_bytes(), **scene.files},
        artefacts=attack.artefacts,
        terminal=attack.terminal,
    )


_NAMES_OF_THE_HOST = ("localhost", "localhost.localdomain", "ip6-localhost")


def sandbox_of(scene: Scene, attack: Attack) -> SandboxRequest:
    """The sandbox for it. A name alone is no grant of an address that is not public."""
    if not attack.proxied:
        return SandboxRequest(limits=attack.limits)
    ports = scene.facts["ports"]
    assert isinstance(ports, list)
    rules = [
        EgressRule(name, port, scheme)
        for name in _NAMES_OF_THE_HOST
        for port in ports
        for scheme in (Scheme.TCP, Scheme.HTTP)
    ]
    return SandboxRequest(limits=attack.limits, egress=EgressPolicy(tuple(rules)))


class _Ready:
    """An output sink that waits until the program says that it is ready."""

    def __init__(self) -> None:
        self._seen = b""
        self._said = asyncio.Event()

    async def __call__(self, stream: Stream, data: bytes) -> None:
        self._seen = (self._seen + data)[-64:]
        if b"ready" in self._seen:
            self._said.set()

    async def wait(self) -> None:
        async with asyncio.timeout(_READY_SECONDS):
            await self._said.wait()


async def alone(scene: Scene, attack: Attack) -> Observed:
    """The program runs, and nobody helps or hinders it."""
    execution = await scene.environment.run(request(scene, attack), sandbox_of(scene, attack))
    return Observed([execution])


async def unread(scene: Scene, attack: Attack) -> Observed:
    """Nobody takes the output, until well after the deadline."""
    over = asyncio.get_running_loop().time() + attack.limits.wall_seconds + 1

    async def sink(_stream: Stream, _data: bytes) -> None:
        await asyncio.sleep(max(0.0, over - asyncio.get_running_loop().time()))

    execution = await scene.environment.run(
        request(scene, attack), sandbox_of(scene, attack), on_output=sink
    )
    return Observed([execution])


async def cancelled(scene: Scene, attack: Attack) -> Observed:
    """The host asks politely, then cancels."""
    ready = _Ready()
    running = await scene.environment.start(
        request(scene, attack), sandbox_of(scene, attack), on_output=ready
    )
    await ready.wait()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        await running.signal(number)
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await running.cancel()
    execution = await running.wait()
    took = time.monotonic() - began
    return Observed([execution], [f"lived {took:.1f} s after the cancel"] if took > 2 else [])


async def pair(scene: Scene, attack: Attack) -> Observed:
    """One sandbox sets a scene and stays; the attacker looks for it from another one."""
    ready = _Ready()
    sandbox = sandbox_of(scene, attack)
    first = await scene.environment.start(request(scene, attack, "first"), sandbox, on_output=ready)
    try:
        await ready.wait()
        second = await scene.environment.run(request(scene, attack, "second"), sandbox)
    finally:
        await first.cancel()
        ended = await first.wait()
    return Observed([ended, second])


async def hurried(scene: Scene, attack: Attack) -> Observed:
    """The host starts other sandboxes while the program attacks what they start with."""
    ready = _Ready()
    sandbox = sandbox_of(scene, attack)
    running = await scene.environment.start(request(scene, attack), sandbox, on_output=ready)
    await ready.wait()
    breaches = []
    for number in range(20):
        other = await scene.environment.run(
            ExecutionRequest(PythonSource(f"print({number})", fresh=number % 2 == 0)), sandbox
        )
        if other.stdout.content != f"{number}\n".encode():
            breaches.append(f"another sandbox ended as {other.outcome}: {other.detail}")
    return Observed([await running.wait()], breaches)


async def fetched(scene: Scene, attack: Attack) -> Observed:
    """The host fetches files many times while the program changes them."""
    ready = _Ready()
    breaches: list[str] = []
    came = 0
    session = await scene.environment.open_session(sandbox_of(scene, attack))
    try:
        running = await session.start(request(scene, attack), on_output=ready)
        await ready.wait()
        # A slow machine fetches fewer times: the program's own deadline is no verdict.
        end = time.monotonic() + attack.limits.wall_seconds / 2
        for number in range(_FETCHES):
            if time.monotonic() > end:
                break
            path = attack.arguments[number % len(attack.arguments)]
            try:
                async with asyncio.timeout(3):
                    content = b"".join([piece async for piece in session.read_file(path)])
            except FileRefused:
                continue
            except (SandboxLost, TimeoutError) as error:
                breaches.append(f"the fetch of {path!r} ended with {error!r}")
                break
            came += 1
            if content.strip(b"x") not in (b"", b"good", b"\0"):
                breaches.append(f"{path!r} came out as {content[:60]!r}")
            if len(content) > attack.limits.disk_bytes:
                breaches.append(f"{path!r} came out with {len(content)} bytes")
        await running.cancel()
        execution = await running.wait()
    finally:
        await session.close()
    if not came:
        breaches.append("no fetch ever succeeded, so nothing was tried")
    return Observed([execution], breaches[:5])
