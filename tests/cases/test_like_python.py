"""A program of the warm interpreter and one that python3 itself runs cannot be told apart.

Each program runs twice: by /usr/bin/python3 in a plain process, and in a sandbox. Standard
output, standard error and the exit code must be equal. Where the tier's image has another Python
than the host, whose messages are its own, its python3 is executed in a sandbox in place of the first.
"""

import asyncio
import re
import subprocess
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from tests.contract.kit import command, script, small, source

from stockade.port import ExecutionEnvironment, ExecutionRequest, PythonSource

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]

PYTHON = "/usr/bin/python3"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "USER": "guest",
    "SHELL": "/bin/sh",
}

PROGRAMS = {
    "hello": "print('hello', 'w\\u00f6rld', 1 + 1)",
    "syntax_error": "x = 1\ndef f(:\n    pass\n",
    "indentation_error": "if True:\nx = 1\n",
    "tab_error": "if True:\n\tx = 1\n        y = 2\n",
    "unterminated": "print('abc",
    "too_deep_for_the_parser": "-" * 100_000 + "1",
    "uncaught": "def f(n):\n    return 1 / n\n\nf(0)\n",
    "chained": (
        "def f():\n    try:\n        {}['k']\n    except KeyError as e:\n"
        "        raise ValueError('bad') from e\nf()\n"
    ),
    "context": "try:\n    int('x')\nexcept ValueError:\n    undefined\n",
    "suppressed": "try:\n    int('x')\nexcept ValueError:\n    raise TypeError('y') from None\n",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError('two')])",
    "notes": "e = ValueError('x')\ne.add_note('a note')\nraise e",
    "custom_error": "class Mine(Exception):\n    def __str__(self): return 'spoken'\nraise Mine",
    "bad_str": "class Mine(Exception):\n    def __str__(self): 1 / 0\nraise Mine",
    "name_hint": "import collections\ncollections.orderedDict",
    "exit_0": "import sys; print('a'); sys.exit()",
    "exit_3": "import sys; sys.exit(3)",
    "exit_text": "import sys; sys.exit('gone wrong \\u00e9')",
    "exit_true": "import sys; sys.exit(True)",
    "exit_none": "raise SystemExit(None)",
    "exit_256": "import sys; sys.exit(256)",
    "exit_minus_1": "import sys; sys.exit(-1)",
    "exit_huge": "import sys; sys.exit(2 ** 70)",
    "exit_float": "import sys; sys.exit(1.5)",
    "exit_tuple": "import sys; sys.exit((1, 'x'))",
    "exit_object": "class X:\n    def __str__(self): return 'shown'\nraise SystemExit(X())",
    "exit_builtin": "exit(4)",
    "exit_in_finally": "import sys\ntry:\n    sys.exit(2)\nfinally:\n    print('finally')",
    "exit_in_atexit": "import atexit, sys\natexit.register(lambda: sys.exit(7))\nprint('x')",
    "os_exit": "import os, sys; print('lost'); sys.stderr.write('e'); os._exit(6)",
    "exit_in_thread": (
        "import threading, sys\nt = threading.Thread(target=sys.exit, args=(5,))\n"
        "t.start(); t.join(); print('after')"
    ),
    "error_in_thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\n"
        "t.start(); t.join(); print('after')"
    ),
    "thread_outlives_main": (
        "import threading, time\ndef f():\n    time.sleep(0.1); print('thread')\n"
        "threading.Thread(target=f).start()\nprint('main')"
    ),
    "daemon_thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('main')"
    ),
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)",
    "terminated": "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "aborted": "import os; print('x', flush=True); os.abort()",
    "broken_pipe": (
        "import os\nr, w = os.pipe(); os.close(r)\n"
        "try: os.write(w, b'x')\nexcept BrokenPipeError as e: print(e)"
    ),
    "stdout_is_a_broken_pipe": (
        "import os\nr, w = os.pipe(); os.dup2(w, 1); os.close(w); os.close(r)\nprint('x' * 10)"
    ),
    "stdout_closed": "import sys\nsys.stdout.close()\nprint('x')",
    "stdout_closed_below": "import os\nos.close(1)\nprint('x')",
    "stdout_full": "import os\nf = os.open('/dev/full', os.O_WRONLY); os.dup2(f, 1)\nprint('x')",
    "stdout_none": "import sys\nsys.stdout = None\nprint('x')",
    "stdout_replaced": "import io, sys\nsys.stdout = io.StringIO()\nprint('x')",
    "stderr_none": "import sys\nsys.stderr = None\n1 / 0",
    "recursion": "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(e)",
    "recursion_limit": "import sys; print(sys.getrecursionlimit())",
    "deep_repr": "x = []\nfor _ in range(6000): x = (x,)\ntry: repr(x)\nexcept RecursionError as e: print(e)",
    "parser_depth": "print(len(compile('(' * 150 + ')' * 150, 'f', 'eval').co_code) > 0)\neval('(' * 6000 + ')' * 6000)",
    "unicode": "print('\\u65e5\\u672c\\u8a9e \\U0001f600 \\u00eb')",
    "surrogate": "print('\\udcff')",
    "lone_surrogate": "print('\\ud800')",
    "surrogate_on_stderr": "import sys; print('\\ud800', file=sys.stderr)",
    "read_all": "import sys; print(sys.stdin.read().upper())",
    "read_lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "read_bytes": "import sys; print(sys.stdin.buffer.read())",
    "input": "print(input('? ') + input()); input()",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(fileinput.lineno(), line, end='')",
    "main_guard": "if __name__ == '__main__': print('main', __name__, __doc__)",
    "docstring": "'the doc'\nprint(__doc__)",
    "names": "print(sorted(globals()))",
    "spec": "print(__spec__, __package__, __loader__ is not None)",
    "dunder_file": "print(globals().get('__file__'))",
    "annotations": "x: int = 1\ny: 'str'\nprint(__annotations__)",
    "future": "from __future__ import annotations\ndef f(x: nope): pass\nprint(f.__annotations__)",
    "argv": "import sys; print(sys.argv, sys.orig_argv[1:])",
    "path": "import sys; print(sys.path[:5])",
    "modules": "import sys; print([m for m in ('files', 'program', 'wire', 'stockade_guest', 'stockade', '__mp_main__') if m in sys.modules])",
    "import_json": "import json, re, decimal; print(json.dumps({'a': [1, None]}))",
    "missing_module": "import no_such_module_here",
    "pickle": "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).x, pickle.dumps(A)[:40])",
    "dataclass": "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list)\nprint(P(1), P(1) < P(2), P.__module__)",
    "enum": "import enum\nclass E(enum.Flag):\n    A = enum.auto(); B = enum.auto()\nprint(E.A | E.B)",
    "typing": "import typing\nclass N(typing.NamedTuple):\n    x: 'int'\nprint(N(1), typing.get_type_hints(N))",
    "inspect": "import inspect\ndef f():\n    return 1  # here\ntry:\n    print(inspect.getsource(f))\nexcept OSError as e:\n    print(e)",
    "traceback_text": "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
    "warning": "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)",
    "deprecation_in_main": "import warnings\ndef f(): warnings.warn('old', DeprecationWarning)\nf()",
    "syntax_warning": "x = 1\nif x is 1: print('same')",
    "escape_warning": "print('\\\\d'[1])\nx = '\\d'",
    "unawaited": "async def f(): pass\nf()\n",
    "resource_warning": "open('/etc/hostname')\nprint('x')",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nprint(asyncio.run(f()))",
    "async_error": "import asyncio\nasync def f(): raise ValueError('x')\nasyncio.run(f())",
    "del_at_exit": "class A:\n    def __del__(self): print('del', self.n)\na = A(); a.n = 1\n_b = A(); _b.n = 2",
    "del_error": "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a\nprint('x')",
    "atexit": "import atexit\natexit.register(print, 'one'); atexit.register(print, 'two')\nprint('zero')",
    "atexit_error": "import atexit\natexit.register(lambda: 1 / 0)\nprint('x')",
    "atexit_after_error": "import atexit\natexit.register(print, 'last')\n1 / 0",
    "excepthook": "import sys\nsys.excepthook = lambda k, e, t: print('hook', k.__name__, e)\n1 / 0",
    "excepthook_fails": "import sys\ndef hook(k, e, t): raise KeyError('hook')\nsys.excepthook = hook\n1 / 0",
    "file_left_open": "f = open('left', 'w'); f.write('text')\nimport atexit\natexit.register(lambda: (f.flush(), print(open('left').read())))",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True).stdout)",
    "fork": "import os\nprint('a', flush=True)\npid = os.fork()\nif pid == 0:\n    print('child')\nelse:\n    os.waitpid(pid, 0); print('parent')",
    "fork_error": "import os, sys\nif os.fork() == 0: 1 / 0\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "pool_of_failing_workers": "import os, sys\nfor n in range(3):\n    if os.fork() == 0: sys.exit(n)\nprint(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)))",
    "stops_itself": "import os, signal\npid = os.fork()\nif pid == 0:\n    os.kill(os.getpid(), signal.SIGSTOP); os._exit(4)\nos.waitpid(pid, os.WUNTRACED); os.kill(pid, signal.SIGCONT)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "fork_exit_code": "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(9)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "exec": "import os, sys\nprint('before', flush=True)\nos.execv(sys.executable, [sys.executable, '-c', 'print(\"after\")'])",
    "signals": "import signal\nprint({s.name: signal.getsignal(s) for s in signal.Signals if signal.getsignal(s) not in (signal.SIG_DFL, None) and s.name != 'SIGINT'})",
    "sigint_handler": "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)",
    "masks": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "pids": "import os; print(os.getpid() == os.getpgrp() or os.getsid(0) > 0, os.getppid() > 0)",
    "descriptors": "import os\nprint([n for n in range(4, 64) if os.path.exists(f'/proc/self/fd/{n}')])",
    "encoding": "import sys, locale\nprint(sys.stdout.encoding, sys.stdin.errors, sys.stdout.errors, sys.stderr.errors, sys.getfilesystemencoding(), locale.getpreferredencoding(False), sys.flags.utf8_mode)",
    "stream_reprs": "import sys\nprint(sys.stdin, sys.stdout, sys.stderr, sys.stdout.buffer, sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.write_through)",
    "stream_identity": "import sys\nprint(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stdin.fileno(), sys.stdout.fileno(), sys.stdin.closed, sys.stdout.isatty(), sys.stdin.seekable())",
    "newlines": "import sys\nsys.stdout.write('a\\r\\nb\\n'); sys.stdout.write('c\\rd')",
    "gc": "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug())",
    "gc_collects": "import gc, weakref\nclass A: pass\na = A(); a.me = a\nr = weakref.ref(a)\ndel a\nprint(gc.collect() > 0, r())",
    "builtins_name": "print(type(__builtins__).__name__, __builtins__.len([1]))",
    "help": "help(len)",
    "interactive_names": "import sys\nprint(hasattr(sys, 'ps1'), hasattr(sys, 'last_value'), sys.flags.interactive)",
    "trace": "import sys\nprint(sys.gettrace(), sys.getprofile(), threading.active_count() if 'threading' in sys.modules else 1)",
    "threads": "import threading\nprint(threading.active_count(), threading.current_thread() is threading.main_thread(), threading.main_thread().name)",
    "decimal_context": "import decimal; print(decimal.getcontext())",
    "umask": "import os; old = os.umask(0); print(oct(old))",
    "version": "import sys, platform; print(sys.version, sys.implementation.name, sys.prefix, sys.base_prefix, sys.exec_prefix, platform.python_version())",
    "site_packages": "import sys, site; print(sys.path[1:], site.getsitepackages())",
    "environ": "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))",
    "import_this_first_line": "import this",
    "logging": "import logging\nlogging.warning('careful'); logging.getLogger('x').error('bad', exc_info=False)",
    "time_zone": "import time; print(time.tzname)",
    "int_limit": "print(int('9' * 5000))",
    "walrus_and_match": "match [1, 2]:\n    case [x, y] if (z := x + y) > 2: print(z)",
    "big_output": "print('x' * 200000)",
    "no_newline_at_end": "print('a', end='')",
    "faulthandler": "import faulthandler; print(faulthandler.is_enabled())",
    "code_filename": "print((lambda: 0).__code__.co_filename)",
}  # fmt: skip

FILES = {
    "files.py": b"x = 'my files'\n",
    "program.py": b"x = 'my program'\n",
    "wire.py": b"x = 'my wire'\n",
    "interpreter.py": b"x = 'my interpreter'\n",
    "stockade_guest.py": b"x = 'my guest'\n",
    "json.py": b"x = 'my json'\n",
    "data.txt": b"one\ntwo\n",
}
WITH_FILES = {
    "siblings": "import files, program, wire, interpreter, stockade_guest\nprint(files.x, program.x, wire.x, interpreter.x, stockade_guest.x, files.__file__)",
    "shadowed_standard_library": "import json; print(getattr(json, 'x', 'the real one'))",
    "data": "print(open('data.txt').read())",
    "import_of_main": "import __main__; print(__main__.__dict__ is globals())",
    "sibling_that_fails": "import broken",
    "runpy": "import runpy; print(runpy.run_path('files.py')['x'])",
    "importlib_reload": "import importlib, files; print(importlib.reload(files).x)",
    "multiprocessing_fork": (
        "import multiprocessing as mp\ndef f(n): return n * n\n"
        "if __name__ == '__main__':\n    with mp.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))"
    ),
}
ONLY_AS_SCRIPT = {
    "multiprocessing_spawn": (
        "import multiprocessing as mp\ndef f(n): return n * n\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(2) as p: print(p.map(f, range(5)))"
    ),
    "process_pool": (
        "from concurrent.futures import ProcessPoolExecutor\ndef f(n): return n + 1\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(2) as p: print(list(p.map(f, range(4))))"
    ),
    "script_path": "import sys, os; print(os.path.basename(__file__), os.path.isabs(__file__), sys.path[0] == os.path.dirname(os.path.abspath(__file__)))",
    "own_source": "print(len(open(__file__).read()))",
    "bom": "\ufeffprint('bom')",
    "coding": "# -*- coding: utf-8 -*-\nprint('\u00e9')",
    "crlf": "print('a')\r\nprint('b')\r\n",
}
STDIN = "first line\nsecond \u00eb\nthird".encode()


def normal(text: bytes, folder: str) -> str:
    """Without what differs from one process to the next: the folder, addresses, pids."""
    shown = text.decode("utf-8", "backslashreplace").replace(folder, "/workspace")
    shown = re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", shown)
    return re.sub(r"Thread-\d+|pid=\d+", "N", shown)


async def by_python(
    text: str, arguments: list[str], name: str | None, folder: Path, files: dict[str, bytes]
) -> tuple[str, str, int]:
    for path, content in files.items():
        (folder / path).write_bytes(content)
    program = ["-c", text] if name is None else [name]
    if name is not None:
        (folder / name).write_bytes(text.encode())
    done = await asyncio.to_thread(
        subprocess.run,
        [PYTHON, *program, *arguments],
        cwd=folder,
        env=ENVIRONMENT | {"HOME": str(folder)},
        input=STDIN,
        capture_output=True,
        timeout=20,
        check=False,
        start_new_session=True,
    )
    return normal(done.stdout, str(folder)), normal(done.stderr, str(folder)), done.returncode


async def has_the_hosts_python(environment: ExecutionEnvironment) -> bool:
    """Whether it is the very same version."""
    if environment not in _VERSIONS:
        inside = await environment.run(command("python3", "--version"))
        _VERSIONS[environment] = inside.stdout.content
    return _VERSIONS[environment] == await asyncio.to_thread(
        subprocess.check_output, [PYTHON, "--version"]
    )


_VERSIONS: WeakKeyDictionary[ExecutionEnvironment, bytes] = WeakKeyDictionary()


async def by_python_inside(
    environment: ExecutionEnvironment,
    text: str,
    arguments: list[str],
    name: str | None,
    files: dict[str, bytes],
) -> tuple[str, str, int | None]:
    if name is None:
        request = command("python3", "-c", text, *arguments, files=files)
    else:
        files = {**files, name: text.encode()}
        request = command("python3", name, *arguments, files=files)
    return await outcome_of(environment, request)


async def in_a_sandbox(
    environment: ExecutionEnvironment,
    text: str,
    arguments: list[str],
    name: str | None,
    files: dict[str, bytes],
) -> tuple[str, str, int | None]:
    request = (
        source(text, *arguments, files=files)
        if name is None
        else script(name, text, *arguments, files=files)
    )
    return await outcome_of(environment, request)


async def outcome_of(
    environment: ExecutionEnvironment, request: ExecutionRequest
) -> tuple[str, str, int | None]:
    execution = await environment.run(request, small(wall_seconds=8), stdin=STDIN)
    code = execution.exit_code if execution.signal is None else -execution.signal
    out, err = execution.stdout.content, execution.stderr.content
    return normal(out, "/workspace"), normal(err, "/workspace"), code


async def compare(
    environment: ExecutionEnvironment,
    folder: Path,
    text: str,
    name: str | None,
    files: dict[str, bytes] | None = None,
) -> None:
    arguments = ["one", "two three", "-x"]
    if "fileinput" in text:
        arguments = []
    expected: tuple[str, str, int | None]
    if await has_the_hosts_python(environment):
        expected = await by_python(text, arguments, name, folder, files or {})
    else:
        expected = await by_python_inside(environment, text, arguments, name, files or {})
    found = await in_a_sandbox(environment, text, arguments, name, files or {})
    assert found == expected


@pytest.mark.parametrize("program", PROGRAMS)
async def test_source(real: ExecutionEnvironment, tmp_path: Path, program: str) -> None:
    await compare(real, tmp_path, PROGRAMS[program], None)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_script(real: ExecutionEnvironment, tmp_path: Path, program: str) -> None:
    await compare(real, tmp_path, PROGRAMS[program], "prog.py")


@pytest.mark.parametrize("program", WITH_FILES)
@pytest.mark.parametrize("name", [None, "prog.py"])
async def test_beside_files(
    real: ExecutionEnvironment, tmp_path: Path, program: str, name: str | None
) -> None:
    files = FILES | {"broken.py": b"def f():\n    1 / 0\nf()\n"}
    if program != "shadowed_standard_library":
        del files["json.py"]
    await compare(real, tmp_path, WITH_FILES[program], name, files)


@pytest.mark.parametrize("program", ONLY_AS_SCRIPT)
async def test_script_alone(real: ExecutionEnvironment, tmp_path: Path, program: str) -> None:
    await compare(real, tmp_path, ONLY_AS_SCRIPT[program], "prog.py")


@pytest.mark.parametrize("fresh", [False, True])
async def test_the_program_stands_on_one_frame(real: ExecutionEnvironment, fresh: bool) -> None:
    """The one difference that stays: a warm interpreter's own frame, by which it was started."""
    text = "import sys\nf, n = sys._getframe(), 0\nwhile f: f, n = f.f_back, n + 1\nprint(n)"
    execution = await real.run(ExecutionRequest(PythonSource(text, fresh=fresh)))
    assert execution.stdout.content == (b"1\n" if fresh else b"2\n")


async def test_a_traceback_shows_no_frame_of_ours(real: ExecutionEnvironment) -> None:
    """Neither of an error nor of one within a recursion."""
    text = "def f():\n    f()\nf()\n"
    execution = await real.run(ExecutionRequest(PythonSource(text)))
    lines = execution.stderr.text().splitlines()
    assert lines[1:3] == [
        '  File "<string>", line 3, in <module>',
        '  File "<string>", line 2, in f',
    ]
    assert lines[-1] == "RecursionError: maximum recursion depth exceeded"


async def test_nor_of_what_the_compiler_raises(real: ExecutionEnvironment) -> None:
    # Not only SyntaxError.
    execution = await real.run(ExecutionRequest(PythonSource("print(1)\n\0")))
    assert execution.exit_code == 1
    assert "File" not in execution.stderr.text()
    assert "null bytes" in execution.stderr.text()
