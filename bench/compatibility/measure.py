"""The table: each row without a sandbox, and in each tier that this machine can start."""

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.compatibility.rows import ROWS, Row
from bench.compatibility.trial import Trial, Verdict, try_bare, try_in
from bench.report import Report, Table
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import Tier, Unavailable

TIERS: Final = (Tier.NAMESPACE, Tier.GVISOR)
COLUMNS: Final = ("what", "no sandbox, s", *(f"{tier}, s" for tier in TIERS))
NOTES: Final = (
    "Each row is a program that uses the thing and checks what came of it, run once in a fresh "
    "sandbox with the default limits; seconds from its start until nothing of it lived. One is "
    "not installed here where the image, which is the host's `/usr`, lacks it: that says nothing "
    "of the tier.",
)


async def measure(rows: Sequence[Row] = ROWS) -> Report:
    """Every row in every tier, one after the other."""
    trials: dict[str, list[Trial]] = {
        row.what: [await asyncio.to_thread(try_bare, row)] for row in rows
    }
    notes = list(NOTES)
    for tier in TIERS:
        try:
            async with open_local(pool=PoolPolicy.fixed(1), tiers={tier}) as environment:
                for row in rows:
                    await environment.warm_up()
                    trials[row.what].append(await try_in(environment, tier, row))
        except Unavailable as error:
            notes.append(f"{tier} was not tried: {error}.")
            for row in rows:
                trials[row.what].append(Trial(Verdict.UNTRIED))
    return Report(
        "compatibility",
        (
            Table(
                "What works in each tier",
                COLUMNS,
                tuple((what, *map(_cell, of_row)) for what, of_row in trials.items()),
                tuple(notes),
            ),
        ),
        figures={
            what: {
                place: {"verdict": t.verdict, "seconds": t.seconds, "reason": t.reason}
                for place, t in zip(("bare", *TIERS), of_row, strict=True)
            }
            for what, of_row in trials.items()
        },
    )


def _cell(trial: Trial) -> str:
    if trial.verdict is Verdict.WORKS:
        return f"{trial.verdict}, {trial.seconds:.2f}"
    return f"{trial.verdict}: {trial.reason}" if trial.reason else str(trial.verdict)
