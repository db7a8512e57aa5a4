"""Calls for which the kernel has much code and programs have little need."""

import ctypes
import os

from stockade.cli.attack.programs.kit import refuses, run


def attack() -> None:
    zeros = ctypes.create_string_buffer(256)
    refuses("io_uring_setup", 8, zeros)
    refuses("io_uring_enter", 0, 1, 0, 0, None, 0)
    refuses("io_uring_register", 0, 0, None, 0)
    refuses("io_setup", 8, zeros)
    refuses("userfaultfd", 0o2000000 | 1)
    refuses("bpf", 0, zeros, 72)
    refuses("perf_event_open", zeros, 0, -1, -1, 0)
    refuses("personality", 0x0040000)  # ADDR_NO_RANDOMIZE
    refuses("personality", 0x0400000)  # READ_IMPLIES_EXEC
    refuses("memfd_secret", 0)
    refuses("name_to_handle_at", -100, b"/usr", ctypes.create_string_buffer(b"\x80", 160), zeros, 0)
    refuses("open_by_handle_at", -100, zeros, 0)
    refuses("fanotify_init", 0, 0)
    refuses("quotactl", 0x80000700, b"/usr", 0, zeros)
    refuses("init_module", zeros, 0, b"")
    refuses("finit_module", 0, b"", 0)
    refuses("kexec_load", 0, 0, None, 0)
    refuses("reboot", 0, 0, 0, None)  # without its magic numbers: harmless where it is allowed
    refuses("swapon", b"/nowhere", 0)
    refuses("acct", b"/nowhere")
    refuses("settimeofday", None, None)
    refuses("sethostname", b"x", 1)
    refuses("vmsplice", os.pipe()[1], None, 0, 0)
    refuses("seccomp", 1, 8, ctypes.create_string_buffer(16))  # a listener
    refuses("prctl", 35, 1, 0, 0, 0)  # PR_SET_MM
    refuses("prctl", 26, 2, 0, 0, 0)  # PR_SET_TSC


if __name__ == "__main__":
    run(attack)
