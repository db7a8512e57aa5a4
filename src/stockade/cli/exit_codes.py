"""What ``stockade`` exits with. Data only, and cheap to import; the docs are made from it."""

from typing import NamedTuple

OK = 0
USAGE = 64  # EX_USAGE, sysexits.h
NO_INPUT = 66  # EX_NOINPUT
UNAVAILABLE = 69  # EX_UNAVAILABLE
INTERNAL = 70  # EX_SOFTWARE
HOST_IO = 74  # EX_IOERR
LATER = 75  # EX_TEMPFAIL
REFUSED = 77  # EX_NOPERM
TOOL = 114
LOST = 115
EGRESS_DENIED = 116
OUTPUT = 117
INODES = 118
DISK = 119
OPEN_FILES = 120
PROCESSES = 121
MEMORY = 122
CPU_TIME = 123
WALL_CLOCK = 124  # as timeout(1)
NOT_FOUND = 127  # as a shell
SIGNAL_BASE = 128
CANCELLED = 130  # as a shell after Ctrl-C
CLOSED_OUTPUT = 141  # as a shell after SIGPIPE

# An outcome's value to the code; `nonzero_exit` and `signal` take theirs from the program.
OF_OUTCOME: dict[str, int] = {
    "ok": OK,
    "wall_clock": WALL_CLOCK,
    "cpu_time": CPU_TIME,
    "memory": MEMORY,
    "processes": PROCESSES,
    "open_files": OPEN_FILES,
    "disk": DISK,
    "inodes": INODES,
    "output": OUTPUT,
    "egress_denied": EGRESS_DENIED,
    "invalid": USAGE,
    "cancelled": CANCELLED,
    "lost": LOST,
    "unavailable": UNAVAILABLE,
}

# A field of Limits to the option that raises it.
OPTION_OF_LIMIT: dict[str, str] = {
    "wall_seconds": "--timeout",
    "cpu_seconds": "--cpu",
    "cpus": "--cpus",
    "memory_bytes": "--memory",
    "processes": "--processes",
    "open_files": "--open-files",
    "disk_bytes": "--disk",
    "inodes": "--inodes",
    "output_bytes": "--output-limit",
    "result_bytes": "--result-limit",
    "artefact_bytes": "--artefact-limit",
    "record_bytes": "--record-limit",
}

# An outcome's value to the field of Limits it is about, for a record that names none.
LIMIT_OF_OUTCOME: dict[str, str] = {
    "wall_clock": "wall_seconds",
    "cpu_time": "cpu_seconds",
    "memory": "memory_bytes",
    "processes": "processes",
    "open_files": "open_files",
    "disk": "disk_bytes",
    "inodes": "inodes",
    "output": "output_bytes",
}


class ExitCode(NamedTuple):
    """One row of the table in the docs."""

    code: str
    outcome: str
    """The outcome it stands for; empty where there is no execution to speak of."""
    meaning: str
    option: str = ""
    """The option that raises the limit."""


TABLE: tuple[ExitCode, ...] = (
    ExitCode("0", "ok", "the program ran to its end and exited with 0"),
    ExitCode("1 to 255", "nonzero_exit", "the program's own exit code"),
    ExitCode("128 + n", "signal", "signal n ended the program"),
    ExitCode("64", "invalid", "the command line or the request contradicts a rule"),
    ExitCode("66", "", "a file to read is missing or a folder, or an artefact was not there"),
    ExitCode("69", "unavailable", "no boundary that is strong enough can be started here"),
    ExitCode("70", "", "a fault of Stockade itself"),
    ExitCode("74", "", "reading or writing on the host failed"),
    ExitCode("75", "", "a service refused it for now: a budget is used up"),
    ExitCode("77", "", "a service refused it: no valid key, a policy, or nothing of that name"),
    ExitCode("114", "", "a tool ran and gave no output, or a test of one failed"),
    ExitCode("115", "lost", "the sandbox died under the program, or the answer did not come whole"),
    ExitCode("116", "egress_denied", "the program tried to reach what it may not"),
    ExitCode("117", "output", "too much was written", "--output-limit"),
    ExitCode("118", "inodes", "too many files and folders", "--inodes"),
    ExitCode("119", "disk", "the disk limit was hit", "--disk"),
    ExitCode("120", "open_files", "too many open files", "--open-files"),
    ExitCode("121", "processes", "too many processes and threads", "--processes"),
    ExitCode("122", "memory", "the memory limit was hit", "--memory"),
    ExitCode("123", "cpu_time", "the CPU time was used up", "--cpu"),
    ExitCode("124", "wall_clock", "the time was up", "--timeout"),
    ExitCode("127", "invalid", "the image has no such program"),
    ExitCode("130", "cancelled", "ended by Ctrl-C, SIGTERM, SIGHUP or SIGQUIT"),
    ExitCode("141", "", "the reader of the output went away, as in `| head -1`"),
)
