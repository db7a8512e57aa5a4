"""The most that the estimate of the expression engine admits: worst_expressions.py NUMBER.

Looks for the largest input of its kind that one expression is evaluated with, and prints as JSON
what that took: the source, the kind, its size, seconds of CPU, bytes of memory more than before.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

from stockade.executor.expression import ExpressionEngine, ExpressionError, OverLimit

KINDS = {
    "numbers": lambda n: list(range(n)),
    "texts": lambda n: ["ab" * 8] * n,
    "objects": lambda n: [{"a": i, "b": "x" * 20} for i in range(n)],
    "a text": lambda n: "x" * n,
    "a map": lambda n: {str(i): i for i in range(n)},
    "a square": lambda n: [[1] * int(n**0.5)] * int(n**0.5),
    "a text and a list": lambda n: {"s": "x" * n, "l": ["x"] * max(1, n // 9)},
}
CASES = (
    ("input", "objects"),
    ("input == input", "a map"),
    ("input.map(x, x)", "numbers"),
    ("input.map(x, x).map(x, x).map(x, x).map(x, x)", "numbers"),
    ("input.filter(x, true)", "objects"),
    ("input.map(x, [x, x, x, x])", "objects"),
    ("input.map(x, x.map(y, y + 1))", "a square"),
    ("input.all(x, x in input)", "numbers"),
    ("input.all(x, x in input)", "objects"),
    ("input.all(x, input == input)", "objects"),
    ("input.all(x, [x, x] == [x, x])", "a square"),
    ("input.map(x, {'a': x.a, 'b': x.b, 'c': [x.a]})", "objects"),
    ("input.all(x, string(timestamp(x)) != '')", "numbers"),
    ("input.split('').map(x, x)", "a text"),
    ("input.split('')", "a text"),
    ("input.replace('x', 'yyyyyyyyyyyyyyyyyyyy')", "a text"),
    ("(input + input).indexOf(input + 'y')", "a text"),
    ("input.l.map(x, input.s + x).size()", "a text and a list"),
    ("input.l.all(x, !input.s.matches('(.{0,20}){0,4}y'))", "a text and a list"),
    ("input.map(x, x.matches('a'))", "texts"),
    ("input.map(a, a + a).map(b, b + b).map(c, c + c)", "texts"),
)
MOST = 1 << 18


def main():
    source, kind = CASES[int(sys.argv[1])]
    expression = ExpressionEngine().compile(source, tenant="bench")

    def admitted(value):
        try:
            expression.evaluate(value)
        except OverLimit as error:
            return error.limit in ("iterations", "output_bytes")
        except ExpressionError:
            pass
        return True

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    low, high = 1, MOST
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if admitted(KINDS[kind](middle)) else (low, middle)
    value = KINDS[kind](low)
    ctypes.CDLL(None).malloc_trim(0)  # else what the search has freed is used again, unseen
    # What the kernel knows of the highest so far is set back to what is there now.
    Path("/proc/self/clear_refs").write_text("5")
    before, began = resident(), time.process_time()
    admitted(value)
    seconds = time.process_time() - began
    status = Path("/proc/self/status").read_text()
    highest = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps([source, kind, low, seconds, max(0, highest - before)]))


if __name__ == "__main__":
    main()
