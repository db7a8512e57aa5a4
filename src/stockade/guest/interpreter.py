"""Running Python source in this very interpreter, as ``python3`` itself would.

The interpreter was forked, not executed: random states that it would share with its
siblings are made anew first. What CPython does at its end (threads, ``atexit``, flushing
files that nobody closed) is done here, for the process then ends without its finalizer,
which would copy every shared page.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module itself would cost every sandbox its pages
    from collections.abc import Callable
    from typing import Any, NoReturn

EXECUTABLE = "/usr/bin/python3"
_OURS = ("stockade_guest", "stockade_guest.zygote", "stockade_guest.program", __name__)
_REHEARSAL = b"print(end='')"


class Run:
    """One program, from its source to its end.

    Made ahead of the program, as much as can be: what is done by then costs no call its time.
    The caller executes ``compile()`` in ``names`` itself, from the bottom of the stack: so
    the program sees no frame of ours but the caller's one.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._source = b""
        self._code = 0
        self._on_failure: Callable[[], None] = _forget_ours
        self.at_last: Callable[[int], None] | None = None
        """Called with the exit code when all that a program can see is done."""
        self._main = _make_main()
        self.names: dict[str, Any] = self._main.__dict__
        _forget_ours()

    def take(
        self, name: str | None, arguments: list[str], source: bytes, on_failure: Callable[[], None]
    ) -> None:
        """``name``: a script's path, or ``None`` for source that was given as such."""
        self._pid = os.getpid()
        self._name = name
        self._source = source
        self._on_failure = on_failure
        if name is None:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            sys.orig_argv = [EXECUTABLE, "-c", os.fsdecode(source), *arguments]
        else:
            main = self._main
            main.__file__ = os.path.abspath(name)
            main.__cached__ = None
            loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
            main.__loader__ = loader("__main__", main.__file__)
            sys.argv = [name, *arguments]
            sys.path.insert(0, os.path.dirname(main.__file__))
            sys.orig_argv = [EXECUTABLE, *sys.argv]
        _prefer_files_of(sys.path[0])
        gc.enable()

    def compile(self) -> types.CodeType:
        """The program's code. What it raises is the program's as well: mostly SyntaxError."""
        filename = "<string>" if self._name is None else self._main.__file__
        code: types.CodeType = compile(self._source, filename, "exec", dont_inherit=True)
        if self._name is None and sys.version_info >= (3, 13):
            _remember_lines(code, os.fsdecode(self._source))
        return code

    def failed(self) -> None:
        """Take the exception that is being handled as the program's end."""
        kind, error, trace = sys.exc_info()
        assert kind is not None
        assert error is not None
        if isinstance(error, SystemExit):
            self._code = _exit_code(error.code)
            return
        self._code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        if trace is not None and _is_ours(trace.tb_next):
            trace = trace.tb_next
        _show_error(kind, error, trace.tb_next if trace is not None else None)

    def finish(self) -> NoReturn:
        """What Py_FinalizeEx does that a program can see, in its order; then the end."""
        # A process that the program forked comes here, too.
        if self._code and os.getpid() == self._pid:
            self._on_failure()
        threading = sys.modules.get("threading")
        if threading is not None:
            try:
                threading._shutdown()
            except BaseException:  # noqa: BLE001 - as the interpreter does
                sys.__excepthook__(*sys.exc_info())
        atexit._run_exitfuncs()
        code = _flush_standard_streams(self._code)
        # Before anything is taken apart: in a cycle the file could go before its buffer.
        _flush_files()
        _clear(self._main)
        gc.collect()
        _flush_files()
        if code == self._code:  # else it has failed, and was told, already
            code = _flush_standard_streams(code)
        ctypes.pythonapi.fflush(None)
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        elif self.at_last is not None and os.getpid() == self._pid:
            self.at_last(code)
        os._exit(code)


def rehearse(run: Run) -> None:
    """Do once, with nothing of anybody's, what a run will do.

    It touches, and so copies, the pages that a run would otherwise have to: the cost of a
    fork is paid while parking.
    """
    kept = sys.argv, sys.orig_argv, sys.path[:]
    names = {"__builtins__": run.names["__builtins__"]}
    try:
        run.take(None, [], _REHEARSAL, run.failed)
        exec(run.compile(), names)  # noqa: S102
    finally:
        sys.argv, sys.orig_argv, sys.path[:] = kept
        gc.disable()
    _flush_standard_streams(0)
    _flush_files()
    gc.collect()
    ctypes.pythonapi.fflush(None)


def settle() -> None:
    """Objects made until now are never collected.

    Collecting would touch, and so copy, pages that all copies of this process share.
    """
    gc.collect()
    gc.disable()
    gc.freeze()


def reseed() -> None:
    """Make anew what a copy of this process has in common with it."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def preload(modules: list[str]) -> None:
    """Import what programs commonly use; a module that the image lacks is left out."""
    for name in modules:
        try:
            __import__(name)
        except ImportError:
            continue


def open_standard_streams() -> None:
    """Standard input, output and error as CPython opens them in a UTF-8 locale."""
    _open_stream("stdin", 0, "r", -1)
    _open_stream("stdout", 1, "w", 1 if os.isatty(1) else -1)
    _open_stream("stderr", 2, "w", 1)


def _open_stream(name: str, descriptor: int, mode: str, buffering: int) -> None:
    errors = "backslashreplace" if name == "stderr" else "surrogateescape"
    stream: Any = open(descriptor, mode, buffering, encoding="utf-8", errors=errors, closefd=False)
    stream.buffer.raw.name = f"<{name}>"
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _make_main() -> Any:
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    main.__annotations__ = {}
    main.__loader__ = sys.modules["_frozen_importlib"].BuiltinImporter
    sys.modules["__main__"] = main
    return main


def _forget_ours() -> None:
    for name in _OURS:
        sys.modules.pop(name, None)


def _prefer_files_of(folder: str) -> None:
    """Let the program import what it would: its own files before what was preloaded."""
    loaded = sys.modules
    try:
        beside = {entry.partition(".")[0] for entry in os.listdir(folder or ".")}
    except OSError:
        return
    # Looked up, not intersected: that would touch, and so copy, the pages of every name.
    for shadowed in [name for name in beside if name in loaded]:
        if shadowed == "__main__" or shadowed in sys.builtin_module_names:
            continue
        for name in [name for name in loaded if name.partition(".")[0] == shadowed]:
            del loaded[name]


def _is_ours(trace: types.TracebackType | None) -> bool:
    return trace is not None and trace.tb_frame.f_code is Run.compile.__code__


def _remember_lines(code: types.CodeType, source: str) -> None:
    """For tracebacks, which since Python 3.13 show the lines of ``python3 -c``, too.

    Without it they would show those that this interpreter was started with.
    """
    import linecache

    remember = getattr(linecache, "_register_code", None)
    if remember is not None:
        remember(code, source, code.co_filename)


def _show_error(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    try:
        sys.excepthook(kind, error, trace)
    except BaseException as of_hook:  # noqa: BLE001 - a hook of the program's may fail as well
        print("Error in sys.excepthook:", file=sys.stderr)
        hook_trace = of_hook.__traceback__
        of_hook.__traceback__ = hook_trace.tb_next if hook_trace is not None else None
        of_hook.__context__ = None
        sys.__excepthook__(type(of_hook), of_hook, of_hook.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        # One that is no C long is an error there, and -1: handle_system_exit(), pythonrun.c.
        return value & 0xFF if -(2**63) <= value < 2**63 else 255
    print(value, file=sys.stderr)
    return 1


def _flush_standard_streams(code: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and stream is sys.stdout:
                print(
                    "Exception ignored in: %r\n%s: %s" % (stream, type(error).__name__, error),
                    file=sys.__stderr__,
                )
                return code or 120
    return code


def _flush_files() -> None:
    """Write out what the program's files hold, wherever they are kept."""
    for thing in gc.get_objects():
        if isinstance(thing, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)):
            try:
                thing.flush()
            except (OSError, ValueError):
                continue  # closed, or nobody reads it: the interpreter is silent, too


def _clear(main: types.ModuleType) -> None:
    """Drop the module's names in the order they were made, so that ``__del__`` and files end."""
    names = main.__dict__
    for name in list(names):
        if name != "__builtins__":
            names[name] = None
