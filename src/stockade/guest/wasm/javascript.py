"""JavaScript: QuickJS in WebAssembly, by quickjs-rs.

An instance is brought up in the zygote, before there is any program, and copied with it. The
engine has no function of the host's but ``_answer``, and no folder: what a program reads and
writes goes through here, below /workspace.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import wasmtime
from quickjs_rs import _engine, _wasmtime

from .engine import make_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_WORKSPACE = "/workspace/"
_RESULT = 3
_MOST_SLEEP = 3600.0
_PIECE = 1 << 20
_STEADY_START = 946_684_800_000
_MEMORY_OF_ENGINE = 32 << 20
"""What is there before a program is, and a little: so that the host's own count strikes first."""
_PENDING, _REJECTED = 0, 2
_REHEARSAL = "await null; JSON.stringify(JSON.parse('{}')); `${[1].map((each) => each)}`"


class JavaScript:
    """One instance, for one program."""

    def __init__(self, compiled: str, finish: Callable[[int], NoReturn]) -> None:
        """``finish``: ends this process with an exit code."""
        self._finish = finish
        engine = make_engine(epochs=False)
        module = wasmtime.Module.deserialize_file(engine, compiled)
        _wasmtime._SHARED_ENGINE = engine
        _wasmtime._SHARED_ARTIFACTS["quickjs"] = _wasmtime.SharedWasmArtifact(
            module, _engine._build_shared_linker(engine), b"stockade"
        )
        self._runtime = _engine.QjsRuntime(stack_limit=192 * 1024)
        self._context = _engine.QjsContext(self._runtime)
        self._context.set_host_call_dispatcher(lambda _number, given: self._answer(given))
        self._context.register_host_function("__host", 1)
        start = Path(__file__).with_name("javascript_start.js").read_text(encoding="utf-8")
        self._begin = self._context.eval_handle(start)
        self._steady = False
        self._now = _STEADY_START
        self._deadline = float("inf")

    def rehearse(self) -> None:
        """Touch, and so copy, what a program will."""
        self._begin_with([], {}, False, bytes(16))
        promise = self._context.eval_handle(_REHEARSAL, promise=True)
        self._context.run_pending_jobs()
        self._context.promise_state(promise)
        self._begin.call_method("pending").to_python()

    def run(
        self,
        source: bytes,
        arguments: list[str],
        environment: dict[str, str],
        memory_bytes: int,
        seconds: float,
        steady: bool,
    ) -> int:
        """The exit code; what went wrong is on standard error."""
        self._context._inst.store.set_limits(memory_size=memory_bytes + _MEMORY_OF_ENGINE)
        self._steady = steady
        self._deadline = time.monotonic() + seconds
        self._runtime.set_interrupt_handler(self._is_late)
        seed = bytes(16) if steady else os.urandom(16)
        try:
            self._begin_with(arguments, environment, steady, seed)
            return self._run(source.decode("utf-8", "replace"))
        except _engine.JSError as error:
            name, message, stack = error.args
            _say(f"Uncaught {name}: {message}\n{stack or ''}")
        except (wasmtime.WasmtimeError, wasmtime.Trap, _engine.QuickJSError) as error:
            _say(f"WebAssembly stopped it: {str(error).splitlines()[-1].strip()[:500]}")
            return 134
        return 1

    def _begin_with(
        self, arguments: list[str], environment: dict[str, str], steady: bool, seed: bytes
    ) -> None:
        self._begin.call_method(
            "begin",
            {
                "arguments": arguments,
                "environment": environment,
                "steady": steady,
                "start": _STEADY_START,
                "seed": [int.from_bytes(seed[i : i + 4], "big") for i in range(0, 16, 4)],
            },
        )

    def _run(self, source: str) -> int:
        promise = self._context.eval_handle(source, promise=True, filename="program.js")
        while True:
            self._context.run_pending_jobs()
            delay = self._begin.call_method("pending").to_python()
            if delay < 0:
                break
            self._sleep(delay / 1000)
            self._begin.call_method("fire")
        state = self._context.promise_state(promise)
        if state == _REJECTED:
            reason = self._context.promise_result(promise)
            self._show(reason)
            return 1
        if state == _PENDING:
            _say("the program waits for a promise that nothing is left to settle")
            return 13
        return 0

    def _show(self, reason: Any) -> None:
        reason_type = reason.type_of
        if reason_type == "object" and reason.has("stack"):
            name, message = reason.get("name").to_python(), reason.get("message").to_python()
            _say(f"Uncaught {name}: {message}\n{reason.get('stack').to_python() or ''}")
        else:
            _say(f"Uncaught {reason.to_python(allow_opaque=True)!r}")

    def _sleep(self, seconds: float) -> None:
        if self._steady:
            self._now += int(seconds * 1000)
        elif seconds > 0:
            time.sleep(min(seconds, _MOST_SLEEP))

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _answer(self, given: tuple[Any, ...]) -> list[Any]:
        """Whether it failed, and the answer or why."""
        try:
            return [False, self._do(*given)]
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
            return [True, reason or str(error)]

    def _do(self, what: str, *given: Any) -> Any:
        if what == "write":
            descriptor, text = given
            _write(2 if descriptor == 2 else 1, text.encode("utf-8", "replace"))
        elif what == "result":
            _write(_RESULT, given[0].encode("utf-8", "replace"))
        elif what == "input":
            return _read_all(0).decode("utf-8", "replace")
        elif what == "read":
            with open(_place(given[0]), "rb") as file:
                return file.read().decode("utf-8", "replace")
        elif what == "put":
            with open(_place(given[0]), "wb") as file:
                file.write(given[1].encode("utf-8", "replace"))
        elif what == "clock":
            return float(self._now) if self._steady else time.monotonic() * 1000
        elif what == "exit":
            self._finish(int(given[0]) & 0xFF)
        return None


def _place(path: str) -> str:
    place = os.path.realpath(os.path.join(_WORKSPACE, path))
    if not place.startswith(_WORKSPACE):
        raise ValueError(f"{path!r} is not below /workspace")
    return place


def _read_all(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    while True:
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _say(text: str) -> None:
    _write(2, (text.rstrip() + "\n").encode("utf-8", "replace"))
