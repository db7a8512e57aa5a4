"""Looks at Python source for what a tool has no business with. It never runs or imports it.

This is defence in depth and no boundary: who writes Python finds a way around any list. The
boundary is the sandbox that the tool runs in, and this program runs in one too, for a parser can
be attacked as well.

Standard input: one line with the policy as JSON, then the source as it is. Descriptor 3: one JSON
object, ``{"findings": [{"line", "column", "rule", "sentence", "suggestion"}]}``, or
``{"policy": sentence}`` where the policy itself is wrong.

It stands alone: what is shipped is this file.
"""

from __future__ import annotations

import ast
import json
import os
import re
import string
import sys
import unicodedata
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

RESULT = 3
LARGEST_POLICY = 64 * 1024
LONGEST_SENTENCE = 300

MODULES = (
    *("abc", "base64", "binascii", "bisect", "calendar", "cmath", "collections"),
    *("collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal"),
    *("difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html"),
    *("html.parser", "io", "ipaddress", "itertools", "json", "math", "numbers", "operator"),
    *("random", "re", "secrets", "statistics", "string", "struct", "textwrap", "time", "typing"),
    *("unicodedata", "urllib.parse", "uuid", "zlib", "zoneinfo", "__future__"),
)

DEFAULTS: dict[str, Any] = {
    "imports": list(MODULES),
    "members": {},  # module: the names that may be taken from it, and no others
    "refused_members": [],  # "module.name"
    "names": [],  # of REFUSED_NAMES, those that are allowed after all
    "function": None,  # one of this name has to be there
    "source_bytes": 256 * 1024,
    "nodes": 50_000,
    "depth": 100,
    "findings": 50,
}
HIGHEST = {"source_bytes": 4 << 20, "nodes": 1_000_000, "depth": 500, "findings": 200}

# What makes code of text, or gives out what belongs to the interpreter.
REFUSED_NAMES = {
    "eval": "write the expression itself, or parse data with json.loads",
    "exec": "write the statements themselves",
    "compile": "write the code itself",
    "__import__": "write an import statement",
    "open": "files are not a tool's: take its input, return its output",
    "input": "a tool's input is its argument",
    "breakpoint": "remove it",
    "globals": "use a dictionary of your own",
    "locals": "use a dictionary of your own",
    "vars": "name the attributes",
    "dir": "name the attributes",
    "help": "remove it",
    "exit": "return from the function",
    "quit": "return from the function",
    "copyright": "remove it",
    "credits": "remove it",
    "license": "remove it",
    "memoryview": "use bytes",
}
# These take an attribute's name as text: allowed where that text stands there.
BY_NAME = {"getattr": 2, "setattr": 3, "delattr": 2, "hasattr": 2}

# Attributes that lead from an object to its frame, its code, its module or its class's kin.
INTERNAL_ATTRIBUTES = frozenset(
    (
        *("gi_frame", "gi_code", "gi_yieldfrom", "cr_frame", "cr_code", "cr_await", "cr_origin"),
        *("ag_frame", "ag_code", "ag_await", "f_back", "f_builtins", "f_code", "f_globals"),
        *("f_locals", "f_generator", "f_trace", "tb_frame", "tb_next", "tb_lasti"),
        *("func_globals", "func_code", "func_closure", "func_defaults", "im_func", "im_self"),
        *("im_class", "co_code", "co_consts", "co_names", "co_varnames", "co_freevars"),
        *("cell_contents", "mro", "modules", "builtins", "with_traceback", "breakpointhook"),
        *("displayhook", "excepthook", "load_module", "exec_module", "find_spec"),
    )
)
# Members of modules that are listed above and yet reach an attribute by its name, or make code.
REFUSED_MEMBERS = frozenset(
    (
        *("operator.attrgetter", "operator.methodcaller", "string.Formatter", "io.open"),
        *("io.open_code", "io.FileIO", "io.OpenWrapper", "typing.get_type_hints"),
        *("typing.ForwardRef", "typing.evaluate_forward_ref", "dataclasses.make_dataclass"),
        *("enum.EnumMeta", "enum.EnumType", "functools.partialmethod", "abc.ABCMeta"),
        # They evaluate annotations that are texts, and copy attributes by name.
        *("functools.singledispatch", "functools.singledispatchmethod"),
        *("functools.update_wrapper", "functools.WRAPPER_ASSIGNMENTS"),
        # Modules under another name: enum.bltns is builtins.
        *("enum.bltns", "typing.stdlib_re", "json.decoder", "json.encoder", "json.scanner"),
        *("html.entities", "dataclasses.FunctionType", "contextlib.MethodType"),
        *("abc.update_abstractmethods", "contextlib.chdir", "collections.UserString"),
        *("numpy.fromfile", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.memmap"),
        *("numpy.save", "numpy.savetxt", "numpy.savez", "numpy.savez_compressed", "numpy.f2py"),
        *("numpy.ctypeslib", "numpy.distutils", "numpy.testing", "numpy.lib", "numpy.core"),
        *("pandas.eval", "pandas.read_pickle", "pandas.io", "pandas.compat", "pandas.core"),
        *("pandas.util", "pandas.api", "pandas.testing"),
    )
)
# Methods of any object that take code or a path as text (of pandas and numpy).
REFUSED_METHODS = frozenset(("tofile", "to_pickle", "format_map"))

ALLOWED_DUNDER_NAMES = frozenset(("__name__", "__doc__", "__all__", "__slots__", "__debug__"))
DEFINABLE = frozenset(
    "__%s__" % name
    for name in (
        *("init", "post_init", "repr", "str", "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool"),
        *("len", "iter", "next", "reversed", "contains", "getitem", "setitem", "delitem"),
        *("missing", "call", "enter", "exit", "aenter", "aexit", "aiter", "anext", "await"),
        *("int", "float", "index", "neg", "pos", "abs", "invert", "round", "add", "sub", "mul"),
        *("truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor", "lshift"),
        *("rshift", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "iadd"),
        *("isub", "imul"),
    )
)

# PEP 263. Any encoding but UTF-8 can hide code from who reads it: "unicode_escape" in comments.
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_UTF_8 = frozenset((b"utf-8", b"utf8", b"utf_8", b"u8"))
_BOM = b"\xef\xbb\xbf"
_NEW_LINE = re.compile(r"\r\n|\r|\n")
# Pieces of a format field that are attributes or items by name.
_FIELD = re.compile(r"\.([^.\[]*)|\[([^\]]*)\]")


class WrongPolicy(Exception):
    """The policy cannot be meant; ``args`` is one sentence."""


class Enough(Exception):
    """There are as many findings as may be told, or the tree is too large to go on."""


class Policy:
    """What is allowed. Raises :class:`WrongPolicy`."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict):
            raise WrongPolicy("it is no JSON object")
        unknown = sorted(str(name)[:40] for name in given if name not in DEFAULTS)
        if unknown:
            raise WrongPolicy("%r is no field; there are: %s" % (unknown[0], ", ".join(DEFAULTS)))
        values = dict(DEFAULTS)
        values.update(given)
        for name, highest in HIGHEST.items():
            value = values[name]
            if type(value) is not int or not 1 <= value <= highest:
                raise WrongPolicy("%s: not a whole number from 1 to %d" % (name, highest))
        for name in ("imports", "refused_members", "names"):
            _require_texts(name, values[name])
        members = values["members"]
        if not isinstance(members, dict):
            raise WrongPolicy("members: not an object of lists")
        for module, names in members.items():
            _require_texts("members[%.60r]" % module, names)
        for name in values["names"]:
            if name not in REFUSED_NAMES and name not in BY_NAME:
                raise WrongPolicy("names: %.60r is refused nowhere" % name)
        function = values["function"]
        if function is not None and not (isinstance(function, str) and function.isidentifier()):
            raise WrongPolicy("function: not a name")
        self.imports = frozenset(values["imports"])
        self.members = {module: frozenset(names) for module, names in members.items()}
        self.refused_members = REFUSED_MEMBERS | frozenset(values["refused_members"])
        self.names = frozenset(values["names"])
        self.function = function
        self.source_bytes = values["source_bytes"]
        self.nodes = values["nodes"]
        self.depth = values["depth"]
        self.findings = values["findings"]


def _require_texts(field: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WrongPolicy("%s: not a list of texts" % field)
    if len(value) > 2_000:
        raise WrongPolicy("%s: more than 2000" % field)


class Findings:
    """At most so many, each one line."""

    def __init__(self, most: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._most = most
        self._seen: set[tuple[int, int, str]] = set()

    def add(self, line: int, column: int, rule: str, sentence: str, suggestion: str) -> None:
        """Columns count characters, from 1. Raises :class:`Enough` after the last."""
        key = (line, column, rule)
        if key in self._seen:
            return
        self._seen.add(key)
        self.found.append(
            {
                "line": line,
                "column": column,
                "rule": rule,
                "sentence": _one_line(sentence),
                "suggestion": _one_line(suggestion),
            }
        )
        if len(self.found) >= self._most:
            raise Enough


def _one_line(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text[: 2 * LONGEST_SENTENCE])
    return text if len(text) <= LONGEST_SENTENCE else text[: LONGEST_SENTENCE - 3] + "..."


def check(source: bytes, given: Any) -> list[dict[str, Any]]:
    """The findings, in the order of the source. Raises :class:`WrongPolicy`."""
    policy = Policy(given)
    findings = Findings(policy.findings)
    try:
        text = _decode(source, policy, findings)
        tree = None if text is None else _parse(text, findings)
        if tree is not None:
            _Reader(text or "", policy, findings).read(tree)
    except Enough:
        pass
    except (RecursionError, MemoryError):
        _add_last(findings, "nesting", "it is too deep or too large to be looked at")
    return sorted(findings.found, key=_place)


def _place(finding: dict[str, Any]) -> tuple[int, int]:
    return finding["line"], finding["column"]


def _add_last(findings: Findings, rule: str, sentence: str) -> None:
    try:
        findings.add(1, 1, rule, sentence, "split it into smaller functions")
    except Enough:
        pass


def _decode(source: bytes, policy: Policy, findings: Findings) -> str | None:
    if len(source) > policy.source_bytes:
        findings.add(
            1,
            1,
            "size",
            "it has more than %d bytes" % policy.source_bytes,
            "move data out of the source, or split the tool",
        )
        return None
    if source.startswith(_BOM):
        source = source[len(_BOM) :]
    # Python looks at the first two lines: whatever it takes for the end of one, they are in here.
    lines = [*enumerate(source.split(b"\n", 2)[:2], 1)]
    lines += enumerate(re.split(rb"\r\n|\r|\n", source, maxsplit=2)[:2], 1)
    for number, content in lines:
        cookie = _COOKIE.match(content)
        if cookie and cookie.group(1).lower() not in _UTF_8:
            named = cookie.group(1)[:40].decode("ascii", "replace")
            findings.add(
                number, 1, "encoding", "its encoding is %r" % named, "write it in UTF-8, unnamed"
            )
            return None
    at = source.find(b"\0")
    if at < 0:
        try:
            return source.decode()
        except UnicodeDecodeError as error:
            at = error.start
            sentence = "byte 0x%02x is no UTF-8" % source[at]
    else:
        sentence = "a NUL byte is no character of a source"
    line = source.count(b"\n", 0, at) + 1
    before = source[source.rfind(b"\n", 0, at) + 1 : at]
    column = len(before.decode("utf-8", "replace")) + 1
    findings.add(line, column, "encoding", sentence, "write it in UTF-8")
    return None


def _parse(text: str, findings: Findings) -> ast.AST | None:
    try:
        return ast.parse(text, "tool.py")
    except SyntaxError as error:
        said = error.msg or "invalid syntax"
        rule = "nesting" if "nested" in said or "stack" in said else "syntax"
        # Below 1 they are unknown.
        line, column = max(error.lineno or 1, 1), max(error.offset or 1, 1)
        findings.add(line, column, rule, said, "correct it")
    except (ValueError, OverflowError) as error:  # a number of more digits than are converted
        findings.add(1, 1, "syntax", str(error), "correct it")
    except (RecursionError, MemoryError):
        _add_last(findings, "nesting", "it is nested too deep to be parsed")
    return None


class _Reader:
    """Goes over one tree."""

    def __init__(self, text: str, policy: Policy, findings: Findings) -> None:
        self._lines = _NEW_LINE.split(text)
        self._policy = policy
        self._findings = findings
        # Name in the source to the modules that it stands for. "import a.b" makes it a.
        self._modules: dict[str, set[str]] = {}
        self._parents: dict[ast.AST, ast.AST] = {}

    def read(self, tree: ast.AST) -> None:
        """Raises :class:`Enough`."""
        nodes = list(self._walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        for node in nodes:
            judge = _JUDGES.get(type(node).__name__)
            if judge is not None:
                judge(self, node)
        function = self._policy.function
        if function and not any(
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function
            for node in ast.iter_child_nodes(tree)
        ):
            self._findings.add(
                1,
                1,
                "function",
                "it has no function %r at its top level" % function,
                "define it: def %s(...):" % function,
            )

    def _walk(self, tree: ast.AST) -> Iterator[ast.AST]:
        # No recursion, whatever the tree is.
        left = [(tree, 0)]
        count = 0
        while left:
            node, depth = left.pop()
            count += 1
            if count > self._policy.nodes or depth > self._policy.depth:
                what = "large" if count > self._policy.nodes else "deep"
                self._add(node, "nesting", "it is too %s to be looked at" % what, "split it")
                raise Enough
            yield node
            children = list(ast.iter_child_nodes(node))
            for child in children:
                self._parents[child] = node
            # The last one first onto the stack: what is told is the beginning of the source.
            left += [(child, depth + 1) for child in reversed(children)]

    def _add(self, node: ast.AST, rule: str, sentence: str, suggestion: str) -> None:
        line = getattr(node, "lineno", 1)
        offset = getattr(node, "col_offset", 0)
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        # The tree counts bytes, people count characters.
        column = len(text.encode()[:offset].decode("utf-8", "replace")) + 1
        self._findings.add(line, column, rule, sentence, suggestion)

    # --- imports ------------------------------------------------------------------------------

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not self._allowed_module(node, alias.name):
                continue
            self._bind(node, alias.asname or alias.name.partition(".")[0], alias.name)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            self._add(
                node, "import", "a tool is one file: it has no modules of its own", "remove it"
            )
            return
        for alias in node.names:
            whole = "%s.%s" % (module, alias.name)
            if alias.name == "*":
                self._add(node, "import", "'*' hides what is imported", "name what you need")
            elif whole in self._policy.imports:  # from urllib import parse
                self._bind(node, alias.asname or alias.name, whole)
            elif self._allowed_module(node, module):
                self._member(node, module, alias.name)

    def _bind(self, node: ast.AST, name: str, module: str) -> None:
        """A name stands for one module, or for a package of which several were imported."""
        modules = self._modules.setdefault(name, set())
        modules.add(module)
        if len(modules) > 1 and any(each.partition(".")[0] != name for each in modules):
            self._add(node, "shadowed", "%r is the name of two modules" % name, "take another name")

    def _allowed_module(self, node: ast.AST, module: str) -> bool:
        if module in self._policy.imports:
            return True
        near = sorted(name for name in self._policy.imports if name.startswith(module + "."))
        suggestion = "allowed are: " + ", ".join(near or sorted(self._policy.imports))
        self._add(node, "import", "the module %r is not allowed" % module, suggestion)
        return False

    def _member(self, node: ast.AST, module: str, name: str) -> None:
        """What may be taken out of a module: nothing private, and no other module."""
        whole = "%s.%s" % (module, name)
        if name in INTERNAL_ATTRIBUTES:
            self._add(node, "internal", "%s leads into the interpreter" % whole, "do without it")
        elif name.startswith("_"):
            self._add(node, "private", "%s is private" % whole, "use what %s documents" % module)
        elif whole in self._policy.refused_members or _within(whole, self._policy.refused_members):
            self._add(
                node, "member", "%s is not allowed" % whole, "write out what it would look up"
            )
        elif module in self._policy.members:
            if name not in self._policy.members[module]:
                allowed = ", ".join(sorted(self._policy.members[module]))
                self._add(node, "member", "%s is not allowed" % whole, "allowed are: " + allowed)
        elif name in _STANDARD_MODULES and name != module.rpartition(".")[2]:
            # The way out of every list of modules: statistics.sys, re.enum.sys, uuid.os.
            self._add(node, "module", "%s is another module" % whole, "import it, if it is allowed")

    # --- names --------------------------------------------------------------------------------

    def _judge_name(self, node: ast.Name) -> None:
        name = node.id
        if name in self._modules:
            parent = self._parents.get(node)
            if not isinstance(node.ctx, ast.Load):
                self._add(
                    node, "shadowed", "%r is the name of a module" % name, "take another name"
                )
            elif not (isinstance(parent, ast.Attribute) and parent.value is node):
                self._module_value(node, name)
        if _is_dunder(name) and name not in ALLOWED_DUNDER_NAMES and name not in REFUSED_NAMES:
            self._add(node, "name", "%s belongs to the interpreter" % name, "do without it")
        elif name in REFUSED_NAMES and name not in self._policy.names:
            self._add(node, "name", "%s is not allowed" % name, REFUSED_NAMES[name])
        elif name in BY_NAME and name not in self._policy.names:
            self._by_name(node, name)
        elif name == "type":
            self._type(node)

    def _module_value(self, node: ast.AST, name: str) -> None:
        self._add(
            node,
            "module",
            "the module %r is used as a value" % name,
            "use its members: %s.name" % name,
        )

    def _by_name(self, node: ast.Name, name: str) -> None:
        """``getattr(x, "name")`` says no more than ``x.name``, and is judged like it."""
        call = self._parents.get(node)
        if not (isinstance(call, ast.Call) and call.func is node):
            self._add(
                node, "dynamic", "%s is used as a value" % name, "call it with a literal name"
            )
            return
        attribute = call.args[1] if len(call.args) >= 2 else None
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if starred or not (isinstance(attribute, ast.Constant) and type(attribute.value) is str):
            self._add(
                call,
                "dynamic",
                "%s with a computed name" % name,
                "name the attribute, or use a dict",
            )
            return
        self._named_attribute(call, attribute.value)
        first = call.args[0]
        if isinstance(first, ast.Name) and first.id in self._modules:
            self._module_value(first, first.id)

    def _type(self, node: ast.Name) -> None:
        call = self._parents.get(node)
        if isinstance(call, ast.Call) and call.func is node:
            if (
                len(call.args) == 1
                and not call.keywords
                and not isinstance(call.args[0], ast.Starred)
            ):
                return
            self._add(call, "dynamic", "type() makes a class here", "write a class statement")
        elif not self._in_annotation(node):
            self._add(node, "dynamic", "type is used as a value", "call it: type(x)")

    def _in_annotation(self, node: ast.AST) -> bool:
        parent = self._parents.get(node)
        while isinstance(parent, (ast.Subscript, ast.BinOp, ast.Tuple)):
            node, parent = parent, self._parents.get(parent)
        return (
            getattr(parent, "annotation", None) is node or getattr(parent, "returns", None) is node
        )

    # --- attributes ---------------------------------------------------------------------------

    def _judge_attribute(self, node: ast.Attribute) -> None:
        module = self._module_of(node.value)
        if module is not None:
            whole = "%s.%s" % (module, node.attr)
            if self._module_of(node) is not None:
                parent = self._parents.get(node)
                if not (isinstance(parent, ast.Attribute) and parent.value is node):
                    self._module_value(node, whole)
                return
            if not isinstance(node.ctx, ast.Load):
                self._add(node, "module", "%s is changed" % whole, "keep a variable of your own")
            if module in self._policy.imports:
                self._member(node, module, node.attr)
            else:  # "import a.b" makes a known, and of a only b is meant
                self._add(node, "import", "the module %r is not allowed" % module, "import it")
            return
        if node.attr in ("format", "format_map"):
            self._format(node)
        self._attribute(node, node.attr, node.value)

    def _module_of(self, node: ast.AST) -> str | None:
        """The module that an expression stands for, a package on the way to one included."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._modules:
            return None
        for module in self._modules[node.id]:
            # Under a name of its own it is the module itself, else the first part of its name.
            first = node.id if module.partition(".")[0] == node.id else module
            path = ".".join([first, *reversed(names)])
            if path == module or module.startswith(path + "."):
                return path
        return None

    def _attribute(self, node: ast.AST, name: str, value: ast.AST | None = None) -> None:
        folded = unicodedata.normalize("NFKC", name)
        if folded in INTERNAL_ATTRIBUTES:
            sentence = "the attribute %r leads into the interpreter" % folded
            self._add(node, "internal", sentence, "do without it")
        elif folded in REFUSED_METHODS:
            self._add(node, "dynamic", "the method %r is not allowed" % folded, "do without it")
        elif _is_dunder(folded):
            if not self._calls_base(node, folded):
                self._add(node, "dunder", "the attribute %r is internal" % folded, "do without it")
        elif folded.startswith("_") and not (
            isinstance(value, ast.Name) and value.id in ("self", "cls")
        ):
            self._add(
                node, "private", "the attribute %r is private" % folded, "use what is documented"
            )

    def _named_attribute(self, node: ast.AST, name: str) -> None:
        """An attribute of nobody knows what: getattr(x, "name"), ``case C(name=y)``."""
        if name == "format":
            self._any_format(node, name)
        else:
            self._attribute(node, name)

    def _calls_base(self, node: ast.AST, name: str) -> bool:
        """Whether this is ``super().__init__(...)`` or the like."""
        call = self._parents.get(node)
        return (
            name in DEFINABLE
            and isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id == "super"
            and isinstance(call, ast.Call)
            and call.func is node
        )

    # --- text that names attributes -----------------------------------------------------------

    def _format(self, node: ast.Attribute) -> None:
        value = node.value
        if isinstance(value, ast.Constant) and type(value.value) is str:
            for name in _format_names(value.value):
                if name.startswith("_") or name in INTERNAL_ATTRIBUTES:
                    self._add(
                        node,
                        "format",
                        "the format reads the attribute %r" % name,
                        "pass what it is to show",
                    )
            return
        self._any_format(node, node.attr)

    def _any_format(self, node: ast.AST, name: str) -> None:
        self._add(
            node,
            "format",
            "%s on a text that is not written here: it can read any attribute" % name,
            "use an f-string, or '...'.format(...) on a literal",
        )

    # --- definitions --------------------------------------------------------------------------

    def _judge_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._defined(node, node.name, DEFINABLE)

    def _judge_class(self, node: ast.ClassDef) -> None:
        self._defined(node, node.name, frozenset())
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg == "metaclass":
                self._add(node, "dynamic", "a class with a metaclass", "use a plain class")

    def _judge_argument(self, node: ast.arg) -> None:
        self._defined(node, node.arg, frozenset())

    def _judge_handler(self, node: ast.ExceptHandler) -> None:
        self._defined(node, node.name, frozenset())

    def _judge_capture(self, node: Any) -> None:
        self._defined(node, node.name, frozenset())

    def _judge_mapping(self, node: Any) -> None:
        self._defined(node, node.rest, frozenset())

    def _judge_pattern(self, node: Any) -> None:
        for name in node.kwd_attrs:
            self._named_attribute(node, name)

    def _judge_alias(self, node: ast.alias) -> None:
        parent = self._parents.get(node)
        name = node.asname or node.name
        if isinstance(parent, ast.ImportFrom):
            whole = "%s.%s" % (parent.module, node.name)
            if name in self._modules and self._modules[name] != {whole}:
                self._add(node, "shadowed", "%r is the name of a module" % name, "name it anew")
        if node.asname:
            self._defined(node, node.asname, frozenset())

    def _judge_declared(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self._defined(node, name, frozenset())

    def _judge_keyword(self, node: ast.keyword) -> None:
        if node.arg and _is_dunder(node.arg):
            self._add(node, "dunder", "the argument %r is internal" % node.arg, "rename it")

    def _defined(self, node: ast.AST, name: str | None, allowed: frozenset[str]) -> None:
        if not name:
            return
        if name in self._modules and not isinstance(node, ast.alias):
            self._add(node, "shadowed", "%r is the name of a module" % name, "take another name")
        elif _is_dunder(name) and name not in allowed:
            self._add(node, "dunder", "%s is internal" % name, "take another name")


# By name: the newer kinds are not there in an older Python.
_JUDGES: dict[str, Callable[[_Reader, Any], None]] = {
    "Name": _Reader._judge_name,
    "Attribute": _Reader._judge_attribute,
    "FunctionDef": _Reader._judge_function,
    "AsyncFunctionDef": _Reader._judge_function,
    "ClassDef": _Reader._judge_class,
    "arg": _Reader._judge_argument,
    "ExceptHandler": _Reader._judge_handler,
    "MatchAs": _Reader._judge_capture,
    "MatchStar": _Reader._judge_capture,
    "MatchMapping": _Reader._judge_mapping,
    "MatchClass": _Reader._judge_pattern,
    "alias": _Reader._judge_alias,
    "Global": _Reader._judge_declared,
    "Nonlocal": _Reader._judge_declared,
    "keyword": _Reader._judge_keyword,
}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4


def _within(whole: str, refused: Iterable[str]) -> bool:
    return any(whole.startswith(name + ".") for name in refused)


def _format_names(text: str) -> Iterator[str]:
    """The attributes and keys that a format looks up, those of nested fields too."""
    left = [text]
    for _ in range(20):  # a field may hold fields, and these none
        if not left:
            return
        try:
            parts = list(string.Formatter().parse(left.pop()))
        except ValueError:  # it will fail when it runs
            continue
        for _, field, form, _ in parts:
            if field:
                for attribute, key in _FIELD.findall(field):
                    yield attribute or key
            if form:
                left.append(form)


# sys.stdlib_module_names came with Python 3.10. Without it: what a tool is most often led to.
_STANDARD_MODULES = frozenset(
    getattr(sys, "stdlib_module_names", None)
    or (
        *("abc", "ast", "asyncio", "builtins", "codecs", "collections", "contextlib", "copy"),
        *("copyreg", "ctypes", "datetime", "dis", "enum", "fnmatch", "functools", "gc", "heapq"),
        *("importlib", "inspect", "io", "itertools", "keyword", "linecache", "locale", "math"),
        *("operator", "os", "pathlib", "pickle", "platform", "posix", "random", "re", "shutil"),
        *("signal", "socket", "string", "struct", "subprocess", "sys", "tempfile", "textwrap"),
        *("threading", "time", "token", "tokenize", "traceback", "types", "typing", "unicodedata"),
        *("urllib", "warnings", "weakref"),
    )
)


def _read() -> tuple[bytes, bytes]:
    line = sys.stdin.buffer.readline(LARGEST_POLICY + 1)
    if not line.endswith(b"\n"):
        raise WrongPolicy("it is longer than %d bytes, or has no end" % LARGEST_POLICY)
    return line, sys.stdin.buffer.read(HIGHEST["source_bytes"] + 1)


def main() -> None:
    """Read, look, tell."""
    warnings.simplefilter("ignore")  # the parser's, about the source
    answer: dict[str, object] = {}
    try:
        line, source = _read()
        answer["findings"] = check(source, json.loads(line))
    except WrongPolicy as error:
        answer["policy"] = _one_line(error.args[0])
    except (ValueError, RecursionError):
        answer["policy"] = "it is no JSON"
    told = json.dumps(answer).encode()
    while told:
        told = told[os.write(RESULT, told) :]


if __name__ == "__main__":
    main()
