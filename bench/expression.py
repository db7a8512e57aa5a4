"""One expression over a small JSON input: Stockade's engine, and what else evaluates one."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.contestants import VENV
from bench.report import (
    Promise,
    Report,
    Summary,
    Table,
    absent_row,
    mebibytes,
    milliseconds,
    ratio,
)

PROGRAM: Final = Path(__file__).parent / "programs" / "expressions.py"
WORST: Final = Path(__file__).parent / "programs" / "worst_expressions.py"
OURS: Final = "stockade"
TARGET_SECONDS: Final = 20e-6
WORKLOADS: Final = ("condition", "mapping")
CALLS: Final = 1000  # of each in a round
COLUMNS: Final = (
    "what",
    *(f"{workload}, {figure}" for workload in WORKLOADS for figure in ("median µs", "p99 µs")),
    "median / stockade",
)
# A function of the program, to what it measures; all but ours are in the benchmarks' venv.
LIBRARIES: Final = {
    OURS: "stockade, bounds and all",
    "cel_expr_python": "cel-expr-python, on which it is built",
    "common_expression_language": "common-expression-language",
    "cel_python": "cel-python",
    "simpleeval": "simpleeval",
    "python": "Python's own eval, no boundary at all",
}


@dataclass(slots=True)
class _Peer:
    """One library, in a process of its own that waits for its turn."""

    process: "subprocess.Popen[str]"

    def calls(self, workload: str, count: int) -> list[float]:
        """Seconds of each. Raises :class:`RuntimeError` where the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{workload} {count}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self._said())
        seconds: list[float] = json.loads(line)
        return seconds

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()

    def _said(self) -> str:
        _, said = self.process.communicate()
        return (said.strip().splitlines() or ["it ended"])[-1]


async def measure(
    rounds: int = 100, only: Collection[str] = (), worst: int | None = None
) -> Report:
    """All of them in turns, in a random order per round.

    ``worst``: of so many of the worst cases only.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    absent: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        peers: dict[str, _Peer] = {}
        for library in LIBRARIES:
            if only and library not in only:
                continue
            try:
                peer = _start(library)
                stack.callback(peer.end)
                for workload in WORKLOADS:  # caches
                    peer.calls(workload, CALLS)
            except (OSError, RuntimeError) as error:
                absent[library] = str(error)
            else:
                peers[library] = peer
                samples[library] = {workload: [] for workload in WORKLOADS}
        for _ in range(rounds):
            for library in random.sample(list(peers), len(peers)):
                for workload in WORKLOADS:
                    samples[library][workload] += peers[library].calls(workload, CALLS)
    return _report(
        {
            library: {workload: Summary.of(times) for workload, times in by_workload.items()}
            for library, by_workload in samples.items()
        },
        absent,
        rounds,
        _measure_worst(worst),
    )


def _measure_worst(most: int | None) -> Table:
    """Each in a process of its own, which says at the end of the list that there is no more."""
    rows: list[tuple[str, ...]] = []
    while most is None or len(rows) < most:
        ended = subprocess.run(
            [sys.executable, str(WORST), str(len(rows))],
            capture_output=True,
            text=True,
            check=False,
        )
        if "IndexError" in ended.stderr:
            break
        source, kind, size, seconds, memory = json.loads(ended.stdout)
        rows.append((source, kind, str(size), milliseconds(seconds), mebibytes(memory)))
    return Table(
        "The most that the estimate of an expression admits",
        ("expression", "over", "of", "CPU ms", "memory MiB"),
        tuple(rows),
        (
            "The largest input of its kind that each is evaluated with: of a text its characters, "
            "else its elements. Memory is what the process needed more at that moment.",
        ),
    )


def _start(library: str) -> _Peer:
    python = sys.executable if library == OURS else str(VENV / "bin" / "python")
    return _Peer(
        subprocess.Popen(
            [python, str(PROGRAM), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


def _report(
    summaries: dict[str, dict[str, Summary]], absent: dict[str, str], rounds: int, worst: Table
) -> Report:
    ours = summaries[OURS]
    rows = [
        (
            LIBRARIES[library],
            *(
                f"{value * 1e6:.1f}"
                for workload in WORKLOADS
                for value in (own[workload].median, own[workload].p99)
            ),
            ratio(own["condition"].median, ours["condition"].median),
        )
        for library, own in summaries.items()
    ]
    rows += [absent_row(len(COLUMNS), LIBRARIES[name], why) for name, why in absent.items()]
    return Report(
        "expression",
        (
            Table(
                "An expression over a small JSON input",
                COLUMNS,
                tuple(rows),
                (
                    f"{rounds} rounds of {CALLS} calls each, in a random order per round, each "
                    "library in a process of its own. Compiled before; Stockade's call finds the "
                    "compiled one by its source. A condition over two fields; a mapping with a "
                    "`map`.",
                ),
            ),
            worst,
        ),
        (
            Promise(
                "an expression, compiled before: median of a call",
                f"<= {TARGET_SECONDS * 1e6:.0f} µs",
                f"{ours['condition'].median * 1e6:.1f} µs",
                ours["condition"].median <= TARGET_SECONDS,
            ),
        ),
        {
            library: {
                workload: {"median_seconds": s.median, "p99_seconds": s.p99, "runs": s.count}
                for workload, s in own.items()
            }
            for library, own in summaries.items()
        },
    )
