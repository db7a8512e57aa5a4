"""What the check of Python source finds, and that it ends whatever it is given."""

import importlib
import json
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.escapes import ALLOWED, ESCAPES

from stockade.guest.checks import python_source
from stockade.guest.checks.python_source import WrongPolicy, check


def found(source: str | bytes, **policy: Any) -> list[tuple[int, int, str]]:
    content = source if isinstance(source, bytes) else source.encode()
    return [(f["line"], f["column"], f["rule"]) for f in check(content, policy)]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(s, id=f"{where}-{i}")
        for where, all_ in ESCAPES.items()
        for i, s in enumerate(all_)
    ],
)
def test_an_escape_is_found(source: str) -> None:
    # numpy is allowed, for the escapes that lead through it.
    assert found(source, imports=[*python_source.MODULES, "numpy"]), source


@pytest.mark.parametrize("source", ALLOWED)
def test_what_tools_are_made_of_is_allowed(source: str) -> None:
    assert check(source.encode(), {}) == []


def test_a_finding_says_where_what_and_what_instead() -> None:
    assert check(b"import json\nvalue = ('\xc3\xa9', eval('1'))\n", {}) == [
        {
            "line": 2,
            "column": 15,
            "rule": "name",
            "sentence": "eval is not allowed",
            "suggestion": "write the expression itself, or parse data with json.loads",
        }
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_places_hold_for_every_end_of_a_line(end: str) -> None:
    source = end.join(("x = 1", "", "y = ('\u00e9', eval)", ""))
    assert found(source) == [(3, 11, "name")]


def test_a_comment_further_down_names_no_encoding() -> None:
    assert found("x = 1\n\n# the coding: of this is odd") == []


def test_findings_come_in_the_order_of_the_source_and_are_bounded() -> None:
    source = "".join(f"x{i}.__class__\n" for i in range(1000))
    assert found(source) == [(i, 1, "dunder") for i in range(1, 51)]
    assert len(found(source, findings=3)) == 3


@pytest.mark.parametrize(
    ("source", "line", "column", "rule"),
    [
        (b"x = 1\ny = \0", 2, 5, "encoding"),
        (b"x = '\xff'", 1, 6, "encoding"),
        (b"x = '\xed\xa0\x80'", 1, 6, "encoding"),
        (b"# coding: latin-1\nx = 1", 1, 1, "encoding"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=utf-7 :\n", 2, 1, "encoding"),
        (b"# coding: unicode_escape\n# \\u000aimport os", 1, 1, "encoding"),
        (b"\xef\xbb\xbf# coding: rot13\n", 1, 1, "encoding"),
        (b"\x0c# coding=utf-16\n", 1, 1, "encoding"),
        (b"#\r# coding: utf-16\n", 1, 1, "encoding"),
        (b"#\r\r\r# coding: utf-16\n", 1, 1, "encoding"),
        (b"#" + b" " * 9000 + b"coding: utf-16\n", 1, 1, "encoding"),
        (b"x = 1\ny = = 2\n", 2, 5, "syntax"),
        (b"def f(:\n", 1, 7, "syntax"),
        (b"  x = 1\n y = 2", 1, 1, "syntax"),
        (b"x = '", 1, 5, "syntax"),
    ],
)
def test_what_cannot_be_read_is_a_finding(source: bytes, line: int, column: int, rule: str) -> None:
    (finding,) = found(source)
    assert finding[0] == line or rule == "syntax"
    assert finding[2] == rule
    if rule == "encoding":
        assert finding[1] == column


DEEP = {
    "parentheses": "(" * 150 + "1" + ")" * 150,
    "lists": "[" * 5000 + "]" * 5000,
    "minus": "-" * 50_000 + "1",
    "not": "not " * 50_000 + "1",
    "sums": "1" + "+1" * 50_000,
    "powers": "1" + "**1" * 5_000,
    "attributes": "a" + ".a" * 50_000,
    "calls": "a" + "()" * 50_000,
    "items": "a" + "[0]" * 20_000,
    "lambdas": "lambda: " * 5_000 + "1",
    "conditions": "1 if 1 else " * 5_000 + "1",
    "branches": "if 1: pass\n" + "elif 1: pass\n" * 5_000,
    "blocks": "".join(" " * i + "if 1:\n" for i in range(99)) + " " * 99 + "pass",
    "too many blocks": "".join(" " * i + "if 1:\n" for i in range(200)) + " " * 200 + "pass",
    "formats": "f'{" * 100 + "1" + "}'" * 100,
    "awaits": "async def f():\n " + "await " * 5_000 + "x",
    "decorators": "@a\n" * 30_000 + "def f(): pass",
    "strings": "''" * 100_000,
    "with": "with " + ", ".join(["a"] * 5_000) + ": pass",
    "a number": "9" * 100_000,
    "a name": "a" * 200_000,
    "hex": "0x" + "f" * 200_000,
    "lines": "\n" * 250_000,
    "many": "x = 1\n" * 40_000,
    "brackets": "([{" * 50,
    "unions": "x: " + "|".join(["int"] * 5_000) + " = 1",
    "backslashes": "\\\n" * 100_000 + "x",
    "junk": "$?`" * 50_000,
}


def run_alone(source: bytes, policy: bytes = b"{}") -> dict[str, Any]:
    """The program as it runs in a sandbox, by the interpreter that a sandbox has."""
    read, write = os.pipe()
    script = (
        "import os, resource, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "exec(compile(open(sys.argv[2], 'rb').read(), 'python_source.py', 'exec'))\n"
    )
    try:
        ended = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", script, str(write), str(python_source.__file__)],
            input=policy + b"\n" + source,
            pass_fds=[write],
            capture_output=True,
            timeout=100,
            check=False,
        )
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as result:
        said = result.read()
    assert ended.returncode == 0, ended.stderr[-1000:]
    assert ended.stderr == b""
    answer = json.loads(said)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("source", DEEP.values(), ids=DEEP.keys())
def test_depth_and_size_end_in_findings(source: str) -> None:
    answer = run_alone(source.encode())
    assert set(answer) == {"findings"}
    assert len(answer["findings"]) <= 50


@pytest.mark.parametrize(
    "name", ["minus", "sums", "attributes", "lists", "a number", "too many blocks"]
)
def test_what_is_too_deep_is_said_to_be(name: str) -> None:
    (finding,) = run_alone(DEEP[name].encode())["findings"]
    assert finding["rule"] in ("nesting", "syntax")


def test_ten_megabytes_are_a_finding() -> None:
    for source in (
        b"x" * 10_000_000,
        b"x = 1\n" * 1_700_000,
        b"\0" * 10_000_000,
        b"(" * 10_000_000,
    ):
        (finding,) = run_alone(source)["findings"]
        assert (finding["line"], finding["column"], finding["rule"]) == (1, 1, "size")


def test_nothing_of_the_source_runs(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    source = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\nraise SystemExit(7)\n"
    assert {f["rule"] for f in run_alone(source.encode())["findings"]} == {"import"}
    assert not trace.exists()


def test_a_warning_of_the_parser_is_not_told() -> None:
    assert run_alone(rb"x = '\d' is 1") == {"findings": []}


@pytest.mark.parametrize(
    "policy",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"imports": "json"}',
        b'{"imports": [1]}',
        b'{"members": []}',
        b'{"members": {"json": "loads"}}',
        b'{"nodes": 0}',
        b'{"nodes": true}',
        b'{"source_bytes": 1e9}',
        b'{"findings": 100000}',
        b'{"function": "a b"}',
        b'{"names": ["no such"]}',
        b'{"unknown": 1}',
        b"[" * 20_000,
        b'{"imports": ["' + b"x" * 70_000 + b'"]}',
    ],
)
def test_a_wrong_policy_is_said_and_nothing_is_found(policy: bytes) -> None:
    assert set(run_alone(b"x = 1", policy)) == {"policy"}


def test_a_policy_allows_more_and_less() -> None:
    assert found("import os\nos.getcwd()", imports=["os"]) == []
    assert found("import os\nos.path.join('a')", imports=["os", "os.path"]) == []
    assert found("import os\nos.sys", imports=["os"]) == [(2, 1, "module")]
    assert found("import json", imports=[]) == [(1, 1, "import")]
    members = {"os": ["getcwd"]}
    assert found("import os\nos.getcwd()", imports=["os"], members=members) == []
    assert found("import os\nos.system('id')", imports=["os"], members=members) == [
        (2, 1, "member")
    ]
    assert found("from os import system", imports=["os"], members=members) == [(1, 1, "member")]
    assert found("import re\nre.purge()", refused_members=["re.purge"]) == [(2, 1, "member")]
    assert found("open('a')", names=["open"]) == []
    assert found("open('a')") == [(1, 1, "name")]


def test_a_function_may_be_demanded() -> None:
    assert found("def main(x): return x", function="main") == []
    assert found("async def main(x): return x", function="main") == []
    for source in ("", "main = 1", "class A:\n    def main(self): pass", "def other(): pass"):
        assert found(source, function="main") == [(1, 1, "function")]


def test_no_module_gives_out_another_module() -> None:
    """Of this Python's own: enum.bltns is builtins, whatever the lists say of names."""
    for name in python_source.MODULES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
            members = [
                n for n in dir(module) if isinstance(getattr(module, n, None), types.ModuleType)
            ]
        for member in members:
            assert found(f"import {name} as m\nprint(m.{member})"), f"{name}.{member}"
            assert found(f"from {name} import {member} as m\nprint(m.x)") or (
                f"{name}.{member}" in python_source.MODULES
            ), f"{name}.{member}"


@given(st.binary(max_size=200))
def test_any_bytes_have_findings_or_none(source: bytes) -> None:
    for finding in check(source, {}):
        assert finding["line"] >= 1
        assert finding["column"] >= 1
        assert str(finding["sentence"]).isprintable()
        assert len(str(finding["sentence"])) <= 300


@given(st.text(st.sampled_from("()[]{}.,:=\n \"'fx1_@*#\\lambda ifor"), max_size=120))
def test_anything_like_python_has_findings_or_none(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(source.encode(), {})


def test_it_stands_alone() -> None:
    """It is shipped as one file, and runs on the sandbox's Python, which may be older."""
    text = Path(python_source.__file__).read_text()
    imported = {line.split()[1] for line in text.splitlines() if line.startswith("import ")}
    assert imported <= sys.stdlib_module_names
    with pytest.raises(WrongPolicy):
        check(b"", [])
