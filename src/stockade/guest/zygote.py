"""The zygote: a warm interpreter of one tenant that clones itself into sandboxes.

It runs no guest code, ever. What it has loaded is what each sandbox starts with; a module
that is preloaded here costs a program nothing to import. Once that is done it waits in C
(native/zygote.c), where it touches, and so copies, no page of the interpreter's.
"""

from __future__ import annotations

import ctypes
import os

from . import interpreter, program

CONTROL = 3
LIBRARY = "/opt/stockade/libstockade.so"


def open_standard_streams() -> None:
    """Make the programs' standard streams here, once, over pipes as theirs will be."""
    errors = os.dup(2)
    reader, writer = os.pipe()
    for descriptor, end in enumerate((reader, writer, writer)):
        os.dup2(end, descriptor)
    interpreter.open_standard_streams()
    os.dup2(errors, 2)
    for descriptor in (errors, reader, writer):
        os.close(descriptor)


def main(modules: list[str]) -> interpreter.Run:
    """Preload, freeze, serve; in the clone: become the program."""
    interpreter.preload(modules)
    open_standard_streams()
    run = interpreter.Run()
    interpreter.rehearse(run)
    serve = ctypes.PyDLL(LIBRARY).stockade_serve
    # Looked up here: the first look at a function writes to many pages.
    before_fork = ctypes.pythonapi.PyOS_BeforeFork
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    interpreter.settle()
    os.write(CONTROL, b"ready")
    before_fork()
    serve(CONTROL)
    after_fork()
    program.wait(run)
    return run
