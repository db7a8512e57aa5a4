"""Enters the kernel by the doors of 32-bit programs and of x32, past a filter's numbers."""

import ctypes
import mmap
import os
import signal

from stockade.cli.attack.programs.kit import children, expect, run

ENOSYS = 38
CODES = {
    # mov eax, 20 (getpid of i386); int 0x80; ret
    "int 0x80": bytes.fromhex("b814000000cd80c3"),
    # mov eax, 0x40000027 (getpid of x32); syscall; ret
    "x32": bytes.fromhex("b8270000400f05c3"),
    # mov eax, 0x40000221 (execveat of x32); xor edi, edi; syscall; ret
    "x32 execveat": bytes.fromhex("b82102004031ff0f05c3"),
    # mov eax, 102 (socketcall of i386); int 0x80; ret
    "int 0x80 socketcall": bytes.fromhex("b866000000cd80c3"),
}


def attack() -> None:
    for name, code in CODES.items():
        (pid,) = children(1, lambda _: _call(code))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            # SIGSEGV: this kernel has no such door at all.
            expect(name, number in (signal.SIGSYS, signal.SIGSEGV), signal.Signals(number).name)
        else:
            code_ = os.WEXITSTATUS(status)
            expect(name, code_ == ENOSYS, "ENOSYS" if code_ == ENOSYS else "the kernel answered")


def _call(code: bytes) -> None:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    os._exit(-answer if -256 < answer < 0 else 0)


if __name__ == "__main__":
    run(attack)
