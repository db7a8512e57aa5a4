"""One guest of an engine: its memory, and which of two sides answers what it calls.

A module's imports are WASI preview 1. Until its program starts, *our* side answers: a few
functions in Python that reach nothing, so that an interpreter can be brought up before there is
a sandbox, and be copied into many. From then on the engine's own WASI answers, with the folders
that were granted. Descriptor 3 stays ours: the program is read from it, and the result written.

A small module, made of text here, stands between (``_switch``). The engine's functions look for
memory in whatever calls them, so a second one (``_relay``) calls them with the guest's memory.
"""

from __future__ import annotations

import os
import random
import struct
import time

import wasmtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULT = 3
WASI = "wasi_snapshot_preview1"
_OK, _BADF, _INVAL, _NOENT, _NOSYS, _SPIPE, _IO = 0, 8, 28, 44, 52, 70, 29
# Every function of WASI preview 1: its parameters, i32 or i64. All but one return an error number.
_FUNCTIONS = {
    "args_get": "ii", "args_sizes_get": "ii", "environ_get": "ii", "environ_sizes_get": "ii",
    "clock_res_get": "ii", "clock_time_get": "ili", "fd_advise": "illi", "fd_allocate": "ill",
    "fd_close": "i", "fd_datasync": "i", "fd_fdstat_get": "ii", "fd_fdstat_set_flags": "ii",
    "fd_fdstat_set_rights": "ill", "fd_filestat_get": "ii", "fd_filestat_set_size": "il",
    "fd_filestat_set_times": "illi", "fd_pread": "iiili", "fd_prestat_get": "ii",
    "fd_prestat_dir_name": "iii", "fd_pwrite": "iiili", "fd_read": "iiii", "fd_readdir": "iiili",
    "fd_renumber": "ii", "fd_seek": "ilii", "fd_sync": "i", "fd_tell": "ii", "fd_write": "iiii",
    "path_create_directory": "iii", "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiilli", "path_link": "iiiiiii", "path_open": "iiiiillii",
    "path_readlink": "iiiiii", "path_remove_directory": "iii", "path_rename": "iiiiii",
    "path_symlink": "iiiii", "path_unlink_file": "iii", "poll_oneoff": "iiii", "proc_exit": "i",
    "proc_raise": "i", "sched_yield": "", "random_get": "ii", "sock_accept": "iii",
    "sock_recv": "iiiiii", "sock_send": "iiiii", "sock_shutdown": "ii",
}  # fmt: skip
_OF_RESULT = frozenset(
    {
        "fd_close", "fd_datasync", "fd_fdstat_get", "fd_fdstat_set_flags", "fd_filestat_get",
        "fd_read", "fd_seek", "fd_sync", "fd_tell", "fd_write",
    }
)  # fmt: skip
_STEADY = frozenset({"clock_time_get", "clock_res_get"})
_STEADY_TIME = 946_684_800_000_000_000
"""2000-01-01, in nanoseconds."""
_STEADY_STEP = 1000
_MOST_VECTORS = 1024
_ALL_RIGHTS = (1 << 29) - 1
"""Those that WASI knows: the engine stops a guest that asks for others."""
_PIECE = 1 << 20


class Ended(Exception):
    """The guest ended by ``proc_exit`` while our side answered; ``args`` have the code."""


def _signature(parameters: str) -> str:
    return "".join(f"(param {'i32' if each == 'i' else 'i64'})" for each in parameters)


def _switch() -> str:
    lines = [
        "(module",
        f'(table (export "table") {2 * len(_FUNCTIONS)} funcref)',
        '(global $engines (export "engines") (mut i32) (i32.const 0))',
        '(global $steady (export "steady") (mut i32) (i32.const 0))',
    ]
    for place, (name, parameters) in enumerate(_FUNCTIONS.items()):
        result = "" if name == "proc_exit" else "(result i32)"
        signature = f"{_signature(parameters)} {result}"
        given = " ".join(f"(local.get {i})" for i in range(len(parameters)))
        ours = "(i32.eqz (global.get $engines))"
        if name in _OF_RESULT:
            ours = f"(i32.or {ours} (i32.eq (local.get 0) (i32.const {RESULT})))"
        if name == "random_get":
            # The engine's generator would be copied with this process, state and all.
            ours = "(i32.const 1)"
        elif name in _STEADY:
            ours = f"(i32.or {ours} (global.get $steady))"
        calls = [
            f"{given} (call_indirect {signature} (i32.const {2 * place + side}))" for side in (0, 1)
        ]
        lines.append(
            f'(func (export "{name}") {signature} (if {result} {ours} '
            f"(then {calls[0]}) (else {calls[1]})))"
        )
    return "\n".join([*lines, ")"])


def _relay() -> str:
    imports = ['(import "guest" "memory" (memory 0))']
    functions = ['(export "memory" (memory 0))']
    for name, parameters in _FUNCTIONS.items():
        signature = f"{_signature(parameters)} {'' if name == 'proc_exit' else '(result i32)'}"
        given = " ".join(f"(local.get {i})" for i in range(len(parameters)))
        imports.append(f'(import "{WASI}" "{name}" (func ${name} {signature}))')
        functions.append(f'(func (export "{name}") {signature} {given} (call ${name}))')
    return "\n".join(["(module", *imports, *functions, ")"])


class Between:
    """What stands between a guest and WASI, compiled once for all guests of an engine."""

    def __init__(self, engine: wasmtime.Engine) -> None:
        self.engine = engine
        self.switch = wasmtime.Module(engine, _switch())
        self.relay = wasmtime.Module(engine, _relay())
        i32, i64 = wasmtime.ValType.i32(), wasmtime.ValType.i64()
        self.kinds = {
            name: wasmtime.FuncType(
                [i32 if each == "i" else i64 for each in parameters],
                [] if name == "proc_exit" else [i32],
            )
            for name, parameters in _FUNCTIONS.items()
        }

    def linker(self) -> wasmtime.Linker:
        """With the engine's functions."""
        linker = wasmtime.Linker(self.engine)
        linker.define_wasi()
        return linker


class Guest:
    """One instance of a module, in a store of its own: made ready, then given its module."""

    def __init__(
        self, between: Between, arguments: Sequence[bytes] = (), folders: Sequence[bytes] = ()
    ) -> None:
        """``folders``: the names of those that the engine's side will grant after the result's."""
        self.store = wasmtime.Store(between.engine)
        self.store.set_epoch_deadline(1)
        self._between = between
        self._arguments = arguments
        self._folders = [b"/dev/result", *folders]
        self.read_program: Callable[[int], bytes] = lambda _count: b""
        """Answers reads of descriptor 3."""
        self.write_result: Callable[[bytes], int] = lambda data: os.write(RESULT, data)
        """Takes writes to it; how much it took."""
        self.engines = False
        """Whether the engine's side answers."""
        self._random: random.Random | None = None
        self._time = _STEADY_TIME
        self._memory: wasmtime.Memory | None = None
        exports = wasmtime.Instance(self.store, between.switch, []).exports(self.store)
        self._linker = wasmtime.Linker(between.engine)
        for name in _FUNCTIONS:
            self._linker.define(self.store, WASI, name, exports[name])
        self._engines = _global(exports["engines"])
        self._steady = _global(exports["steady"])
        table = exports["table"]
        assert isinstance(table, wasmtime.Table)
        self._table = table
        for place, (name, kind) in enumerate(between.kinds.items()):
            ours = getattr(self, f"_{name}", _unknown)
            table.set(self.store, 2 * place, wasmtime.Func(self.store, kind, _safely(ours)))

    def instantiate(self, module: wasmtime.Module) -> None:
        """Give it its module. Raises what the engine raises where they do not fit."""
        self.exports = self._linker.instantiate(self.store, module).exports(self.store)
        memory = self.exports.get("memory")
        if not isinstance(memory, wasmtime.Memory):
            return
        self._memory = memory
        linker = self._between.linker()
        linker.define(self.store, "guest", "memory", memory)
        engines = linker.instantiate(self.store, self._between.relay).exports(self.store)
        for place, name in enumerate(_FUNCTIONS):
            self._table.set(self.store, 2 * place + 1, engines[name])

    def start(self) -> None:
        """Run it as a WASI command; returns or raises when it has ended."""
        function = self.exports.get("_start")
        assert isinstance(function, wasmtime.Func)
        function(self.store)

    def be_steady(self) -> None:
        """The same clock and the same randomness for every execution."""
        self._random = random.Random(0)  # noqa: S311 - to be foreseen is what it is for
        self._steady.set_value(self.store, 1)

    def grant(
        self, config: wasmtime.WasiConfig, paths: list[str], names: list[bytes] | None = None
    ) -> None:
        """What the engine's side has: these folders, by default named as they were announced.

        Their names are in the order of their descriptors; /run is empty and stands for none.
        """
        config.preopen_dir("/run", "/dev/result", False)
        for path, name in zip(paths, names or self._folders[1:]):
            config.preopen_dir(path, os.fsdecode(name))
        self.store.set_wasi(config)

    def hand_over(self) -> None:
        """From now on the engine's side answers."""
        self.engines = True
        self._engines.set_value(self.store, 1)

    # --- our side: WASI preview 1's functions, by their names ---

    def _write(self, place: int, data: bytes) -> None:
        if self._memory is None:  # it has none, or is in its start section
            raise IndexError
        self._memory.write(self.store, data, place & 0xFFFFFFFF)

    def _read(self, place: int, length: int) -> bytes:
        if self._memory is None:
            raise IndexError
        place, length = place & 0xFFFFFFFF, length & 0xFFFFFFFF
        if place + length > self._memory.data_len(self.store):
            raise IndexError
        return bytes(self._memory.read(self.store, place, place + length))

    def _args_sizes_get(self, count: int, size: int) -> int:
        self._write(count, struct.pack("<I", len(self._arguments)))
        self._write(size, struct.pack("<I", sum(len(each) + 1 for each in self._arguments)))
        return _OK

    def _args_get(self, places: int, text: int) -> int:
        for each in self._arguments:
            self._write(places, struct.pack("<I", text))
            self._write(text, each + b"\0")
            places, text = places + 4, text + len(each) + 1
        return _OK

    def _environ_sizes_get(self, count: int, size: int) -> int:
        self._write(count, bytes(4))
        self._write(size, bytes(4))
        return _OK

    def _environ_get(self, _places: int, _text: int) -> int:
        return _OK

    def _clock_time_get(self, _clock: int, _precision: int, out: int) -> int:
        self._time += _STEADY_STEP
        now = self._time if self._random else time.time_ns()
        self._write(out, struct.pack("<Q", now))
        return _OK

    def _clock_res_get(self, _clock: int, out: int) -> int:
        self._write(out, struct.pack("<Q", _STEADY_STEP))
        return _OK

    def _random_get(self, place: int, length: int) -> int:
        length &= 0xFFFFFFFF
        while length:
            count = min(length, _PIECE)
            data = self._random.randbytes(count) if self._random else os.urandom(count)
            self._write(place, data)
            place, length = place + count, length - count
        return _OK

    def _fd_prestat_get(self, descriptor: int, out: int) -> int:
        if not RESULT <= descriptor < RESULT + len(self._folders):
            return _BADF
        self._write(out, struct.pack("<II", 0, len(self._folders[descriptor - RESULT])))
        return _OK

    def _fd_prestat_dir_name(self, descriptor: int, out: int, _length: int) -> int:
        self._write(out, self._folders[descriptor - RESULT])
        return _OK

    def _fd_fdstat_get(self, descriptor: int, out: int) -> int:
        if not 0 <= descriptor < RESULT + len(self._folders):
            return _BADF
        kind = 2 if descriptor <= RESULT else 3  # a character device, a folder
        self._write(out, struct.pack("<BxHxxxxQQ", kind, 0, _ALL_RIGHTS, _ALL_RIGHTS))
        return _OK

    def _fd_filestat_get(self, descriptor: int, out: int) -> int:
        if not 0 <= descriptor <= RESULT:
            return _BADF
        self._write(out, struct.pack("<QQB7xQQQQQ", 0, 0, 2, 1, 0, 0, 0, 0))
        return _OK

    def _fd_close(self, _descriptor: int) -> int:
        return _OK

    _fd_sync = _fd_datasync = _fd_close

    def _fd_fdstat_set_flags(self, _descriptor: int, _flags: int) -> int:
        return _OK

    def _fd_seek(self, _descriptor: int, _offset: int, _whence: int, _out: int) -> int:
        return _SPIPE

    def _fd_tell(self, _descriptor: int, _out: int) -> int:
        return _SPIPE

    def _path_open(self, *_given: int) -> int:
        return _NOENT

    _path_filestat_get = _path_open

    def _fd_read(self, descriptor: int, vectors: int, count: int, out: int) -> int:
        if descriptor != RESULT or count < 1:
            return _BADF
        place, length = struct.unpack("<II", self._read(vectors, 8))
        data = self.read_program(min(length, _PIECE))
        self._write(place, data)
        self._write(out, struct.pack("<I", len(data)))
        return _OK

    def _fd_write(self, descriptor: int, vectors: int, count: int, out: int) -> int:
        if descriptor not in (2, RESULT) or not 0 <= count <= _MOST_VECTORS:
            return _INVAL if descriptor == RESULT else _BADF
        written = 0
        for place, length in struct.iter_unpack("<II", self._read(vectors, 8 * count)):
            while length:
                try:
                    done = self._put(descriptor, self._read(place, min(length, _PIECE)))
                except OSError:
                    return _IO
                place, length, written = place + done, length - done, written + done
        self._write(out, struct.pack("<I", written))
        return _OK

    def _put(self, descriptor: int, data: bytes) -> int:
        return self.write_result(data) if descriptor == RESULT else os.write(descriptor, data)

    def _proc_exit(self, code: int) -> None:
        raise Ended(code)


def _global(export: object) -> wasmtime.Global:
    assert isinstance(export, wasmtime.Global)
    return export


def _unknown(*_given: int) -> int:
    return _NOSYS


def _safely(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """A guest's own wrong address is an error number of its own, and no traceback of ours."""

    def call(*given: int) -> int | None:
        try:
            return function(*given)
        except (IndexError, ValueError, struct.error):
            return _INVAL

    return call
