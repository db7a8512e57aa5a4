"""Running attacks one after another against an environment."""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from stockade.cli.attack.host_checks import HostWatch, watch_host
from stockade.cli.attack.judge import NOT_IN_WASM, breaches, inapplicable, judge, lacking_in_wasm
from stockade.cli.attack.model import Attack, Ruling, Scene, Verdict
from stockade.port import (
    Enforcement,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    InvalidRequest,
    PythonSource,
    StockadeError,
    Tier,
)


@dataclass(slots=True)
class Arena:
    """An environment with the host watched around it."""

    environment: ExecutionEnvironment
    watch: HostWatch
    kept: dict[str, Enforcement]
    tier: Tier

    async def attack(self, attack: Attack) -> Verdict:
        """Try one attack. Whatever goes wrong is a verdict."""
        attack = attack.in_tier(self.tier)
        reason = inapplicable(attack, self.kept)
        if self.tier is Tier.WASM:
            reason = NOT_IN_WASM.get(attack.name, reason)
        if reason:
            return Verdict(attack, Ruling.NOT_APPLICABLE, reason)
        self.watch.arm()
        began = time.monotonic()
        scene = Scene(self.environment, {**self.watch.facts, "tier": self.tier.value})
        try:
            observed = await attack.drive(scene, attack)
        except (StockadeError, OSError, TimeoutError, AssertionError) as error:
            if self.tier is Tier.WASM and isinstance(error, InvalidRequest):
                return Verdict(attack, Ruling.NOT_APPLICABLE, str(error))
            reason = f"{type(error).__name__}: {error}"
            return Verdict(attack, Ruling.NOT_RUN, "", (reason,), time.monotonic() - began)
        observed.seconds = max(e.usage.wall_seconds for e in observed.executions)
        observed.breaches += self.watch.look(observed.executions)
        observed.breaches += await self.watch.settled()
        verdict = judge(attack, observed)
        if self.tier is Tier.WASM and verdict.ruling is Ruling.BROKEN:
            # A breach counts whatever else is said; without one its program may not be of here.
            reason = "" if breaches(attack, observed) else lacking_in_wasm(observed)
            if reason:
                return Verdict(attack, Ruling.NOT_APPLICABLE, reason)
        return verdict


@asynccontextmanager
async def open_arena(
    open_environment: Callable[[], AbstractAsyncContextManager[ExecutionEnvironment]],
    tier: Tier,
) -> AsyncIterator[Arena]:
    """Watch the host, open the environment, and see that it runs a program in this tier."""
    async with watch_host() as watch, open_environment() as environment:
        first = await environment.run(ExecutionRequest(PythonSource("pass")))
        _require_ok(first)
        if first.tier is not tier:
            raise StockadeError(f"the environment has {first.tier}, and not {tier}, to attack")
        await watch.know_processes()
        yield Arena(environment, watch, dict(first.enforcement), tier)


async def all_of(arena: Arena, attacks: Iterable[Attack]) -> AsyncIterator[Verdict]:
    """The verdicts, as they come."""
    for attack in attacks:
        yield await arena.attack(attack)


def _require_ok(execution: Execution) -> None:
    if not execution.ok:
        raise StockadeError(f"not even an empty program runs: {execution.detail}")
