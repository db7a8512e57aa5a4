"""Runs the benchmarks. ``./dev bench --help``"""

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from bench import (
    costs,
    egress,
    expression,
    gvisor_latency,
    gvisor_memory,
    gvisor_throughput,
    java,
    latency,
    leftovers,
    machine,
    memory,
    microvm,
    page,
    service,
    soak,
    streams,
    throughput,
    tools,
    wasm,
)
from bench.compatibility import measure as compatibility
from bench.report import Report, promise_table, show

RESULTS = machine.ROOT / "bench" / "results" / "latest.json"
PAGE = machine.ROOT / "docs" / "performance.md"
TIERS_PAGE = machine.ROOT / "docs" / "tiers.md"

Benchmark = Callable[[argparse.Namespace], Coroutine[Any, Any, Report]]
BENCHMARKS: dict[str, Benchmark] = {
    "latency": lambda options: latency.measure(options.rounds),
    "throughput": lambda options: throughput.measure(options.seconds, options.callers),
    "memory": lambda _: memory.measure(),
    "streams": lambda _: streams.measure(),
    "gvisor-latency": lambda options: gvisor_latency.measure(
        min(options.rounds, gvisor_latency.ROUNDS)
    ),
    "gvisor-throughput": lambda options: gvisor_throughput.measure(
        options.seconds, options.callers
    ),
    "gvisor-memory": lambda _: gvisor_memory.measure(),
    "microvm": lambda options: microvm.measure(min(options.rounds, microvm.ROUNDS)),
    "service": lambda options: service.measure(options.rounds, options.seconds),
    "egress": lambda options: egress.measure(options.rounds),
    "tools": lambda options: tools.measure(options.rounds),
    "expression": lambda options: expression.measure(options.rounds),
    "wasm": lambda options: wasm.measure(options.rounds),
    "java": lambda options: java.measure(min(options.rounds, java.ROUNDS)),
    "costs": lambda options: costs.measure(min(options.rounds, costs.ROUNDS)),
    "compatibility": lambda _: compatibility.measure(),
    # Last: from then on this process adopts orphans.
    "leftovers": lambda options: leftovers.measure(options.executions),
}
BY_NAME: dict[str, Benchmark] = {
    # Minutes, and it kills: only where it is asked for.
    "soak": lambda options: soak.measure(options.seconds),
}


def main(arguments: list[str]) -> int:
    """1 where anything was left behind; a missed figure is only said."""
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    reports = []
    for name in options.names or BENCHMARKS:
        report = asyncio.run((BENCHMARKS | BY_NAME)[name](options))
        for table in report.tables:
            show(table, console)
        reports.append(report)
    promises = [promise for report in reports for promise in report.promises]
    if promises:
        show(promise_table(promises), console)
    if options.write:
        _write(reports, arguments)
        written = f"written: {RESULTS}, {PAGE} and parts of {TIERS_PAGE}"
        console.print(written, soft_wrap=True, highlight=False)
    left = [
        r for r in reports if r.name in ("leftovers", "soak") and not all(p.met for p in r.promises)
    ]
    return 1 if left else 0


def _write(reports: list[Report], arguments: list[str]) -> None:
    facts = machine.facts()
    now = datetime.now(UTC)
    command = shlex.join(["./dev", "bench", *arguments])
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": command,
        "machine": facts,
        "reports": [report.as_json() for report in reports],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")
    date = now.date().isoformat()
    PAGE.write_text(page.render(date, command, facts, reports))
    TIERS_PAGE.write_text(page.fill_tiers(TIERS_PAGE.read_text(), date, command, reports))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Measures what Stockade costs, beside what else one could use.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(BENCHMARKS)}; none for all of these; or {', '.join(BY_NAME)}",
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=100,
        help="of latency (default: %(default)s); of gvisor-latency and costs, which take long, "
        f"{gvisor_latency.ROUNDS} and {costs.ROUNDS} at the most",
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=10,
        help="of throughput and service, for each thing measured; of soak, in all (default: %(default)s)",
    )
    parser.add_argument(
        "--callers",
        type=_positive,
        default=4,
        help="of Stockade at once, in throughput (default: %(default)s)",
    )
    parser.add_argument(
        "--executions", type=_positive, default=1000, help="of leftovers (default: %(default)s)"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="store the results, render docs/performance.md and the tables of docs/tiers.md; "
        "runs all of them",
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in (known := BENCHMARKS | BY_NAME):
            parser.error(f"there is no benchmark '{name}'; there are: {', '.join(known)}")
    if options.write and options.names:
        parser.error("--write takes no names: the page holds one run of all of them")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
