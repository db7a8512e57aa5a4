"""The program's process: parked until its specification arrives, then the program itself.

It is a fork of the zygote, or executed anew for a later program of a session; native/park.c
has laid out its descriptors and put it into the guest's cgroups. Nothing of the agent's is
in it: no wire, and no descriptor but the four that every program has and the two below,
which are closed before the program's first instruction.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import resource
import signal
import struct
import sys

from . import interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module itself would cost every sandbox its pages
    from typing import Any, NoReturn

_SPECIFICATION = 10
_STATUS = 11
_RLIMITS = (
    (resource.RLIMIT_NOFILE, "open_files"),
    (resource.RLIMIT_FSIZE, "file_bytes"),
    (resource.RLIMIT_DATA, "data_bytes"),
    (resource.RLIMIT_CPU, "cpu_seconds"),
    (resource.RLIMIT_NPROC, "processes"),
)
_SPECIFIED = json.dumps(
    {
        "python": {"name": None, "arguments": [], "fresh": False},
        "argv": None,
        "environment": {},
        "working_directory": "",
        "rlimits": {name: 1 for _, name in _RLIMITS},
    }
).encode()
_REHEARSED = struct.pack(">BII", 0, len(_SPECIFIED), 0) + _SPECIFIED
# Not json.loads(), whose regular expressions cost a call more pages than all the rest.
_DECODER = json.JSONDecoder()
_THREAD_STACK = 2 * 1024 * 1024
EXIT_MARK = "stockade:exit"
_COPIED = b"\xff"  # no terminal's name is as long: agent.c


class Refused(Exception):
    """The program cannot be started; ``args`` are what and why."""


def main(modules: list[str]) -> interpreter.Run:
    """The program's process that was executed anew, not forked from a zygote."""
    interpreter.preload(modules)
    interpreter.open_standard_streams()
    run = interpreter.Run()
    interpreter.settle()
    wait(run)
    return run


def wait(run: interpreter.Run) -> None:
    """Say that all is ready, wait for the specification, become the program.

    Returns only where this interpreter itself is to run it, as ``run``.
    """
    code = 255
    try:
        sys.path.remove("/opt/stockade")
        for descriptor in (_SPECIFICATION, _STATUS):
            os.set_inheritable(descriptor, False)
        os.chdir("/workspace")
        interpreter.reseed()
        hard = {kind: resource.getrlimit(kind)[1] for kind, _ in _RLIMITS}
        _rehearse(run, hard)
        os.write(_STATUS, b"+")
        data = b""
        while (data := data or os.read(_SPECIFICATION, 65536)).startswith(_COPIED):
            # This process was saved, and is one of many that were restored: no page of it
            # is its own yet, nor is its randomness.
            data = data[1:]
            run.at_last = _at_last
            interpreter.reseed()
            _rehearse(run, hard)
            _rehearse_end()
            os.write(_STATUS, b"+")
        _start(run, _read_specification(data), hard)
        return
    except Refused as refusal:
        what, reason = refusal.args
        _tell({"refused": {"what": what[:1000], "reason": reason}})
    except KeyboardInterrupt:
        # A signal that came before there was a program to take it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - told to the executor
        try:
            _tell({"refused": {"what": "the program's process", "reason": repr(error)[:1000]}})
        except OSError:
            code = 254
    os._exit(code)


def _rehearse(run: interpreter.Run, hard: dict[int, int]) -> None:
    """Do once, to no effect, what a start will do: see ``interpreter.rehearse``."""
    interpreter.rehearse(run)
    data = _REHEARSED + b""
    length, _ = struct.unpack_from(">II", data, 1)
    specification = _parse(data[9 : 9 + length])
    _set_rlimits(dict.fromkeys(specification["rlimits"]), hard)
    for kind, limit in hard.items():
        resource.setrlimit(kind, (resource.getrlimit(kind)[0], limit))
    os.fsdecode(data[1:1])


def _parse(text: bytes) -> dict[str, Any]:
    specification: dict[str, Any] = _DECODER.raw_decode(text.decode())[0]
    return specification


def _read_specification(data: bytes) -> dict[str, Any]:
    """Length and name of the terminal, lengths of JSON and source, both: docs/wire.md.

    ``data``: the first of it.
    """

    def have(count: int) -> None:
        nonlocal data
        while len(data) < count:
            piece = os.read(_SPECIFICATION, 65536)
            if not piece:
                os._exit(0)  # the agent is gone, or needs no further program
            data += piece

    have(1)
    start = 1 + data[0]
    have(start + 8)
    length, source_length = struct.unpack_from(">II", data, start)
    middle = start + 8 + length
    have(middle)
    # A list: a long source that comes in many pieces is joined once.
    pieces, missing = [data[middle:]], middle + source_length - len(data)
    while missing > 0:
        pieces.append(os.read(_SPECIFICATION, 65536))
        missing -= len(pieces[-1])
        if not pieces[-1]:
            os._exit(0)
    os.close(_SPECIFICATION)
    specification = _parse(data[start + 8 : middle])
    specification["terminal"] = os.fsdecode(data[1:start])
    specification["source"] = b"".join(pieces)
    return specification


def _tell(message: dict[str, Any]) -> None:
    os.write(_STATUS, json.dumps(message).encode())


def _start(run: interpreter.Run, specification: dict[str, Any], hard: dict[int, int]) -> None:
    _set_rlimits(specification["rlimits"], hard)
    if specification["terminal"]:
        _take_terminal(specification["terminal"])
        interpreter.open_standard_streams()
    folder = specification["working_directory"]
    if folder:
        try:
            os.chdir(folder)
        except OSError as error:
            raise Refused(
                folder, "no such working directory: " + os.strerror(error.errno or 0)
            ) from None
    environment = specification["environment"]
    for variable, value in environment.items():
        os.environ[variable] = value
    python = specification["python"]
    if python is None:
        _execute(specification["argv"])
    # Python reads its own variables when it starts: one that did already would ignore them.
    if python["fresh"] or any(variable.startswith("PYTHON") for variable in environment):
        name = python["name"]
        program = ["-c", os.fsdecode(specification["source"])] if name is None else [name]
        _execute([interpreter.EXECUTABLE, *program, *python["arguments"]])
    run.take(python["name"], python["arguments"], specification["source"], _at_failing_exit)
    os.close(_STATUS)


def _set_rlimits(rlimits: dict[str, int | None], hard: dict[int, int]) -> None:
    """Lowered, never raised: hard limits, so that the guest cannot lift them again."""
    if rlimits["data_bytes"] is not None:
        # Each thread's stack counts as data, at its full size: 8 MiB would allow few.
        stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (_THREAD_STACK, stack))
        _thread.stack_size(_THREAD_STACK)  # for this process, which has read the limit already
    for kind, name in _RLIMITS:
        value = rlimits[name]
        if value is not None:
            if hard[kind] != resource.RLIM_INFINITY:
                value = min(value, hard[kind])
            resource.setrlimit(kind, (value, value))


def _take_terminal(path: str) -> None:
    """The first terminal that a session leader opens becomes its own: tty_ioctl(4)."""
    terminal = os.open(path, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(terminal, number)
    if terminal > 2:
        os.close(terminal)


def _find(name: str) -> str:
    """The path of a program as a shell would find it; the image decides, not the host."""
    if "/" in name:
        return name
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder or ".", name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise Refused(name, "no such program in the image")


def _execute(argv: list[str]) -> NoReturn:
    path = _find(argv[0])
    # Ignored by the interpreter, and inherited through exec: signal(7).
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(path, argv, os.environ)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        if isinstance(error, FileNotFoundError):
            reason = "no such program in the image"
        elif os.path.isdir(path):
            reason = "a folder is no program"
        elif error.errno in (errno.E2BIG, errno.EFAULT):  # EFAULT: gVisor, of a small stack
            reason = "the arguments and the environment are too large to start a program with"
        raise Refused(argv[0], reason) from None


def _at_failing_exit() -> None:
    """Let the agent look at this process while it still holds what it holds.

    Descriptors in use are counted by the agent, from outside, while the process stands
    still; its mark is its name, for a stop alone may be the program's own.
    """
    for _ in range(2):
        try:
            _signal_self_as(EXIT_MARK, signal.SIGSTOP)
        except OSError:
            os.close(0)  # no descriptor is left: this one will not be missed any more
        else:
            return


def _rehearse_end() -> None:
    with open("/proc/self/comm", encoding="ascii") as comm:
        name = comm.read().strip()
    _signal_self_as(name, 0)


def _at_last(code: int) -> None:
    """Say the exit code and stand still: where nobody waits for more, this is the end."""
    with contextlib.suppress(OSError):
        _signal_self_as(f"{EXIT_MARK}{code:02x}", signal.SIGSTOP)


def _signal_self_as(name: str, number: int) -> None:
    comm = os.open("/proc/self/comm", os.O_WRONLY)
    os.write(comm, name.encode())
    os.close(comm)
    os.kill(os.getpid(), number)
