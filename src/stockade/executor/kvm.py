"""Whether hardware virtualisation really works here: a short loop, run by a guest's ring 0.

A device proves nothing. There are hosts whose ``/dev/kvm`` opens and makes machines, and then
emulates their ring 0 a thousand times slower than a CPU: kernels die in it.

https://docs.kernel.org/virt/kvm/api.html
"""

import fcntl
import mmap
import os
import platform
import struct
import time
from contextlib import ExitStack
from ctypes import addressof, c_char
from typing import Final, NamedTuple

# ioctl numbers of x86-64, from linux/kvm.h.
_GET_API_VERSION: Final = 0xAE00
_CREATE_VM: Final = 0xAE01
_GET_VCPU_MMAP_SIZE: Final = 0xAE04
_CREATE_VCPU: Final = 0xAE41
_SET_USER_MEMORY_REGION: Final = 0x4020AE46
_SET_TSS_ADDR: Final = 0xAE47
_RUN: Final = 0xAE80
_SET_REGS: Final = 0x4090AE82
_GET_SREGS: Final = 0x8138AE83
_SET_SREGS: Final = 0x4138AE84

_API_VERSION: Final = 12
_SREGS_BYTES: Final = 312
_EXIT_REASON: Final = 8  # its place in struct kvm_run
_EXIT_HLT: Final = 5
_CODE_AT: Final = 0x1000
_TSS_AT: Final = 0x7FFBD000  # three pages that Intel needs for real mode
_TURNS: Final = 200_000
# mov ecx, TURNS; dec ecx; jnz back; hlt
_LOOP: Final = b"\x66\xb9" + struct.pack("<I", _TURNS) + b"\x66\x49\x75\xfc\xf4"
# A CPU takes a fifth of a millisecond; an emulator as fast as these get, half a second.
_LONGEST_SECONDS: Final = 0.05
_TRIES: Final = 5


class _Taken(NamedTuple):
    """What the loop took, in seconds."""

    clock: float
    cpu: float
    """Of this thread, which is the guest's CPU. An emulator spends it; waiting for others does not."""


def why_no_kvm(device: str = "/dev/kvm") -> str | None:
    """The reason why guests cannot be run by hardware here; ``None`` where they can.

    Takes a millisecond where they can, and a second at the most. Blocks.
    """
    if platform.machine() != "x86_64":
        return f"Stockade knows KVM on x86-64 only, and this is {platform.machine()}"
    for _ in range(_TRIES):
        try:
            taken = _time_loop(device)
        except OSError as error:
            return f"{device}: {error.strerror}"
        if taken is None:
            return f"{device} opens, but a guest of one loop does not run as it should"
        if taken.clock <= _LONGEST_SECONDS:
            return None
        if taken.cpu > _LONGEST_SECONDS:
            return (
                f"{device} opens, but emulates a guest's kernel: a loop of a millisecond took "
                f"{taken.cpu * 1000:.0f} ms"
            )
        # This machine did something else meanwhile: that says nothing of its CPU.
    return (
        f"{device} opens, but whether the CPU runs guests cannot be told, so busy is this machine: "
        f"{_TRIES} times a loop of a millisecond took more than {_LONGEST_SECONDS * 1000:.0f}"
    )


def _time_loop(device: str) -> _Taken | None:
    """``None`` where the guest did not halt at its end."""
    with ExitStack() as stack:

        def keep(descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        kvm = keep(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        if fcntl.ioctl(kvm, _GET_API_VERSION) != _API_VERSION:
            return None
        machine = keep(fcntl.ioctl(kvm, _CREATE_VM, 0))
        fcntl.ioctl(machine, _SET_TSS_ADDR, _TSS_AT)
        memory = stack.enter_context(mmap.mmap(-1, mmap.PAGESIZE))
        memory[: len(_LOOP)] = _LOOP
        at = addressof(c_char.from_buffer(memory))
        region = struct.pack("=IIQQQ", 0, 0, _CODE_AT, mmap.PAGESIZE, at)
        fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, region)
        cpu = keep(fcntl.ioctl(machine, _CREATE_VCPU, 0))
        size = fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE)
        state = stack.enter_context(mmap.mmap(cpu, size))
        special = bytearray(_SREGS_BYTES)
        fcntl.ioctl(cpu, _GET_SREGS, special)
        special[0:8] = bytes(8)  # the code segment's base
        special[12:14] = bytes(2)  # and its selector
        fcntl.ioctl(cpu, _SET_SREGS, bytes(special))
        registers = [0] * 18
        registers[16], registers[17] = _CODE_AT, 2  # rip; rflags, of which this bit is always set
        fcntl.ioctl(cpu, _SET_REGS, struct.pack("=18Q", *registers))
        began = _Taken(time.perf_counter(), time.thread_time())
        fcntl.ioctl(cpu, _RUN, 0)
        taken = _Taken(time.perf_counter() - began.clock, time.thread_time() - began.cpu)
        (reason,) = struct.unpack_from("=I", state, _EXIT_REASON)
        return taken if reason == _EXIT_HLT else None
