"""Tools in Java over any environment: what is compiled once, what is started ahead, and calls."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from stockade.port import (
    EgressSink,
    ExecutionEnvironment,
    InvalidRequest,
    OutputSink,
    SandboxRequest,
    Tier,
    TrustLevel,
)
from stockade.tools.java import calling, compiling, files, toolchain
from stockade.tools.java.calling import LARGEST_INPUT, Call
from stockade.tools.java.compiling import Compiled
from stockade.tools.java.parking import Key, Parking, ParkingPolicy
from stockade.tools.java.rules import check_rules
from stockade.tools.java.store import ClassStore, MemoryStore
from stockade.tools.java.toolchain import Toolchain
from stockade.tools.java.virtual_machine import check_limits

MOST_TOOLCHAINS: Final = 16

_Place = tuple[str, TrustLevel, Tier | None]


class JavaTools:
    """Compiles tools and calls them. What one tenant's sandboxes made, no other's is given."""

    def __init__(
        self,
        environment: ExecutionEnvironment,
        parking: ParkingPolicy | None = None,
        store: ClassStore | None = None,
    ) -> None:
        self._environment = environment
        self.store = store or MemoryStore()
        """What was compiled, for whoever opens these tools anew."""
        self._parking = Parking(environment, parking or ParkingPolicy())
        self._toolchains: OrderedDict[_Place, Toolchain] = OrderedDict()
        self._building: dict[_Place, asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<JavaTools {self.store!r}, {self._parking!r}>"

    async def compile(
        self,
        source: str | bytes,
        rules: Mapping[str, object] | None = None,
        sandbox: SandboxRequest | None = None,
    ) -> Compiled:
        """The classes of a source: from sandboxes, or from before where it is the same.

        Of ``sandbox`` count the tenant, the trust level and the tier. Raises
        :class:`~stockade.tools.java.SourceRefused` with what is wrong with it, :class:`InvalidRequest`
        for wrong rules, :class:`Unavailable` where there is no sandbox or no JDK in it,
        :class:`SandboxLost`.
        """
        sandbox = sandbox or SandboxRequest()
        checked = check_rules(rules)
        # Half a surrogate pair is no UTF-8; the compiler's program says so.
        content = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        made = await self._toolchain(sandbox)
        key = hashlib.sha256(
            b"\0".join(
                hashlib.sha256(part).digest()
                for part in (content, checked, made.harness, str(made.image).encode())
            )
        ).hexdigest()
        jar = await self.store.get(sandbox.tenant, key)
        if jar is None:
            jar = await compiling.compile_source(self._environment, made, content, checked, sandbox)
            await self.store.put(sandbox.tenant, key, jar)
        return Compiled(sandbox.tenant, hashlib.sha256(jar).hexdigest(), jar)

    async def call(
        self,
        compiled: Compiled,
        content: bytes,
        sandbox: SandboxRequest | None = None,
        *,
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Call:
        """One call, with its input as JSON, in a sandbox of its own.

        A JVM that waits for it is used, and another one started for the next call. Raises what
        ``run`` of the port raises; what the tool does is in the call.
        """
        sandbox = sandbox or SandboxRequest()
        self._check(compiled, content, sandbox)
        made = await self._toolchain(sandbox)
        key = self._key(compiled, sandbox)
        parked = None if key is None else self._parking.take(key)
        try:
            if parked is not None:
                execution = await parked.call(content, on_output, on_egress)
            else:
                execution = await self._environment.run(
                    calling.request(made, compiled, sandbox.limits, waits=False),
                    sandbox,
                    stdin=content,
                    on_output=on_output,
                    on_egress=on_egress,
                )
        finally:
            if parked is not None:
                self._parking.release(parked)
        if not made.made_for(execution):
            await self._forget(sandbox)
        elif key is not None:
            self._parking.want(key, calling.request(made, compiled, sandbox.limits, waits=True))
        return calling.read(execution, parked=parked is not None)

    async def park(self, compiled: Compiled, sandbox: SandboxRequest | None = None) -> None:
        """Have a JVM wait for a call of this tool, and wait until it does, or cannot."""
        sandbox = sandbox or SandboxRequest()
        self._check(compiled, b"", sandbox)
        made = await self._toolchain(sandbox)
        key = self._key(compiled, sandbox)
        if key is not None:
            self._parking.want(key, calling.request(made, compiled, sandbox.limits, waits=True))
            await self._parking.settled()

    async def close(self) -> None:
        """Destroy what waits; returns when nothing of it lives. The environment stays open."""
        await self._parking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @staticmethod
    def _check(compiled: Compiled, content: bytes, sandbox: SandboxRequest) -> None:
        if compiled.tenant != sandbox.tenant:
            raise InvalidRequest("tenant", "the classes are another tenant's")
        if len(content) >= LARGEST_INPUT:
            raise InvalidRequest("input", f"{len(content)} bytes reach {LARGEST_INPUT}")
        check_limits(sandbox.limits)

    @staticmethod
    def _key(compiled: Compiled, sandbox: SandboxRequest) -> Key | None:
        """Who has credentials has them for one sandbox, and a dedicated machine is never parked."""
        if sandbox.ticket is not None or sandbox.tier is Tier.VM:
            return None
        if sandbox.trust is TrustLevel.REGULATED or sandbox.egress.credentials:
            return None
        return Key(sandbox, compiled.digest)

    async def _toolchain(self, sandbox: SandboxRequest) -> Toolchain:
        place = (sandbox.tenant, sandbox.trust, sandbox.tier)
        async with self._building.setdefault(place, asyncio.Lock()):
            made = self._toolchains.get(place)
            if made is None:
                made = await self._made(sandbox)
                self._toolchains[place] = made
                while len(self._toolchains) > MOST_TOOLCHAINS:
                    gone, _ = self._toolchains.popitem(last=False)
                    self._building.pop(gone, None)
            self._toolchains.move_to_end(place)
        return made

    async def _made(self, sandbox: SandboxRequest) -> Toolchain:
        key = f"toolchain {files.digest()} {sandbox.trust} {sandbox.tier}"
        kept = await self.store.get(sandbox.tenant, key)
        if kept:
            return Toolchain.unpacked(kept)
        made = await toolchain.build(self._environment, sandbox)
        await self.store.put(sandbox.tenant, key, made.packed())
        return made

    async def _forget(self, sandbox: SandboxRequest) -> None:
        """The next one is made where calls run now."""
        self._toolchains.pop((sandbox.tenant, sandbox.trust, sandbox.tier), None)
        key = f"toolchain {files.digest()} {sandbox.trust} {sandbox.tier}"
        await self.store.put(sandbox.tenant, key, b"")
