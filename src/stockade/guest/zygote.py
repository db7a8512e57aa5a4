"""The zygote: a warm interpreter of one tenant that clones itself into sandboxes.

It runs no guest code, ever, and reads nothing but the executor's requests: one packet on
the control socket asks for one sandbox. What it has loaded is what each sandbox starts
with; a module that is preloaded here costs a program nothing to import.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import socket

from . import interpreter, program

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module itself would cost every sandbox its pages
    from typing import Any

CONTROL = 3
LIBRARY = "/opt/stockade/libstockade.so"
MAX_REQUEST = 65536
MAX_DESCRIPTORS = 8


class SandboxSpec(ctypes.Structure):
    """``struct stockade_sandbox`` of sandbox.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("disk_bytes", ctypes.c_uint64),
        ("inodes", ctypes.c_uint64),
        ("affinity", ctypes.c_uint64 * 16),
        ("wire_in", ctypes.c_int32),
        ("wire_out", ctypes.c_int32),
        ("doors", ctypes.c_int32),
        ("door", ctypes.c_int32 * 4),
    ]


def make_spec(request: dict[str, Any], descriptors: list[int]) -> SandboxSpec:
    """The C side's view of a request: ``[wire in, wire out, cgroup doors...]``."""
    spec = SandboxSpec(
        size=ctypes.sizeof(SandboxSpec),
        id=request["id"],
        disk_bytes=request["disk_bytes"],
        inodes=request["inodes"],
        wire_in=descriptors[0],
        wire_out=descriptors[1],
        doors=len(descriptors) - 2,
    )
    for cpu in request["cpus"]:
        spec.affinity[cpu // 64] |= 1 << (cpu % 64)
    for index, descriptor in enumerate(descriptors[2:]):
        spec.door[index] = descriptor
    return spec


def preload(modules: list[str]) -> list[str]:
    """Import what programs commonly use; a module that the image lacks is left out."""
    missing = []
    for name in modules:
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    return missing


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One request and its descriptors; ``None`` when the executor is gone."""
    packet, ancillary, flags, _ = control.recvmsg(
        MAX_REQUEST, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not packet:
        return None
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        raise RuntimeError("a request was cut")
    return json.loads(packet), list(descriptors)


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


def enter_cgroups(library: ctypes.PyDLL, doors: list[int]) -> dict[str, str]:
    """Go through the doors of this zygote's own cgroups; what is outside is out of sight."""
    try:
        for door in doors:
            os.write(door, b"0")
            os.close(door)
    except OSError as error:
        return {"error": f"cannot enter its cgroups: {os.strerror(error.errno or 0)}"}
    error_number = -library.stockade_forget_cgroup()
    return {"error": os.strerror(error_number)} if error_number else {}


def serve(control: socket.socket, library: ctypes.PyDLL) -> None:
    """Clone one sandbox per request. Returns only in one, as the program's process."""
    pidfd = ctypes.c_int(-1)
    while True:
        received = receive(control)
        if received is None:
            # The executor is gone. This is pid 1: the kernel kills every sandbox with it.
            os._exit(0)
        request, descriptors = received
        if "enter" in request:
            control.sendmsg([json.dumps(enter_cgroups(library, descriptors)).encode()])
            continue
        spec = make_spec(request, descriptors)
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = library.stockade_clone(ctypes.byref(spec), ctypes.byref(pidfd))
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            return
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            control.sendmsg([json.dumps({"error": os.strerror(-pid)}).encode()])
            continue
        rights = array.array("i", [pidfd.value])
        control.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(pidfd.value)


def main(modules: list[str]) -> interpreter.Run:
    """Preload, freeze, serve; in the clone: become the program."""
    missing = preload(modules)
    open_standard_streams()
    interpreter.rehearse()
    library = ctypes.PyDLL(LIBRARY)
    if library.stockade_reap_children() < 0:
        raise RuntimeError("the children cannot be left to the kernel")
    control = socket.socket(fileno=CONTROL)
    # Objects made until now are never collected: collecting would touch, and so copy,
    # pages that all sandboxes share.
    gc.collect()
    gc.disable()
    gc.freeze()
    control.sendmsg([json.dumps({"ready": True, "missing": missing}).encode()])
    serve(control, library)
    # Descriptor 3 is another thing now; the object must not close it.
    control.detach()
    return program.wait()
