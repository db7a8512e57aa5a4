"""Python in WebAssembly: what it has, how it ends, and what is refused before it runs."""

import json

import pytest
from tests.wasm.conftest import Run

from stockade.port import MIB, Outcome, PythonScript, PythonSource, Tier

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_goes_in_and_what_comes_out(run: Run) -> None:
    """Arguments, input, variables, files and folder go in; output, result and artefacts come out."""
    source = """
import os, sys
open("made/b", "w").write(open("given/a").read().upper())
with open(3, "wb") as result:
    result.write(b'{"ok": true}')
print(sys.argv, sys.stdin.read(), os.environ["NAME"], os.getcwd())
print("oops", file=sys.stderr)
"""
    execution = await run(
        PythonSource(source, ("one",)),
        stdin=b"input",
        files={"in/given/a": b"text", "in/made/keep": b""},
        artefacts=("in/made/b",),
        environment={"NAME": "value"},
        working_directory="in",
    )
    assert execution.ok, (execution.detail, execution.stderr)
    assert execution.stdout.text() == "['-c', 'one'] input value /workspace/in\n"
    assert execution.stderr.text() == "oops\n"
    assert (execution.result, execution.tier) == (b'{"ok": true}', Tier.WASM)
    assert [artefact.data for artefact in execution.artefacts] == [b"TEXT"]


async def test_a_script_imports_what_lies_beside_it(run: Run) -> None:
    execution = await run(
        PythonScript("tool/main.py", b"import beside; print(__name__, __file__, beside.VALUE)"),
        files={"tool/beside.py": b"VALUE = 7"},
    )
    assert execution.stdout.text() == "__main__ /workspace/tool/main.py 7\n", execution.stderr


async def test_nothing_of_one_execution_is_in_the_next(run: Run) -> None:
    mark = "import builtins, json\nopen('mark', 'w').write('x'); builtins.mark = 1; json.mark = 1"
    look = (
        "import builtins, json, os\n"
        "print(os.listdir('/workspace'), os.listdir('/tmp'), hasattr(builtins, 'mark'),"
        " hasattr(json, 'mark'))"
    )
    assert (await run(PythonSource(mark))).ok
    for tenant in ("local", "other"):
        assert (await run(PythonSource(look), tenant=tenant)).stdout.text() == "[] [] False False\n"


async def test_executions_differ_in_their_randomness(run: Run) -> None:
    """They are copies of one interpreter, which must not show."""
    source = "import random, uuid, os\nprint(random.random(), uuid.uuid4(), os.urandom(8))"
    said = {(await run(PythonSource(source))).stdout.text() for _ in range(3)}
    assert len(said) == 3


async def test_a_deterministic_execution_repeats_itself(run: Run) -> None:
    source = (
        "import random, time, uuid\nprint(random.random(), time.time(), hash('a'), uuid.uuid4())"
    )
    one, other = [
        await run(PythonSource(source), environment={"STOCKADE_DETERMINISTIC": "1"})
        for _ in range(2)
    ]
    assert one.ok, one.stderr
    assert one.stdout == other.stdout
    assert " 946684800." in one.stdout.text()  # 2000-01-01


@pytest.mark.parametrize(
    ("source", "where", "why"),
    [
        ("import os\nimport subprocess", "import subprocess, line 2", "no"),
        ("def f():\n    from multiprocessing import Pool", "import multiprocessing, line 2", "no"),
        ("import socket", "import socket, line 1", "no sockets"),
        ("import ctypes", "import ctypes, line 1", "native code"),
        ("import numpy.linalg", "import numpy.linalg, line 1", "no such module"),
        ("import os\nos.system('id')", "os.system, line 2", "processes"),
    ],
)
async def test_what_it_cannot_do_is_said_before_it_runs(
    run: Run, source: str, where: str, why: str
) -> None:
    execution = await run(PythonSource("print('ran')\n" + source))
    assert execution.outcome is Outcome.INVALID
    line = int(where[-1]) + 1
    assert f"{where[:-1]}{line}" in execution.detail
    assert why in execution.detail
    assert not execution.stdout.text()


async def test_an_import_that_may_fail_is_no_refusal(run: Run) -> None:
    source = "try:\n    import numpy\nexcept ImportError:\n    print('without')"
    assert (await run(PythonSource(source))).stdout.text() == "without\n"


@pytest.mark.parametrize(
    ("source", "limits", "outcome"),
    [
        ("while True: pass", {"wall_seconds": 0.5}, Outcome.WALL_CLOCK),
        ("import time; time.sleep(60)", {"wall_seconds": 0.5}, Outcome.WALL_CLOCK),
        (
            "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
            {"wall_seconds": 0.5},
            Outcome.WALL_CLOCK,
        ),
        ("while True: pass", {"cpu_seconds": 0.3}, Outcome.CPU_TIME),
        ("while True: print('x' * 1000)", {"output_bytes": 10_000}, Outcome.OUTPUT),
        ("import os\nwhile True: os.write(3, bytes(1000))", {"result_bytes": 9999}, Outcome.OUTPUT),
        (
            "f = open('f', 'wb')\nwhile True: f.write(bytes(65536))",
            {"disk_bytes": MIB},
            Outcome.DISK,
        ),
        ("for i in range(999): open(str(i), 'w').close()", {"inodes": 100}, Outcome.INODES),
        ("1 / 0", {}, Outcome.NONZERO_EXIT),
        ("import sys; sys.exit(3)", {}, Outcome.NONZERO_EXIT),
        ("x =", {}, Outcome.NONZERO_EXIT),
    ],
)
async def test_how_it_ends(
    run: Run, source: str, limits: dict[str, float], outcome: Outcome
) -> None:
    execution = await run(PythonSource(source), limits=limits)
    assert execution.outcome is outcome, (execution.detail, execution.stderr)


async def test_memory_is_bounded(run: Run) -> None:
    source = "kept = []\nwhile True: kept.append(bytes(1 << 20))"
    execution = await run(
        PythonSource(source), limits={"memory_bytes": 64 * MIB, "disk_bytes": MIB}
    )
    # Where no cgroup counts, the interpreter is told that there is no more.
    told = execution.outcome is Outcome.NONZERO_EXIT and "MemoryError" in execution.stderr.text()
    assert told or execution.outcome is Outcome.MEMORY, execution.detail


async def test_a_traceback_shows_the_program_alone(run: Run) -> None:
    execution = await run(PythonSource("def f():\n    raise ValueError('no')\nf()"))
    assert execution.stderr.text().splitlines() == [
        "Traceback (most recent call last):",
        '  File "<string>", line 3, in <module>',
        '  File "<string>", line 2, in f',
        "ValueError: no",
    ]


async def test_nothing_outside_the_granted_folders_is_there(run: Run) -> None:
    source = r"""
import json, os
def opened(path):
    try:
        return open(path, "rb").read(1) is not None
    except OSError:
        return False
paths = ["/etc/passwd", "/proc/self/maps", "/opt/wasm/modules/python.compiled", "../etc/passwd",
         "/workspace/../etc/passwd", "/tmp/../etc/passwd", "/dev/result/../etc/passwd", "/dev/null"]
print(json.dumps([path for path in paths if opened(path)]))
for target in ("/etc/passwd", "../etc/passwd"):
    try:
        os.symlink(target, "/workspace/link")
        print(open("/workspace/link").read())
    except OSError:
        print("refused")
    if os.path.islink("/workspace/link"):
        os.unlink("/workspace/link")
"""
    execution = await run(PythonSource(source))
    lines = execution.stdout.text().splitlines()
    assert execution.ok, execution.stderr
    assert json.loads(lines[0]) == []
    assert lines[1:] == ["refused", "refused"]


async def test_files_that_would_be_run_by_a_start_are_not(run: Run) -> None:
    """SECURITY 41, 42: what a workspace holds is no code of the interpreter's start."""
    evil = b"print('EVIL')"
    files = dict.fromkeys(
        ("sitecustomize.py", "usercustomize.py", "json.py", "ast.py", "random.py", "x.pth"), evil
    )
    execution = await run(
        PythonSource("print('clean')"),
        files=files,
        environment={"PYTHONPATH": "/workspace", "PYTHONSTARTUP": "/workspace/json.py"},
    )
    assert execution.stdout.text() == "clean\n"


@pytest.mark.parametrize(
    "result", ["NaN", "[" * 100_000, "1" * 100_000, "\udcff", ""], ids=lambda text: text[:4]
)
async def test_a_result_is_bytes_and_is_never_parsed(run: Run, result: str) -> None:
    """SECURITY 72."""
    data = result.encode("utf-8", "surrogateescape")
    execution = await run(
        PythonSource("import os, sys\nos.write(3, sys.stdin.buffer.read())"), stdin=data
    )
    assert (execution.result or b"") == data


async def test_the_standard_library_is_there(run: Run) -> None:
    """SECURITY 96: another build of the interpreter is noticed by what it lacks."""
    names = (
        "abc, argparse, array, asyncio, base64, bisect, calendar, cmath, codecs, collections, "
        "colorsys, configparser, contextlib, copy, csv, dataclasses, datetime, decimal, difflib, "
        "email, enum, fnmatch, fractions, functools, glob, graphlib, gzip, hashlib, heapq, hmac, "
        "html, html.parser, inspect, io, ipaddress, itertools, json, keyword, logging, math, "
        "numbers, operator, os, pathlib, pickle, pprint, queue, random, re, secrets, shlex, "
        "shutil, sqlite3, statistics, string, struct, tempfile, textwrap, threading, time, "
        "timeit, traceback, types, typing, unicodedata, unittest, urllib.parse, uuid, "
        "xml.etree.ElementTree, zipfile, zlib, zoneinfo "
    )
    execution = await run(PythonSource(f"import {names}\nprint('all')"))
    assert execution.stdout.text() == "all\n", (execution.detail, execution.stderr)
