"""The process in which schemas of tenants are compiled and used.

Patterns run in linear time, and nothing is fetched. What else a schema can do, such as branch at
every level or refer to itself without an end, is ended with the process: by the kernel, when it has
had its time for one answer, or its memory, or its stack.

Standard input: messages of two lengths (32 bits each), the schema and the value, both JSON; no value:
the schema alone is looked at. Standard output: a length, and ``{"errors": [[place, message]]}``,
or ``{"schema": [place, message]}`` for one that is none.
"""

import json
import resource
import signal
import struct
import sys
from collections import OrderedDict
from itertools import islice
from typing import Any, BinaryIO, Final

CPU_SECONDS: Final = 1.0
"""For one message."""
MEMORY_BYTES: Final = 512 << 20
MOST_ERRORS: Final = 10
HEAD: Final = struct.Struct(">II")
LENGTH: Final = struct.Struct(">I")
LARGEST: Final = 32 << 20
_LONGEST: Final = 500
_COMPILED: Final = 64
_PATTERN_BYTES: Final = 1 << 20


def main() -> None:
    """Answer until standard input ends."""
    import jsonschema_rs

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    compiled: OrderedDict[bytes, Any] = OrderedDict()
    options = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)

    def validator(schema: bytes) -> Any:
        found = compiled.pop(schema, None)
        if found is None:
            found = jsonschema_rs.Draft202012Validator(
                json.loads(schema), pattern_options=options, offline=True, validate_formats=False
            )
        compiled[schema] = found
        if len(compiled) > _COMPILED:
            compiled.popitem(last=False)
        return found

    def answer(schema: bytes, value: bytes) -> dict[str, Any]:
        try:
            checking = validator(schema)
        except jsonschema_rs.ValidationError as error:
            return {"schema": [_pointer(error.instance_path), _sentence(error)]}
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            return {"schema": ["", str(error)[:_LONGEST]]}
        if not value:
            return {"errors": []}
        instance = json.loads(value)
        if checking.is_valid(instance):
            return {"errors": []}
        errors = islice(checking.iter_errors(instance), MOST_ERRORS)
        return {"errors": [[_pointer(error.instance_path), _sentence(error)] for error in errors]}

    _serve(sys.stdin.buffer, sys.stdout.buffer, answer)


def _serve(incoming: BinaryIO, outgoing: BinaryIO, answer: Any) -> None:
    while head := incoming.read(HEAD.size):
        sizes = HEAD.unpack(head)
        if sum(sizes) > LARGEST:
            raise SystemExit(2)
        schema, value = (incoming.read(size) for size in sizes)
        # The default end of SIGPROF is the process's, whatever code it is in just then.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        said = json.dumps(answer(schema, value)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        outgoing.write(LENGTH.pack(len(said)) + said)
        outgoing.flush()


def _pointer(parts: list[Any]) -> str:
    spelled = (str(part)[:100].replace("~", "~0").replace("/", "~1") for part in parts[:64])
    return "".join(f"/{part}" for part in spelled)


def _sentence(error: Any) -> str:
    return str(error.message)[:_LONGEST]


if __name__ == "__main__":
    main()
