"""Running Python source in this very interpreter, as ``python3`` itself would.

The interpreter was forked, not executed: random states that it would share with its
siblings are made anew first. What CPython does at its end (threads, ``atexit``, flushing
files that nobody closed) is done here, for the process then ends without its finalizer,
which would copy every shared page.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module itself would cost every sandbox its pages
    from collections.abc import Callable
    from typing import Any

EXECUTABLE = "/usr/bin/python3"
_REHEARSAL = "print(json.dumps({'a': [1, 2.5, None]}), f'{1 + 1}', file=out)"


def run(
    name: str | None, arguments: list[str], source: bytes, on_failure: Callable[[], None]
) -> int:
    """Run ``source``; returns the exit code. ``name``: a script's path, or ``None``."""
    _reseed()
    main = _make_main(name, arguments)
    gc.enable()
    code = _execute(name, source, main)
    if code:
        on_failure()
    return _finish(main, code)


def rehearse() -> None:
    """Do once, with nothing of anybody's, what ``run`` will do.

    It touches, and so copies, the pages that a run would otherwise have to: the cost of a
    fork is paid while parking.
    """
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    json.loads('{"a": [1, 2.5, null, true], "b": "c", "environment": {}}')
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape") as out:
        main.out, main.json = out, json
        exec(compile(_REHEARSAL, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102
        out.flush()
    _clear(main)
    gc.collect()


def _reseed() -> None:
    """State that a fork duplicates: ``random`` by its own fork hook, the rest here."""
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


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


def _make_main(name: str | None, arguments: list[str]) -> Any:
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    main.__annotations__ = {}
    del main.__doc__
    main.__doc__ = None
    if name is None:
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
    else:
        main.__file__ = os.path.abspath(name)
        sys.argv = [name, *arguments]
        sys.path.insert(0, os.path.dirname(main.__file__))
    sys.orig_argv = [EXECUTABLE, *sys.argv]
    sys.modules["__main__"] = main
    return main


def _execute(name: str | None, source: bytes, main: Any) -> int:
    filename: str = "<string>" if name is None else main.__file__
    try:
        code = compile(source, filename, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - the very purpose
    except SystemExit as error:
        return _exit_code(error.code)
    except KeyboardInterrupt:
        _show_error()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - as the interpreter does
        _show_error()
        return 1
    return 0


def _show_error() -> None:
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    # The first frame is this module's own.
    trace = trace.tb_next if trace is not None else None
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    try:
        sys.excepthook(kind, error, trace)
    except BaseException:  # noqa: BLE001 - a hook of the program's may fail as well
        sys.__excepthook__(kind, error, trace)


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


def _finish(main: types.ModuleType, code: int) -> int:
    """What Py_FinalizeEx does that a program can see, in its order."""
    threading = sys.modules.get("threading")
    if threading is not None:
        try:
            threading._shutdown()
        except BaseException:  # noqa: BLE001
            sys.__excepthook__(*sys.exc_info())
    atexit._run_exitfuncs()
    code = _flush_standard_streams(code)
    _clear(main)
    gc.collect()
    for stream in gc.get_objects():
        # Reached only through something that outlives the module: still written out.
        if isinstance(stream, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)):
            _flush(stream)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


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


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        return


def _clear(main: types.ModuleType) -> None:
    """Drop the module's names in CPython's order, so that ``__del__`` and files end."""
    names = main.__dict__
    for private in (True, False):
        for name in list(names):
            underscored = name.startswith("_") and not name.startswith("__")
            if name != "__builtins__" and underscored is private:
                names[name] = None
