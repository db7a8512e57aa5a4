"""The zygote of the wasm tier, and the process of each program.

CPython for WASI is brought up once, up to where it reads its program. There this process waits
to be cloned into sandboxes: each clone goes on inside WebAssembly as if the read had taken a
while. JavaScript and a tenant's own module get an instance of their own in the clone.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
import time
from pathlib import Path

import wasmtime

from .. import interpreter
from ..program import (
    _RLIMITS,
    _SPECIFICATION,
    _STATUS,
    _at_failing_exit,
    _read_specification,
    _set_rlimits,
    _tell,
)
from ..zygote import CONTROL, LIBRARY
from .engine import make_engine
from .javascript import JavaScript
from .wasi import RESULT, Between, Ended, Guest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_MODULES = Path("/opt/wasm/modules")
_FOLDERS = [b"/workspace", b"/tmp"]
_TRAPPED = 134
"""The exit code of a guest that WebAssembly stopped, as of the wasmtime command."""
_GRACE_SECONDS = 1.0
_MEMORY_OF_ENGINE = 64 << 20
"""What an interpreter has before a program comes, and a little: the host's own count strikes first."""
_MOST_REASON = 500
_CORE_MODULE = b"\0asm\x01\0\0\0"
_NO_OS_ERROR = 70
# (module (memory (export "memory") 1) (func (export "_start")))
_REHEARSAL = bytes.fromhex(
    "0061736d0100000001040160000003020100050301000107130206"
    "6d656d6f72790200065f737461727400000a040102000b"
)


class _Elsewhere(Exception):
    """The program is none for the interpreter that waits: ``args`` have its specification."""


class Worker:
    """One process, from the zygote's start to a program's end."""

    def __init__(self, preloaded: list[str]) -> None:
        self._engine = make_engine()
        self._between = Between(self._engine)
        self._javascript = JavaScript(str(_MODULES / "javascript.compiled"), _finish)
        start = Path(__file__).with_name("python_start.py").read_bytes()
        self._start = [b"python", b"-I", b"-S", b"-c", start, *map(os.fsencode, preloaded)]
        self._serve = ctypes.PyDLL(LIBRARY).stockade_serve
        self._hard: dict[int, int] = {}
        self._pieces: list[bytes] = []
        self._waits = True
        self._spare = Guest(self._between)
        """One that waits for a module."""

    def run(self) -> NoReturn:
        """Serve as the zygote; in each clone, run what it is sent."""
        guest = self._bring_up()
        guest.read_program = lambda count: self._read(guest, count)
        try:
            code = self._call(guest)
        except _Elsewhere as other:
            (specification,) = other.args
            code = self._run_other(specification)
        _finish(code)

    def _bring_up(self) -> Guest:
        # Read again in a clone: what a module keeps open of its file stays behind in the zygote.
        module = wasmtime.Module.deserialize_file(self._engine, str(_MODULES / "python.compiled"))
        guest = Guest(self._between, self._start, _FOLDERS)
        guest.instantiate(module)
        guest.write_result = _refused
        return guest

    # --- the interpreter's side of descriptor 3 ---

    def _read(self, guest: Guest, count: int) -> bytes:
        if self._waits:
            self._waits = False
            self._be_cloned()
            guest.grant(_streams(wasmtime.WasiConfig()), ["/workspace", "/tmp"])
            specification = self._wait()
            wasm = specification["wasm"]
            if wasm["kind"] != "python" or wasm["steady"]:
                raise _Elsewhere(specification)
            self._limit(guest, wasm)
            self._pieces = _python_program(specification)
        return self._next_piece(guest, count)

    def _next_piece(self, guest: Guest, count: int) -> bytes:
        """All of the program, an end, and an end once more when the program itself begins."""
        while self._pieces and not self._pieces[0]:
            self._pieces.pop(0)
        if self._pieces:
            piece, self._pieces[0] = self._pieces[0][:count], self._pieces[0][count:]
            return piece
        if not guest.engines:
            guest.hand_over()
        else:
            guest.write_result = lambda data: os.write(RESULT, data)
        return b""

    # --- becoming a program's process ---

    def _be_cloned(self) -> None:
        interpreter.settle()
        os.write(CONTROL, b"ready")
        ctypes.pythonapi.PyOS_BeforeFork()
        self._serve(CONTROL)
        ctypes.pythonapi.PyOS_AfterFork_Child()

    def _wait(self) -> dict[str, Any]:
        for descriptor in (_SPECIFICATION, _STATUS):
            os.set_inheritable(descriptor, False)
        os.chdir("/workspace")
        self._rehearse()
        self._hard = {kind: resource.getrlimit(kind)[1] for kind, _ in _RLIMITS}
        os.write(_STATUS, b"+")
        data = os.read(_SPECIFICATION, 65536)
        if not data:
            os._exit(0)
        specification = _read_specification(data)
        _set_rlimits(specification["rlimits"], self._hard)
        folder = specification["working_directory"]
        if folder:
            try:
                os.chdir(folder)
            except OSError as error:
                _refuse(folder, "no such working directory: " + os.strerror(error.errno or 0))
        return specification

    def _rehearse(self) -> None:
        """Do once, to no effect, what a call will do: it copies each page that this touches."""
        self._javascript.rehearse()
        guest = Guest(self._between)
        guest.instantiate(wasmtime.Module(self._engine, _REHEARSAL))
        guest.grant(_streams(wasmtime.WasiConfig()), ["/workspace", "/tmp"], [b"/a", b"/b"])
        guest.store.set_limits(memory_size=_MEMORY_OF_ENGINE)
        guest.hand_over()
        self._call(guest)
        thread = threading.Thread(target=time.monotonic, daemon=True)
        thread.start()
        thread.join()
        self._spare = Guest(self._between)

    def _limit(self, guest: Guest, wasm: dict[str, Any]) -> None:
        guest.store.set_limits(memory_size=wasm["memory_bytes"] + _MEMORY_OF_ENGINE)
        # A second net: the host ends it by its process, also within a call that waits.
        threading.Thread(target=self._end_late, args=(wasm["wall_seconds"],), daemon=True).start()

    def _end_late(self, seconds: float) -> None:
        time.sleep(seconds + _GRACE_SECONDS)
        self._engine.increment_epoch()

    # --- the other kinds ---

    def _run_other(self, specification: dict[str, Any]) -> int:
        wasm = specification["wasm"]
        if wasm["kind"] == "javascript":
            return self._javascript.run(
                specification["source"],
                wasm["arguments"],
                specification["environment"],
                wasm["memory_bytes"],
                wasm["wall_seconds"] + _GRACE_SECONDS,
                wasm["steady"],
            )
        if wasm["kind"] == "python":
            return self._run_python_afresh(specification)
        return self._run_module(specification)

    def _run_python_afresh(self, specification: dict[str, Any]) -> int:
        guest = self._bring_up()
        guest.be_steady()
        guest.grant(_streams(wasmtime.WasiConfig()), ["/workspace", "/tmp"])
        self._limit(guest, specification["wasm"])
        self._pieces = _python_program(specification)
        guest.read_program = lambda count: self._next_piece(guest, count)
        return self._call(guest)

    def _run_module(self, specification: dict[str, Any]) -> int:
        wasm, source = specification["wasm"], specification["source"]
        if not source.startswith(_CORE_MODULE):
            _refuse("the module", "it is no WebAssembly core module of version 1")
        try:
            module = wasmtime.Module(self._engine, source)
        except wasmtime.WasmtimeError as error:
            _refuse("the module", _shortened(error))
        guest = self._spare
        try:
            guest.instantiate(module)
        except Ended:
            _refuse("the module", "it ends in its start section: WASI serves it from _start on")
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            _refuse("the module", _shortened(error))
        if not isinstance(guest.exports.get("_start"), wasmtime.Func):
            _refuse("the module", "it exports no function _start: only WASI commands are run")
        config = _streams(wasmtime.WasiConfig())
        config.argv = ["module.wasm", *wasm["arguments"]]
        config.env = list(specification["environment"].items())
        guest.grant(config, ["/workspace", "/tmp", "."], [b"/workspace", b"/tmp", b"."])
        if wasm["steady"]:
            guest.be_steady()
        self._limit(guest, wasm)
        guest.hand_over()
        return self._call(guest)

    # --- the end ---

    def _call(self, guest: Guest) -> int:
        try:
            guest.start()
        except wasmtime.ExitTrap as ending:
            return ending.code & 0xFF
        except Ended as ending:
            return int(ending.args[0]) & 0xFF
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            _say(f"WebAssembly stopped it: {_shortened(error)}")
            return _TRAPPED
        return 0


def _finish(code: int) -> NoReturn:
    if code:
        _at_failing_exit()
    os._exit(code)


def _python_program(specification: dict[str, Any]) -> list[bytes]:
    import json

    wasm = specification["wasm"]
    given = json.dumps(
        {
            "name": wasm["name"],
            "arguments": wasm["arguments"],
            "environment": specification["environment"],
            "working_directory": os.getcwd(),
            "steady": wasm["steady"],
        }
    ).encode()
    source = specification["source"]
    return [len(given).to_bytes(4, "big") + len(source).to_bytes(4, "big") + given, source]


def _streams(config: wasmtime.WasiConfig) -> wasmtime.WasiConfig:
    config.inherit_stdin()
    config.inherit_stdout()
    config.inherit_stderr()
    return config


def _refused(data: bytes) -> int:
    what, _, reason = data.decode("utf-8", "replace").partition("\0")
    _refuse(what, reason)


def _refuse(what: str, reason: str) -> NoReturn:
    _tell({"refused": {"what": what[:_MOST_REASON], "reason": reason[:_MOST_REASON]}})
    os._exit(255)


def _shortened(error: Exception) -> str:
    """What went wrong, before where: of a backtrace in machine terms nobody learns anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((i for i, line in enumerate(lines) if line.startswith("Caused by")), None)
    said = lines[cause + 1 :] if cause is not None else lines
    kept = [line for line in said if not line.startswith(("note:", "at "))]
    return "; ".join(kept[:3])[:_MOST_REASON]


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "replace"))


def main(preloaded: list[str]) -> NoReturn:
    """The zygote, and what becomes of it."""
    try:
        Worker(preloaded).run()
    except Exception as error:  # noqa: BLE001 - whoever waits for it is to know
        _say(f"the wasm worker failed: {error!r}"[:2000])
        os._exit(_NO_OS_ERROR)
    sys.exit(0)
