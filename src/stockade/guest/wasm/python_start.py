"""The start of CPython for WASI: it runs inside WebAssembly, up to where it waits for a program.

What is imported here costs a program nothing to import. What a program cannot do here is said
before any of it runs, with the line: docs/wasm.md.
"""

from __future__ import annotations

import ast
import atexit
import gc
import io
import json
import os
import random
import sys
import types
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PROGRAM = 3
_NO_PROCESS = "it starts processes, and there are none in WebAssembly"
_NO_NETWORK = "it needs the network, and WebAssembly has no sockets here"
_NO_NATIVE = "it calls native code, and WebAssembly has none"
_CANNOT = {
    "subprocess": _NO_PROCESS,
    "multiprocessing": _NO_PROCESS,
    "pty": _NO_PROCESS,
    "socket": _NO_NETWORK,
    "ssl": _NO_NETWORK,
    "socketserver": _NO_NETWORK,
    "_socket": _NO_NETWORK,
    "ctypes": _NO_NATIVE,
    "cffi": _NO_NATIVE,
}
_CANNOT_OS = ("fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "kill", "pipe")
_FAMILIES = ("exec", "spawn")
_CATCH = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", "AttributeError"}


def _preload(names: list[str]) -> None:
    for name in names:
        try:
            __import__(name)
        except ImportError:
            continue


def _read(count: int) -> bytes:
    pieces = []
    while count:
        piece = os.read(_PROGRAM, min(count, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _refuse(line: int, what: str, reason: str) -> NoReturn:
    # Read by the worker as a refusal, for the program has not been started: see ``_run``.
    os.write(_PROGRAM, ("%s, line %d\0%s" % (what, line, reason)).encode("utf-8", "replace"))
    os._exit(1)


def _catches(node: ast.Try) -> bool:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or getattr(kind, "id", None) in _CATCH for kind in kinds):
            return True
    return False


def _check(source: bytes, filename: str) -> None:
    """What cannot be, outside of a ``try`` that would notice. A hint for its author, and no wall."""
    try:
        waiting: list[ast.AST] = [ast.parse(source, filename)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # said when it is compiled
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Try) and _catches(node):
            waiting += [*node.handlers, *node.orelse, *node.finalbody]
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                _check_import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            _check_import(node.lineno, node.module)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and (node.attr in _CANNOT_OS or node.attr.startswith(_FAMILIES))
        ):
            _refuse(node.lineno, "os." + node.attr, _NO_PROCESS)
        waiting += ast.iter_child_nodes(node)


def _check_import(line: int, name: str) -> None:
    top = name.partition(".")[0]
    if top in sys.modules:
        return
    beside = sys.path[0] or "."
    if os.path.exists(beside + "/" + top + ".py") or os.path.isdir(beside + "/" + top):
        return
    if top in _CANNOT:
        _refuse(line, "import " + name, _CANNOT[top])
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None:
        _refuse(
            line,
            "import " + name,
            "this Python has its own standard library and the workspace's files, and no such module",
        )


def _take() -> tuple[dict[str, Any], bytes]:
    """The program: lengths, then what they are of."""
    size, source_size = (int.from_bytes(_read(4), "big") for _ in range(2))
    given = json.loads(_read(size))
    source = _read(source_size)
    os.read(_PROGRAM, 1)  # nothing more comes: from here on the engine answers
    return given, source


def _main() -> tuple[bytes, str, dict[str, Any]]:
    _preload(sys.argv[1:])
    del sys.argv[1:]
    gc.collect()
    gc.freeze()
    given, source = _take()
    for name, value in given["environment"].items():
        os.environ[name] = value
    os.chdir(given["working_directory"])
    if "random" in sys.modules and not given["steady"]:
        random.seed()
    name = given["name"]
    sys.argv = [name or "-c", *given["arguments"]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(name)) if name else "")
    filename = os.path.abspath(name) if name else "<string>"
    _check(source, filename)
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    main.__annotations__ = {}
    if name:
        main.__file__ = filename
    sys.modules["__main__"] = main
    return source, filename, main.__dict__


def _exit_code(value: object) -> int:
    if value is None or isinstance(value, int):
        return value or 0
    print(value, file=sys.stderr)
    return 1


def _run(source: bytes, filename: str, names: dict[str, Any]) -> NoReturn:
    os.read(_PROGRAM, 1)  # from here on descriptor 3 is the program's, for its result
    code = 0
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), names)  # noqa: S102
    except SystemExit as ending:
        code = _exit_code(ending.code)
    except BaseException as error:  # noqa: BLE001 - all that a program raises ends here
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = code or 120
    # Files that nobody closed are written out; the interpreter's own end would only take time.
    for thing in gc.get_objects():
        if isinstance(thing, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)):
            try:
                thing.flush()
            except (OSError, ValueError):
                continue
    os._exit(code & 0xFF)


_run(*_main())
