"""What the hostile programs share: they try, and report a JSON object a line."""

import errno
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Tuple

try:
    import ctypes
except ImportError:  # in WebAssembly: what needs it fails when it is used
    ctypes = None  # type: ignore[assignment]

FACTS: Dict[str, Any] = json.loads(os.environ.get("STOCKADE_ATTACK", "{}"))
REPORT: int = FACTS.get("report", 3)
CONTROL: bool = FACTS.get("control", False)
VICTIM: int = FACTS.get("victim", 1)
GVISOR: bool = FACTS.get("tier") == "gvisor"
OWN_KERNEL: bool = FACTS.get("tier") in ("gvisor", "microvm", "vm")

# Answers of a wall. Any other, such as EINVAL or EFAULT, says that the attempt was made wrongly.
_WALL = {
    errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOENT, errno.EROFS, errno.ESRCH,
    errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ECONNREFUSED, errno.ENETUNREACH,
    errno.ENODEV, errno.ENXIO,
}  # fmt: skip
if GVISOR:
    # Its network has no route out, and names that with this number.
    _WALL.add(errno.EHOSTUNREACH)

# x86-64, aarch64 (asm/unistd_64.h, asm-generic/unistd.h).
_NUMBERS: Dict[str, Tuple[int, int]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "capset": (126, 91),
    "chroot": (161, 51), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105),
    "io_setup": (206, 0), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_load": (246, 104), "keyctl": (250, 219), "memfd_secret": (447, 447),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "seccomp": (317, 277),
    "semctl": (66, 191), "semget": (64, 190), "sethostname": (170, 161), "setns": (308, 268),
    "setpriority": (141, 140), "settimeofday": (164, 170), "shmctl": (31, 195), "shmget": (29, 194),
    "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "vmsplice": (278, 75),
}  # fmt: skip

if ctypes is not None:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.syscall.restype = ctypes.c_long


def syscall(name: str, *arguments: Any) -> int:
    """Call the kernel without the C library's checks. Raises OSError."""
    number = _NUMBERS[name][platform.machine() == "aarch64"]
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    answer = int(_libc.syscall(ctypes.c_long(number), *words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def say(**line: object) -> None:
    os.write(REPORT, json.dumps(line).encode() + b"\n")


def expect(what: str, held: object, seen: object = "") -> None:
    """Report something that must hold."""
    say(tried=what, answer=str(seen)[:200], held=bool(held))


def refused(what: str, call: Callable[[], object], also: Iterable[int] = ()) -> None:
    """Report whether the kernel refuses ``call``, with the answer of a wall."""
    try:
        answer = call()
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error))
        expect(what, error.errno in (*_WALL, *also), name)
    else:
        expect(what, False, "succeeded: %r" % (answer,))


def refuses(name: str, *arguments: Any, also: Iterable[int] = ()) -> None:
    """``refused`` for a call of the kernel."""
    refused(name, lambda: syscall(name, *arguments), also)


def reached(amount: float) -> None:
    """Report how far a resource could be used; the host knows how far it may be."""
    say(reached=amount)


def ready() -> None:
    """Tell the host that the scene is set."""
    print("ready", flush=True)


def children(count: int, work: Callable[[int], None]) -> List[int]:
    """Fork that many processes, each of which does its work and ends."""
    pids = []
    for index in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(index)
            finally:
                os._exit(0)
        pids.append(pid)
    return pids


def linger(seconds: float) -> None:
    time.sleep(seconds)


def run(attack: Callable[[], None]) -> None:
    """Attack, and say that every attempt was made."""
    attack()
    say(done=True)
    sys.stdout.flush()
