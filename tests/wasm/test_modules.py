"""A tenant's own module, and the tier's edges."""

import pytest
from tests.wasm.conftest import Run

from stockade.executor.environment import LocalEnvironment
from stockade.port import (
    Command,
    EgressPolicy,
    EgressRule,
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    PythonSource,
    SandboxRequest,
    TerminalSize,
    Tier,
    WasmModule,
)

wasmtime = pytest.importorskip("wasmtime")
pytestmark = pytest.mark.asyncio(loop_scope="module")
WASI = "wasi_snapshot_preview1"


def module(text: str) -> WasmModule:
    return WasmModule(bytes(wasmtime.wat2wasm(f"(module {text})")))


WRITE = f"""
(import "{WASI}" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(memory (export "memory") 1)
(data (i32.const 16) "hello\\n")
(data (i32.const 0) "\\10\\00\\00\\00\\06\\00\\00\\00")
"""


async def test_it_writes_output_and_a_result(run: Run) -> None:
    execution = await run(
        module(
            WRITE
            + '(func (export "_start")'
            + "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))"
            + "(drop (call $write (i32.const 3) (i32.const 0) (i32.const 1) (i32.const 8))))"
        )
    )
    assert execution.ok, (execution.detail, execution.stderr)
    assert (execution.stdout.text(), execution.result) == ("hello\n", b"hello\n")


@pytest.mark.parametrize("descriptor", [1, 2, 3])
async def test_a_wrong_address_is_its_own_fault(run: Run, descriptor: int) -> None:
    """It gets an error number, and what answers it goes on."""
    execution = await run(
        module(
            WRITE
            + '(func (export "_start")'
            + f"(if (i32.eqz (call $write (i32.const {descriptor}) (i32.const 0xfffffff0)"
            + " (i32.const 4) (i32.const 8))) (then unreachable)))"
        )
    )
    assert execution.outcome in (Outcome.OK, Outcome.NONZERO_EXIT)
    assert "unreachable" not in execution.stderr.text()


NO_MEMORY = f"""
(import "{WASI}" "random_get" (func $random (param i32 i32) (result i32)))
(func (export "_start")
  (if (i32.eqz (call $random (i32.const 0) (i32.const 8))) (then unreachable)))
"""
IN_START = (
    WRITE
    + "(func $s (if (i32.eqz (call $write (i32.const 3) (i32.const 0) (i32.const 1)"
    + ' (i32.const 8))) (then unreachable))) (start $s) (func (export "_start"))'
)


@pytest.mark.parametrize("text", [NO_MEMORY, IN_START], ids=["none", "not yet"])
async def test_without_memory_wasi_answers_with_an_error(run: Run, text: str) -> None:
    """And the worker does not fall over it."""
    execution = await run(module(text))
    assert execution.ok, (execution.detail, execution.stderr)
    assert execution.result is None


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (WasmModule(b"not a module"), "no WebAssembly core module"),
        (WasmModule(b""), "no WebAssembly core module"),
        (WasmModule(b"\0asm\x0d\0\x01\0"), "no WebAssembly core module"),
        (WasmModule(b"\0asm\x01\0\0\0\xff\xff\xff"), "the module"),
        (module('(import "env" "system" (func)) (func (export "_start"))'), "env::system"),
        (module(f'(import "{WASI}" "sock_open" (func)) (func (export "_start"))'), "sock_open"),
        (module('(func (export "main"))'), "no function _start"),
        (
            module(
                f'(import "{WASI}" "proc_exit" (func $exit (param i32)))'
                '(func $s (call $exit (i32.const 0))) (start $s) (func (export "_start"))'
            ),
            "start section",
        ),
    ],
    ids=["text", "empty", "component", "garbage", "foreign", "unknown", "library", "early"],
)
async def test_what_cannot_be_run_is_refused(run: Run, program: WasmModule, why: str) -> None:
    execution = await run(program)
    assert execution.outcome is Outcome.INVALID
    assert why in execution.detail


@pytest.mark.parametrize(
    ("text", "limits", "outcome"),
    [
        ('(func (export "_start") (loop (br 0)))', {"wall_seconds": 0.5}, Outcome.WALL_CLOCK),
        ('(func (export "_start") unreachable)', {}, Outcome.NONZERO_EXIT),
        ('(func $f (export "_start") (call $f))', {}, Outcome.NONZERO_EXIT),
        ('(memory (export "memory") 1) (func (export "_start") (drop (i32.load (i32.const -1))))',
         {}, Outcome.NONZERO_EXIT),
        ('(func (export "_start"))', {}, Outcome.OK),
    ],
    ids=["spins", "traps", "recurses", "reads beyond", "ends"],
)  # fmt: skip
async def test_how_it_ends(run: Run, text: str, limits: dict[str, float], outcome: Outcome) -> None:
    execution = await run(module(text), limits=limits)
    assert execution.outcome is outcome, (execution.detail, execution.stderr)


async def test_what_the_tier_has_not_is_refused_before_it_runs(
    environment: LocalEnvironment,
) -> None:
    wanted = SandboxRequest(tier=Tier.WASM)
    python = PythonSource("print(1)")
    refused = [
        (ExecutionRequest(Command(("ls",))), wanted),
        (ExecutionRequest(python, terminal=TerminalSize(24, 80)), wanted),
        (
            ExecutionRequest(python),
            SandboxRequest(tier=Tier.WASM, egress=EgressPolicy(rules=(EgressRule("example.com"),))),
        ),
    ]
    for request, sandbox in refused:
        with pytest.raises(InvalidRequest):
            await environment.run(request, sandbox)
    with pytest.raises(InvalidRequest, match="sessions"):
        await environment.open_session(wanted)


async def test_two_programs_at_once_have_nothing_in_common(
    environment: LocalEnvironment, run: Run
) -> None:
    """A worker that is ended takes no other one with it."""
    spinning = await environment.start(
        ExecutionRequest(PythonSource("while True: pass")), SandboxRequest(tier=Tier.WASM)
    )
    assert (await run(PythonSource("print(1)"))).stdout.text() == "1\n"
    await spinning.cancel()
    assert (await spinning.wait()).outcome is Outcome.CANCELLED
    assert (await run(PythonSource("print(2)"))).stdout.text() == "2\n"
