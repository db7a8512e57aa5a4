"""Compiles `policy.py` to the classic BPF that the launcher loads.

    python3 src/stockade/executor/namespace/native/seccomp/generate.py [--check]

writes `native/seccomp_x86_64.h` and `native/seccomp_aarch64.h`; `--check` only tells
whether they are what the policy says. `--refresh-numbers` adds to `numbers.json` what the
kernel headers of this machine know; a number never changes and none is dropped, because
headers may be older than the file.

A filter is loaded once per sandbox, and the kernel then runs it for every known number to
learn which calls are always allowed (`seccomp_cache_prepare`): those skip the filter from
then on. So the filter is a short binary search over ranges of numbers, it loads nothing
but `nr` and `arch` before a call is decided, and equal pieces of code are kept once.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent

if __name__ == "__main__" and not TYPE_CHECKING:
    # A build runs this file alone, with nothing installed: the policy lies beside it, and
    # `python -P` would not look there.
    sys.path.insert(0, str(HERE))
    import policy
else:
    from stockade.executor.namespace.native.seccomp import policy

NUMBERS = HERE / "numbers.json"
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6].
NR, ARCH, ARGS = 0, 4, 16

# linux/bpf_common.h, as C names for the header and as codes.
LOAD, AND, JUMP, JEQ, JGE, JSET, RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
C_NAMES = {
    LOAD: "BPF_LD | BPF_W | BPF_ABS",
    AND: "BPF_ALU | BPF_AND | BPF_K",
    JUMP: "BPF_JMP | BPF_JA",
    JEQ: "BPF_JMP | BPF_JEQ | BPF_K",
    JGE: "BPF_JMP | BPF_JGE | BPF_K",
    JSET: "BPF_JMP | BPF_JSET | BPF_K",
    RETURN: "BPF_RET | BPF_K",
}


class PolicyError(Exception):
    """The policy and the numbers do not fit together."""


# --- The policy, by number --------------------------------------------------------------

Numbers = Mapping[str, int]
Decision = policy.Answer | policy.Rule


def read_numbers() -> dict[str, dict[str, int]]:
    numbers: dict[str, dict[str, int]] = json.loads(NUMBERS.read_text())
    return numbers


def named() -> Iterator[tuple[str, Decision]]:
    """Every call that the policy names, as often as it names it."""
    for calls in policy.ALLOWED.values():
        yield from ((call, policy.ALLOW) for call in calls.split())
    for denied in policy.DENIED:
        yield from ((call, denied.answer) for call in denied.calls.split())
    for rule in policy.RULES:
        yield from ((call, rule) for call in rule.calls.split())


def decisions(
    architecture: policy.Architecture, numbers: Numbers
) -> dict[int, tuple[str, Decision]]:
    """Number -> (call, decision) for one architecture; refuses any gap or contradiction."""
    by_call: dict[str, Decision] = {}
    for call, decision in named():
        if call in by_call:
            raise PolicyError(f"{call}: named twice in the policy")
        by_call[call] = decision
    calls, absent = by_call.keys(), set(architecture.absent.split())
    for problem, culprits in (
        ("in numbers.json but not in the policy", numbers.keys() - calls),
        ("said to be absent but in numbers.json", numbers.keys() & absent),
        ("said to be absent but not in the policy", absent - calls),
        ("in the policy but in no table", calls - numbers.keys() - absent),
    ):
        if culprits:
            raise PolicyError(f"{architecture.name}: {problem}: {' '.join(sorted(culprits))}")
    return {number: (call, by_call[call]) for call, number in numbers.items()}


# --- Code as a graph: equal pieces are one node -----------------------------------------


@dataclass(frozen=True)
class Node:
    """One instruction and where it leads. Only a jump with a condition has `other`."""

    code: int
    k: int
    next: "Node | None" = None
    other: "Node | None" = None


class Graph:
    """Builds nodes, each only once, and remembers what each is for."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int, int, int], Node] = {}
        self.notes: dict[int, list[str]] = {}

    def node(self, note: str, code: int, k: int, *ways: Node) -> Node:
        then, other = (*ways, None, None)[:2]
        if other is not None and then is other:
            assert then is not None
            return then
        node = self._nodes.setdefault((code, k, id(then), id(other)), Node(code, k, then, other))
        notes = self.notes.setdefault(id(node), [])
        if note not in notes:
            notes.append(note)
        return node

    def answer(self, answer: policy.Answer) -> Node:
        return self.node(answer.name, RETURN, answer.value)

    def test(self, note: str, test: policy.Test, then: Node, other: Node) -> Node:
        """Goes to `then` if the test holds. Little endian: the low half comes first."""
        if not test.inside:
            then, other = other, then
        low = ARGS + 8 * test.argument
        code = then
        if test.wide:
            if test.values != (0,) or test.mask != 0xFFFF_FFFF:
                raise PolicyError(f"{note}: a wide test can only ask for 0")
            code = self.node(note, JEQ, 0, then, other)
            code = self.node(note, LOAD, low + 4, code)
            return self.node(note, LOAD, low, self.node(note, JEQ, 0, code, other))
        if test.values == (0,) and test.mask != 0xFFFF_FFFF:
            return self.node(note, LOAD, low, self.node(note, JSET, test.mask, other, then))
        code = other
        for value in reversed(test.values):
            code = self.node(note, JEQ, value, then, code)
        if test.mask != 0xFFFF_FFFF:
            code = self.node(note, AND, test.mask, code)
        return self.node(note, LOAD, low, code)

    def rule(self, call: str, rule: policy.Rule) -> Node:
        code = self.answer(rule.otherwise)
        for clause in reversed(rule.clauses):
            then, other = self.answer(clause.answer), code
            for test in reversed(clause.tests):
                then = self.test(f"{call} argument {test.argument}", test, then, other)
            code = then
        return code


# --- The search tree --------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Neighbouring numbers with one decision; `calls` are the known ones among them."""

    first: int
    last: int
    calls: tuple[str, ...]
    code: Node

    @property
    def single(self) -> bool:
        return self.first == self.last

    def __str__(self) -> str:
        if not self.calls:
            return f"{self.first} not known"
        if len(self.calls) == 1:
            return f"{self.first} {self.calls[0]}"
        return f"{self.first}..{self.last} {self.calls[0]} to {self.calls[-1]}"


def ranges(graph: Graph, decided: Mapping[int, tuple[str, Decision]]) -> list[Range]:
    found: list[Range] = []
    for number in range(max(decided) + 1):
        call, decision = decided.get(number, ("", policy.UNKNOWN))
        code = (
            graph.rule(call, decision)
            if isinstance(decision, policy.Rule)
            else graph.answer(decision)
        )
        calls = (call,) if call else ()
        if found and found[-1].code is code:
            before = found.pop()
            found.append(Range(before.first, number, before.calls + calls, code))
        else:
            found.append(Range(number, number, calls, code))
    # Never a single number: what lies above the last known call has no end.
    found.append(Range(max(decided) + 1, 0xFFFF_FFFF, (), graph.answer(policy.UNKNOWN)))
    return found


def search(graph: Graph, parts: list[Range]) -> Node:
    """The smallest decision tree over the ranges, and of those the flattest.

    A tree of comparisons needs one instruction less than there are ranges. Where single
    numbers interrupt one decision, asking for each of them needs only half of that.
    """
    longest_chain = 4

    def singles(low: int, high: int) -> list[int] | None:
        """The interruptions of low..high, if that is one decision and single numbers."""
        main = {part.code for part in parts[low : high + 1] if not part.single} or {parts[low].code}
        others = [at for at in range(low, high + 1) if parts[at].code not in main]
        if len(main) > 1 or len(others) > longest_chain:
            return None
        return others if all(parts[at].single for at in others) else None

    @cache
    def cost(low: int, high: int) -> tuple[int, int, int, int]:
        """(instructions, depth, sum of depths, first range of the right half or 0)"""
        count = high - low + 1
        if low == high:
            return 0, 0, 0, 0
        chain = singles(low, high) if count <= 2 * longest_chain + 1 else None
        best = (count, count, count * count, 0)  # worse than any split
        if chain is not None:
            best = (len(chain), len(chain), len(chain) * count, 0)
        for cut in range(low + 1, high + 1):
            left, right = cost(low, cut - 1), cost(cut, high)
            best = min(
                best,
                (
                    1 + left[0] + right[0],
                    1 + max(left[1], right[1]),
                    count + left[2] + right[2],
                    cut,
                ),
            )
        return best

    def build(low: int, high: int) -> Node:
        if low == high:
            return parts[low].code
        cut = cost(low, high)[3]
        if cut:
            note = f"from {parts[cut]}"
            return graph.node(note, JGE, parts[cut].first, build(cut, high), build(low, cut - 1))
        others = singles(low, high)
        assert others is not None
        code = next(
            part.code for at, part in enumerate(parts[low : high + 1], low) if at not in others
        )
        for at in reversed(others):
            code = graph.node(str(parts[at]), JEQ, parts[at].first, parts[at].code, code)
        return code

    return build(0, len(parts) - 1)


# --- Laying the graph out ---------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """struct sock_filter, and what the line is for."""

    code: int
    jt: int
    jf: int
    k: int
    note: str


def lay_out(graph: Graph, root: Node) -> list[Instruction]:
    """The program, written from its end, because BPF only jumps forwards."""
    written: list[Instruction] = []
    place: dict[int, int] = {}

    def distance(node: Node) -> int:
        return len(written) - 1 - place[id(node)]

    def write(node: Node) -> None:
        if id(node) in place:
            return
        note = ", ".join(graph.notes[id(node)])
        for way in (node.other, node.next):
            if way is not None:
                write(way)
        jt = jf = 0
        if node.next is not None and node.other is not None:
            jt, jf = distance(node.next), distance(node.other)
            if max(jt, jf) > 255:
                raise PolicyError(f"a jump of more than 255 instructions: {note}")
        elif node.next is not None and distance(node.next):
            written.append(Instruction(JUMP, 0, 0, distance(node.next), note))
        place[id(node)] = len(written)
        written.append(Instruction(node.code, jt, jf, node.k, note))

    write(root)
    return written[::-1]


def compile_policy(architecture: policy.Architecture, numbers: Numbers) -> list[Instruction]:
    graph = Graph()
    kill = graph.answer(policy.KILL)
    code = search(graph, ranges(graph, decisions(architecture, numbers)))
    if architecture.kill_from is not None:
        code = graph.node("x32", JGE, architecture.kill_from, kill, code)
    code = graph.node("the number of the call", LOAD, NR, code)
    code = graph.node("any other way into the kernel", JEQ, architecture.audit_arch, code, kill)
    code = graph.node("the instruction set", LOAD, ARCH, code)
    return lay_out(graph, code)


# --- Files ------------------------------------------------------------------------------


def header(architecture: policy.Architecture, program: Iterable[Instruction]) -> str:
    def line(at: int, step: Instruction) -> str:
        mask_or_answer = step.code in (AND, JSET, RETURN)
        k = f"{step.k:#x}" if mask_or_answer or step.k >= 0x1000 else str(step.k)
        text = f"\t{{ {C_NAMES[step.code]}, {step.jt}, {step.jf}, {k} }},"
        return f"{text:<56} /* {at:3} {step.note} */"

    lines = "\n".join(line(at, step) for at, step in enumerate(program))
    return f"""\
/*
 * Generated by seccomp/generate.py from seccomp/policy.py: change the policy, not this.
 *
 * The seccomp filter of the namespace tier for {architecture.name}.
 */

#include <linux/filter.h>

static const struct sock_filter seccomp_filter[] = {{
{lines}
}};
"""


def header_path(architecture: policy.Architecture) -> Path:
    return HERE.parent / f"seccomp_{architecture.name}.h"


def refreshed(
    known: Mapping[str, Numbers], headers: Mapping[str, Path]
) -> dict[str, dict[str, int]]:
    """`known` with what the kernel headers add; refuses a number that contradicts it."""
    result = {name: dict(numbers) for name, numbers in known.items()}
    for name, path in headers.items():
        numbers = result.setdefault(name, {})
        if not path.exists():
            sys.stderr.write(f"{path}: not here, nothing added for {name}\n")
            continue
        for call, number in header_numbers(path.read_text()):
            if numbers.setdefault(call, number) != number:
                raise PolicyError(f"{path}: {call} is {number}, not {numbers[call]}")
        if len(set(numbers.values())) != len(numbers):
            raise PolicyError(f"{name}: two calls have one number")
    return {
        name: dict(sorted(numbers.items(), key=lambda pair: pair[1]))
        for name, numbers in result.items()
    }


def header_numbers(text: str) -> Iterator[tuple[str, int]]:
    """The calls of a 64-bit unistd header.

    asm-generic spells a call that differs between 32 and 64 bits `__NR3264_x`, and gives
    the name below; 403 to 423 are the 64-bit times of 32-bit kernels; `sync_file_range2`
    is another argument order that neither of our architectures uses.
    """
    names = {
        spelling: call
        for call, spelling in re.findall(
            r"^#define __NR_(\w+)\s+(__NR3264_\w+)$", text, re.MULTILINE
        )[::-1]
    }
    for spelling, digits in re.findall(
        r"^#define (__NR(?:3264)?_\w+)\s+(\d+)$", text, re.MULTILINE
    ):
        call = names.get(spelling, spelling.removeprefix("__NR_"))
        if call in ("syscalls", "sync_file_range2", "arch_specific_syscall"):
            continue
        if not 403 <= int(digits) <= 423:
            yield call, int(digits)


def write_numbers(numbers: Mapping[str, Numbers]) -> None:
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    parser.add_argument("--refresh-numbers", action="store_true", help="rebuild numbers.json")
    options = parser.parse_args(arguments)
    try:
        if options.refresh_numbers:
            write_numbers(refreshed(read_numbers(), HEADERS))
        numbers = read_numbers()
        stale = False
        for architecture in policy.ARCHITECTURES:
            program = compile_policy(architecture, numbers[architecture.name])
            text, path = header(architecture, program), header_path(architecture)
            if options.check and (not path.exists() or path.read_text() != text):
                sys.stderr.write(f"{path}: not what the policy says; run {__file__}\n")
                stale = True
            elif not options.check:
                path.write_text(text)
                sys.stdout.write(f"{path.name}: {len(program)} instructions\n")
        return 1 if stale else 0
    except PolicyError as error:
        sys.stderr.write(f"seccomp policy: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
