"""JavaScript in WebAssembly."""

import pytest
from tests.wasm.conftest import Run

from stockade.port import MIB, JavaScriptSource, Outcome, Tier

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_goes_in_and_what_comes_out(run: Run) -> None:
    source = """
const input = JSON.parse(stockade.readInput());
console.log("said", [1, { a: "b" }], stockade.arguments[0], stockade.environment.NAME);
console.error("oops");
stockade.writeFile("made", stockade.readFile("given").toUpperCase());
await new Promise((settle) => setTimeout(settle, 1));
stockade.writeResult(JSON.stringify({ twice: input.value * 2 }));
"""
    execution = await run(
        JavaScriptSource(source, ("one",)),
        stdin=b'{"value": 21}',
        files={"given": b"text"},
        artefacts=("made",),
        environment={"NAME": "value"},
    )
    assert execution.ok, (execution.detail, execution.stderr)
    assert execution.stdout.text() == 'said [ 1, { a: "b" } ] one value\n'
    assert execution.stderr.text() == "oops\n"
    assert (execution.result, execution.tier) == (b'{"twice":42}', Tier.WASM)
    assert [artefact.data for artefact in execution.artefacts] == [b"TEXT"]


@pytest.mark.parametrize(
    ("source", "limits", "outcome", "said"),
    [
        ("throw new TypeError('no')", {}, Outcome.NONZERO_EXIT, "TypeError: no"),
        ("await null; throw new Error('late')", {}, Outcome.NONZERO_EXIT, "Error: late"),
        ("let x = ;", {}, Outcome.NONZERO_EXIT, "SyntaxError"),
        ("await new Promise(() => {})", {}, Outcome.NONZERO_EXIT, "nothing is left to settle"),
        ("try { stockade.exit(3) } catch {} ; console.error('on')", {}, Outcome.NONZERO_EXIT, ""),
        ("stockade.readFile('../etc/passwd')", {}, Outcome.NONZERO_EXIT, "not below /workspace"),
        ("stockade.readFile('/proc/self/maps')", {}, Outcome.NONZERO_EXIT, "not below /workspace"),
        ("while (true) {}", {"wall_seconds": 0.5}, Outcome.WALL_CLOCK, ""),
        ("await new Promise((f) => setTimeout(f, 1e6))", {"wall_seconds": 0.5},
         Outcome.WALL_CLOCK, ""),
        ("while (true) console.log('x'.repeat(1000))", {"output_bytes": 10_000}, Outcome.OUTPUT, ""),
    ],
)  # fmt: skip
async def test_how_it_ends(
    run: Run, source: str, limits: dict[str, float], outcome: Outcome, said: str
) -> None:
    execution = await run(JavaScriptSource(source), limits=limits)
    assert execution.outcome is outcome, (execution.detail, execution.stderr)
    assert said in execution.stderr.text()
    assert "on\n" not in execution.stderr.text()


async def test_memory_is_bounded(run: Run) -> None:
    source = "const kept = []; while (true) kept.push(new Uint8Array(1 << 20).fill(1))"
    execution = await run(
        JavaScriptSource(source), limits={"memory_bytes": 64 * MIB, "disk_bytes": MIB}
    )
    assert execution.outcome in (Outcome.MEMORY, Outcome.NONZERO_EXIT), execution.detail


async def test_endless_depth_ends_the_program_alone(run: Run) -> None:
    execution = await run(JavaScriptSource("function f() { return f() + 1 } f()"))
    assert execution.outcome is Outcome.NONZERO_EXIT


async def test_it_finds_no_way_to_what_answers_it(run: Run) -> None:
    """Neither the host's function nor a module loader is left for a program."""
    source = """
const found = [];
for (const name of ["__host", "require", "process", "std", "os", "Deno", "WebAssembly", "fetch"])
    if (typeof globalThis[name] !== "undefined") found.push(name);
let imported = "refused";
try { await import("std"); imported = "loaded"; } catch {}
console.log(JSON.stringify(found), imported);
"""
    assert (await run(JavaScriptSource(source))).stdout.text() == "[] refused\n"


async def test_copies_differ_in_their_randomness_unless_asked_not_to(run: Run) -> None:
    source = JavaScriptSource("console.log(Math.random(), Date.now())")
    free = {(await run(source)).stdout.text() for _ in range(3)}
    steady = {
        (await run(source, environment={"STOCKADE_DETERMINISTIC": "1"})).stdout.text()
        for _ in range(2)
    }
    assert (len(free), len(steady)) == (3, 1)
