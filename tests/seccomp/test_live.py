"""The kernel of this machine enforces the filter, and ordinary programs run under it."""

import ctypes
import errno
import importlib.util
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.executor.namespace.native.seccomp import generate

Program = list[tuple[int, int, int, int]]

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="needs Linux on x86-64"
)

NUMBERS = generate.read_numbers()["x86_64"]
PR_SET_NO_NEW_PRIVS = 38
X32_BIT = 0x4000_0000


class Fprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


libc = ctypes.CDLL(None, use_errno=True)


def system_call(nr: int, *args: int | bytes) -> int:
    """0 or the errno."""
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(nr), *words) == -1 else 0


def load(program: Program) -> None:
    """Load the filter, from now on and for all children."""
    code = b"".join(struct.pack("<HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = Fprog(len(program), ctypes.cast(buffer, ctypes.c_void_p))
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.syscall(ctypes.c_long(NUMBERS["seccomp"]), 1, 0, ctypes.byref(fprog)) == 0


def confine(program: Program) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a killed child leaves no file
    load(program)


def in_a_confined_child(program: Program, act: Callable[[], object]) -> tuple[object, int]:
    """What `act` returned in a child under the filter, and the child's wait status."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            confine(program)
            os.write(write, json.dumps(act()).encode())
            os._exit(0)
        finally:
            os._exit(99)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        text = answers.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else None, status


AT_FDCWD = -100
INVALID = -1  # a descriptor or pointer that no call accepts

# Arguments are such that without the filter another errno, or none, would come.
CALLS: list[tuple[str, tuple[int | bytes, ...], int]] = [
    ("clone3", (0, 0), errno.ENOSYS),
    ("clone", (0x1000_0000 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
    ("unshare", (0x1000_0000,), errno.EPERM),
    ("unshare", (0,), errno.EPERM),
    ("setns", (INVALID, 0), errno.EPERM),
    ("io_uring_setup", (1, 0), errno.ENOSYS),
    ("io_setup", (1, 0), errno.ENOSYS),
    ("memfd_secret", (0,), errno.ENOSYS),
    ("mount", (0, 0, 0, 0, 0), errno.EPERM),
    ("fsopen", (b"tmpfs", 0), errno.EPERM),
    ("fsmount", (INVALID, 0, 0), errno.EPERM),
    ("open_tree", (AT_FDCWD, b"/", 0), errno.EPERM),
    ("move_mount", (INVALID, b"", INVALID, b"", 0), errno.EPERM),
    ("pivot_root", (b"/", b"/"), errno.EPERM),
    ("chroot", (b"/",), errno.EPERM),
    ("umount2", (b"/nowhere", 0), errno.EPERM),
    ("ptrace", (0, 0, 0, 0), errno.EPERM),
    ("process_vm_readv", (0, 0, 0, 0, 0, 0), errno.EPERM),
    ("pidfd_getfd", (INVALID, 0, 0), errno.EPERM),
    ("kcmp", (0, 0, 0, 0, 0), errno.EPERM),
    ("bpf", (0, 0, 0), errno.EPERM),
    ("perf_event_open", (0, 0, 0, 0, 0), errno.EPERM),
    ("userfaultfd", (1,), errno.EPERM),
    ("add_key", (b"user", b"x", b"x", 1, -4), errno.EPERM),
    ("keyctl", (0, -4, 1), errno.EPERM),
    ("open_by_handle_at", (INVALID, 0, 0), errno.EPERM),
    ("name_to_handle_at", (INVALID, b"", 0, 0, 0), errno.EPERM),
    ("quotactl", (INVALID, 0, 0, 0), errno.EPERM),
    ("nfsservctl", (0, 0, 0), errno.EPERM),
    ("syslog", (10, 0, 0), errno.EPERM),
    ("kexec_load", (0, 0, 0, INVALID), errno.EPERM),
    ("finit_module", (INVALID, b"", 0), errno.EPERM),
    ("clock_settime", (0, 0), errno.EPERM),
    ("adjtimex", (0,), errno.EPERM),
    ("shmget", (0, 4096, 0o1600), errno.EPERM),
    ("msgget", (0, 0o1600), errno.EPERM),
    ("semget", (0, 1, 0o1600), errno.EPERM),
    ("mq_open", (b"x", 0o102, 0o600, 0), errno.EPERM),
    ("move_pages", (0, 0, 0, 0, 0, 0), errno.EPERM),
    ("vmsplice", (INVALID, 0, 0, 0), errno.EPERM),
    ("sched_setaffinity", (0, 8, b"\xff" * 8), errno.EPERM),
    ("sync", (), errno.EPERM),
    ("socket", (40, 1, 0), errno.EAFNOSUPPORT),
    ("socket", (16, 3, 0), errno.EAFNOSUPPORT),
    ("socket", (17, 3, 0), errno.EAFNOSUPPORT),
    ("socket", (38, 5, 0), errno.EAFNOSUPPORT),
    ("socket", (2, 3, 1), errno.EPERM),
    ("socket", (2, 1, 132), errno.EPROTONOSUPPORT),
    ("socket", (2, 0x80801, 6), 0),
    ("socket", (10, 2, 0), 0),
    ("socket", (1, 5, 0), 0),
    ("setsockopt", (INVALID, 1, 26, 0, 0), errno.EPERM),
    ("setsockopt", (INVALID, 1, 2, 0, 0), errno.EBADF),
    ("ioctl", (INVALID, 0x5412, 0), errno.EPERM),
    ("ioctl", (INVALID, 0x7_0000_5412, 0), errno.EPERM),
    ("ioctl", (INVALID, 0x5413, 0), errno.EBADF),
    ("fcntl", (INVALID, 1024, 0), errno.EPERM),
    ("fcntl", (INVALID, 1026, 0), errno.EPERM),
    ("fcntl", (INVALID, 1036, 0), errno.EPERM),
    ("fcntl", (INVALID, 3, 0), errno.EBADF),
    ("flock", (INVALID, 2), errno.EBADF),
    ("inotify_add_watch", (INVALID, b"/usr", 0x2), errno.ENOSYS),
    ("memfd_create", (b"x", 0x4), errno.EPERM),
    ("personality", (0x4_0000,), errno.EPERM),
    ("personality", (0xFFFF_FFFF,), 0),
    ("prlimit64", (1, 7, 0, 0), errno.EPERM),
    ("prlimit64", (0, 4, b"\0" * 16, 0), 0),
    ("prlimit64", (0, 4, b"\0" * 16, b"\0" * 16), errno.EPERM),
    ("prlimit64", (0, 4, 0, 0), 0),
    ("setrlimit", (4, b"\0" * 16), 0),
    ("setpriority", (0, 1, 19), errno.EPERM),
    ("setpriority", (0, 0, 19), 0),
    ("sched_setscheduler", (1, 5, b"\0" * 4), errno.EPERM),
    ("mknod", (b"/nowhere/x", 0o020666, 0), errno.EPERM),
    ("mknod", (b"/nowhere/x", 0o010666, 0), errno.ENOENT),
    ("mknodat", (AT_FDCWD, b"/nowhere/x", 0o060666, 0), errno.EPERM),
    ("mknodat", (AT_FDCWD, b"/nowhere/x", 0o100666, 0), errno.ENOENT),
    ("seccomp", (1, 8, 0), errno.EPERM),
    ("seccomp", (1, 0, 0), errno.EFAULT),
    ("prctl", (35, 0, 0, 0, 0), errno.EPERM),
    ("prctl", (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0),
]  # fmt: skip


def test_a_pretended_answer_changes_nothing(programs: dict[str, Program]) -> None:
    """The limit on core dumps, set by either call as gpg and AddressSanitizer do."""

    def act() -> tuple[list[int], tuple[int, int]]:
        wanted = struct.pack("QQ", 7, 9)
        calls = (("setrlimit", (4, wanted)), ("prlimit64", (0, 4, wanted, 0)))
        answers = [system_call(NUMBERS[call], *args) for call, args in calls]
        return answers, resource.getrlimit(resource.RLIMIT_CORE)

    answers, status = in_a_confined_child(programs["x86_64"], act)
    assert (answers, status) == ([[0, 0], [0, 0]], 0)


def test_each_call_gets_its_answer(programs: dict[str, Program]) -> None:
    def act() -> list[int]:
        return [system_call(NUMBERS[call], *args) for call, args, _ in CALLS]

    answers, status = in_a_confined_child(programs["x86_64"], act)
    assert status == 0
    assert isinstance(answers, list)
    assert [
        (call, args, errno.errorcode.get(answer, answer))
        for (call, args, _), answer in zip(CALLS, answers, strict=True)
    ] == [(call, args, errno.errorcode.get(answer, answer)) for call, args, answer in CALLS]


@pytest.mark.parametrize("number", [385, 423, 472, 600, 0x3FFF_FFFF])
def test_an_unknown_number_is_enosys(programs: dict[str, Program], number: int) -> None:
    result = in_a_confined_child(programs["x86_64"], lambda: system_call(number))
    assert result == (errno.ENOSYS, 0)


def test_an_x32_call_kills(programs: dict[str, Program]) -> None:
    def act() -> int:
        return system_call(X32_BIT | NUMBERS["getpid"])

    _, status = in_a_confined_child(programs["x86_64"], act)
    assert os.WTERMSIG(status) == signal.SIGSYS


def test_a_32_bit_call_kills(programs: dict[str, Program]) -> None:
    """A kernel without 32-bit calls ends the guest by SIGSEGV."""

    def act() -> int:
        memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, getpid; int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())

    answer, status = in_a_confined_child(programs["x86_64"], act)
    assert answer is None
    assert os.WTERMSIG(status) in (signal.SIGSYS, signal.SIGSEGV)


def test_a_guests_own_filter_does_not_loosen_ours(programs: dict[str, Program]) -> None:
    """The kernel takes the strictest answer of all filters (SECURITY.md, 26)."""

    def act() -> list[int]:
        load([(0x06, 0, 0, 0x7FFF_0000)])  # a filter that allows everything
        return [system_call(NUMBERS["unshare"], 0), system_call(NUMBERS["getpid"])]

    assert in_a_confined_child(programs["x86_64"], act) == ([errno.EPERM, 0], 0)


PYTHON = """
import asyncio, concurrent.futures, multiprocessing, os, socket, sqlite3, ssl, subprocess
import tempfile, threading
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(int, '1234')) == 10
assert subprocess.check_output(['/bin/echo', 'x']) == b'x\\n'
async def call():
    process = await asyncio.create_subprocess_exec('/bin/true')
    return await process.wait()
assert asyncio.run(call()) == 0
with tempfile.TemporaryDirectory() as folder:
    database = sqlite3.connect(folder + '/x.db')
    database.execute('create table t (x)')
    database.commit()
with socket.create_server(('127.0.0.1', 0)) as server:
    with socket.create_connection(server.getsockname()):
        pass
with multiprocessing.get_context('fork').Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
print('ok')
"""
NUMPY = "import numpy; a = numpy.ones((300, 300)); assert (a @ a).sum() == 300 ** 3; print('ok')"
GIT = """
git init -q . && echo x > x && git add x &&
git -c user.name=n -c user.email=e commit -q -m m && git gc -q && git log --oneline | grep -q m &&
echo ok
"""
SHELL = """
set -e
mkfifo f; (echo x > f &) ; test "$(cat f)" = x
mkdir d; cp /etc/passwd d/p; mv d/p d/q; ln -s q d/r; ls -l d >/dev/null; chmod 600 d/q
sort d/q | head -n 1 >/dev/null; dd if=/dev/zero of=z bs=4096 count=4 2>/dev/null
nice true; sync; timeout 5 true; find . | xargs ls -d >/dev/null; tar cf t.tar d; rm -r d
echo ok
"""
NODE = """
const fs = require('fs'), {Worker} = require('worker_threads'), {execSync} = require('child_process')
execSync('true')
new Worker('1', {eval: true}).on('exit', code => console.log(code === 0 ? 'ok' : code))
"""
JAVA = """
public class Main {
    public static void main(String[] a) throws Exception {
        Thread t = new Thread(() -> System.out.println("ok")); t.start(); t.join();
    }
}
"""
C = '#include <stdio.h>\nint main(void) { puts("ok"); return 0; }\n'

FILES = {"Main.java": JAVA, "main.c": C}
PROGRAMS = {
    "python3": ["python3", "-c", PYTHON],
    "sh": ["sh", "-c", SHELL],
    "git": ["sh", "-c", GIT],
    "node": ["node", "-e", NODE],
    "java": ["java", "-Xmx128m", "Main.java"],
    "gcc": ["sh", "-c", "gcc -O2 main.c -o main && ./main"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_run(programs: dict[str, Program], name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not here")
    assert run_confined(programs, PROGRAMS[name], tmp_path) == (0, "ok\n", "")


def test_numpy_runs(programs: dict[str, Program], tmp_path: Path) -> None:
    if importlib.util.find_spec("numpy") is None:
        pytest.skip("numpy is not here")
    command = [sys.executable, "-c", NUMPY]
    assert run_confined(programs, command, tmp_path) == (0, "ok\n", "")


def run_confined(
    programs: dict[str, Program], command: list[str], folder: Path
) -> tuple[int, str, str]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: confine(programs["x86_64"]),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
