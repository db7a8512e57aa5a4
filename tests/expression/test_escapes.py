"""Nothing of the host is reached: not by an attribute, not by a function's name, not by a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.expression.conftest import Evaluate

from stockade.executor.expression import (
    EvaluationFailed,
    ExpressionEngine,
    InvalidExpression,
)

# Escapes of simpleeval, asteval, RestrictedPython and smolagents' interpreter, as they are and as
# near as CEL's syntax comes to them.
PYTHON_ESCAPES = (
    "().__class__.__bases__[0].__subclasses__()",
    "[].__class__.__base__.__subclasses__()",
    "''.__class__.__mro__[1].__subclasses__()",
    "input.__class__",
    "input['__class__']",
    "input.a.__class__.__init__.__globals__",
    "input.__init__.__globals__['os'].system('id')",
    "input.__reduce_ex__(2)",
    "input.a.func_globals",
    "input.a.gi_frame.f_back.f_builtins",
    "input.a.cr_await",
    "(1).__class__",
    "1.__class__",
    "'a'.__class__",
    "'{0.__class__}'.format(input)",
    "'%s'.format([input])",
    "'a'.format_map(input)",
    "string.Formatter()",
    "getattr(input, '__class__')",
    "hasattr(input, 'a')",
    "type(input).mro()",
    "type(input).__subclasses__()",
    "type('X', [], {})",
    "eval('1')",
    "exec('1')",
    "compile('1', '', 'eval')",
    "open('/etc/passwd').read()",
    "__import__('os').system('id')",
    "__builtins__",
    "__builtins__['eval']('1')",
    "globals()",
    "locals()",
    "vars(input)",
    "dir(input)",
    "help()",
    "breakpoint()",
    "os.system('id')",
    "os.environ",
    "sys.modules",
    "sys._getframe()",
    "subprocess.run(['id'])",
    "lambda: 1",
    "[x for x in input]",
    "(x := 1)",
    "input if true else 1",
    "f'{input}'",
    "input.a = 1",
    "del input",
    "import os",
    "print(1)",
    "rand()",
    "randint(1)",
    "input.keys()",
    "input.items()",
    "input.values()",
    "input.copy()",
    "input.a.real",
    "input.a.to_bytes(2, 'big')",
    "'a'.encode()",
    "statistics.sys",
    "dataclasses.sys.modules",
    "re.enum.sys",
    "calendar.sys",
    "uuid.os",
    "random._os",
    "operator.attrgetter('__class__')(input)",
    "functools.partial(input)",
    "np.fromfile('/etc/passwd')",
    "numpy.f2py",
    "symtable",
    "_evaluator",
    "cel.eval('1')",
    "input._accessor",
    "env('PATH')",
    "now()",
    "timestamp.now()",
    "http.get('http://127.0.0.1/')",
    "google.protobuf.Any{type_url: 'type.googleapis.com/google.protobuf.Value'}",
    "google.protobuf.Value{string_value: 'a'}",
    "google.protobuf.Struct{fields: {'a': google.protobuf.Value{}}}",
    "google.protobuf.FileDescriptorProto{}",
    "opentelemetry.proto.common.v1.AnyValue{}",
    "google.protobuf.NullValue.NULL_VALUE.x",
    "proto.getExt(input, google.protobuf.Any)",
    "optional.of(input)",
    "input.?a",
    "input[?'a']",
)


@pytest.mark.parametrize("source", PYTHON_ESCAPES)
def test_a_known_escape_has_no_value(evaluate: Evaluate, source: str) -> None:
    with pytest.raises((InvalidExpression, EvaluationFailed)) as failure:
        evaluate(source, {"a": 1, "b": "text", "c": [1]})
    assert str(failure.value).isprintable()


def test_a_name_is_only_ever_a_key(evaluate: Evaluate) -> None:
    assert evaluate("input.__class__", {"__class__": "mine"}) == "mine"
    assert evaluate("has(input.__class__)", {"a": 1}) is False
    assert evaluate("'__class__' in input", {"a": 1}) is False


def test_a_type_is_not_handed_out(evaluate: Evaluate) -> None:
    for source in ("int", "type(type(input))", "[int]", "{'a': type(input)}"):
        with pytest.raises(EvaluationFailed):
            evaluate(source)
    assert evaluate("type(input) == int", 1) is True


@pytest.mark.parametrize(
    "zone",
    [
        "/dev/stdin",
        "../../../etc/passwd",
        "file:/etc/passwd",
        "Europe/../../../../etc/passwd",
        "localtime",
        "posix/../UTC",
        ":/etc/passwd",
        "",
        "./UTC",
    ],
)
def test_a_time_zone_is_no_path(engine: ExpressionEngine, zone: str) -> None:
    """The library would open it: a pipe blocks it for ever, an answer says whether it is there."""
    with pytest.raises(InvalidExpression) as refusal:
        engine.compile(f"timestamp(0).getHours({zone!r})", tenant="one")
    assert refusal.value.rule == "time-zone"


@pytest.mark.parametrize(
    "source", ["timestamp(0).getHours(input)", "timestamp(0).getDate('a' + 'b')"]
)
def test_a_time_zone_is_not_computed(engine: ExpressionEngine, source: str) -> None:
    with pytest.raises(InvalidExpression) as refusal:
        engine.compile(source, tenant="one")
    assert refusal.value.rule == "time-zone"


def test_a_pipe_named_as_a_time_zone_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "import sys\n"
        "from stockade.executor.expression import ExpressionEngine, InvalidExpression\n"
        "try: ExpressionEngine().compile(sys.argv[1], tenant='one').evaluate(None)\n"
        "except InvalidExpression: print('refused')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, f"timestamp(0).getHours('{pipe}')"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "refused\n"


def test_an_expression_does_not_change_its_input(evaluate: Evaluate) -> None:
    value = {"a": [1, {"b": 2}]}
    result = evaluate("input", value)
    assert isinstance(result, dict)
    result["a"] = "changed"
    assert value == {"a": [1, {"b": 2}]}


def test_the_result_is_not_shared_between_calls(engine: ExpressionEngine) -> None:
    expression = engine.compile("{'a': [1]}", tenant="one")
    first = expression.evaluate(None)
    assert isinstance(first, dict)
    first["a"] = "changed"
    assert expression.evaluate(None) == {"a": [1]}
