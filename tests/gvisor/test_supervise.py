"""The supervisor: whatever it started ends with it, and sees of the host what was named."""

import contextlib
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.kit import descendants, living, marker

from stockade.executor.namespace.image import native_folder

pytestmark = pytest.mark.tier("gvisor")

SUPERVISE = native_folder() / "stockade-supervise"
SEEN = [
    word
    for path in ("/usr", "/lib", "/lib64", "/bin", "/dev/null")
    if Path(path).exists()
    for word in ("--see", path)
]
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
# What hides from those who look for it: sessions of their own, no parent, deaf to signals.
HIDE = (
    "trap '' TERM HUP INT; "
    "for n in 1 2 3; do (setsid sh -c '(sleep {0} &) ; exec sleep {0}' &) ; done; exec sleep {0}"
)


class Supervised:
    """A supervisor that was started, and the init's pidfd, if it sent one."""

    def __init__(self, *options: str, command: tuple[str, ...], pass_fds: tuple[int, ...] = ()):
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [
                SUPERVISE,
                *("--parent", str(os.getpid()), "--control", str(theirs.fileno())),
                *SEEN,
                *options,
                "--",
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(), *pass_fds),
            text=True,
        )
        theirs.close()

    def pidfd(self) -> int | None:
        """Wait for it."""
        with self._ours:
            self._ours.settimeout(10)
            message, descriptors, _, _ = socket.recv_fds(self._ours, 16, 1)
        if message != b"+":
            return None
        (descriptor,) = descriptors
        return descriptor

    def end(self) -> tuple[int, str, str]:
        """Its exit code, and what came on both streams."""
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out, err

    def close(self) -> None:
        self._ours.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


Start = Callable[..., Supervised]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts one; whatever becomes of the test, it ends."""
    started: list[Supervised] = []

    def begin(
        *command: str, options: tuple[str, ...] = (), pass_fds: tuple[int, ...] = ()
    ) -> Supervised:
        started.append(Supervised(*options, command=command, pass_fds=pass_fds))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.005)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "gone"


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").replace("\0", " ")
    except OSError:
        return ""


def usage(*arguments: str) -> str:
    ended = subprocess.run(
        [SUPERVISE, *arguments], capture_output=True, text=True, timeout=10, check=False
    )
    assert ended.returncode == 64, ended
    assert ended.stdout == ""
    return ended.stderr


# --- arguments ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--"],
        ["--", "/bin/true"],
        ["--parent", "1", "--", "/bin/true"],
        ["--control", "1", "--", "/bin/true"],
        ["--parent", "1", "--control", "1"],
        ["--parent", "1", "--control", "1", "/bin/true"],
        ["--parent", "1", "--control", "1", "--"],
        ["--parent", "1", "--control", "1", "--bogus", "1", "--", "/bin/true"],
        ["--parent", "1", "--control", "1", "--cpu", "99999", "--", "/bin/true"],
        ["--parent", "1", "--control", "1", "--root-id", "5", "--", "/bin/true"],
        ["--parent", "1", "--control", "1", "--nobody-id", "5", "--", "/bin/true"],
        ["--parent", "1", "--control", "1", *["--see", "/usr"] * 40, "--", "/bin/true"],
    ],
)
def test_what_it_does_not_understand_starts_nothing(arguments: list[str]) -> None:
    assert usage(*arguments).startswith("usage: stockade-supervise --parent PID")


@pytest.mark.parametrize("word", ["", "x", "-1", "1x", "99999999999999"])
@pytest.mark.parametrize("option", ["--parent", "--control", "--door", "--cpu", "--root-id"])
def test_what_is_no_number(option: str, word: str) -> None:
    assert usage(option, word, "--", "/bin/true") == f"stockade-supervise: {word} is no number\n"


# --- ends ---


def test_the_commands_streams_and_its_code_are_the_commands(start: Start) -> None:
    one = start("/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert one.end() == (7, "out\n", "err\n")


def test_a_commands_death_by_a_signal(start: Start) -> None:
    assert start("/bin/sh", "-c", "kill -9 $$").end() == (128 + 9, "", "")


def test_a_command_that_is_not_there(start: Start) -> None:
    one = start("/no/such")
    assert one.end() == (126, "", "stockade-supervise: /no/such: No such file or directory\n")
    assert one.pidfd() is None


def test_a_command_that_is_no_program(start: Start) -> None:
    one = start("/usr")
    assert one.end() == (126, "", "stockade-supervise: /usr: Permission denied\n")


def test_a_place_that_is_not_there(start: Start) -> None:
    code, _, words = start("/bin/true", options=("--see", "/no/such")).end()
    assert (code, words) == (126, "stockade-supervise: /no/such: No such file or directory\n")


def test_the_end_of_the_command_ends_what_it_started(start: Start) -> None:
    mark = marker()
    # Streams of their own: else communicate() would wait for them.
    line = f"(setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark} >/dev/null 2>&1 & exit 3"
    assert start("/bin/sh", "-c", line).end()[0] == 3
    assert living(mark) == []


def test_a_command_that_succeeds_may_leave_others_running(start: Start) -> None:
    """As ``runsc restore -detach`` does; the end of one of them is the end of all."""
    mark = marker()
    line = f"(setsid sleep {mark} >/dev/null 2>&1 &); (sleep 3 >/dev/null 2>&1 &); exit 0"
    one = start("/bin/sh", "-c", line)
    # The supervisor has the mark too, in the command that it was given.
    soon(lambda: [pid for pid in living(mark) if cmdline(pid) == f"sleep {mark}"])
    assert one.end()[0] == 0
    assert living(mark) == []


def test_all_but_the_init_stop_and_go_on(start: Start) -> None:
    mark = marker()
    one = start("/bin/sh", "-c", HIDE.format(mark))
    pidfd = one.pidfd()
    assert pidfd is not None
    soon(lambda: len(living(mark)) >= 7)
    signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
    # By what they were told; its own words have the mark as well, and so have the init's.
    init = next(iter(descendants(one.process.pid)))
    own = {one.process.pid, init}
    soon(lambda: {state(pid) for pid in set(living(mark)) - own} == {"T"})
    soon(lambda: {state(pid) for pid in own} == {"S"})  # they run, and were not stopped
    signal.pidfd_send_signal(pidfd, signal.SIGUSR2)
    soon(lambda: {state(pid) for pid in set(living(mark)) - own} == {"S"})
    signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert one.end()[0] == 128 + 9
    assert living(mark) == []
    os.close(pidfd)


def test_what_it_starts_takes_no_cpu_from_who_woke_it(start: Start) -> None:
    line = "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    assert start("/usr/bin/python3", "-c", line).end()[:2] == (0, "True\n")


def test_there_is_no_membarrier(start: Start) -> None:
    line = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({MEMBARRIER[platform.machine()]}, 0, 0), ctypes.get_errno(), libc.getppid() > 0)
"""
    assert start("/usr/bin/python3", "-c", line).end()[:2] == (0, f"-1 {errno.ENOSYS} True\n")


def test_kill_9_of_the_supervisor_takes_everything_with_it(start: Start) -> None:
    mark = marker()
    one = start("/bin/sh", "-c", HIDE.format(mark))
    soon(lambda: len(living(mark)) >= 7)
    one.process.send_signal(signal.SIGKILL)
    one.process.wait(10)
    soon(lambda: living(mark) == [])
    soon(lambda: one.process.pid not in descendants())


def test_the_pidfd_is_that_of_all(start: Start) -> None:
    mark = marker()
    one = start("/bin/sh", "-c", HIDE.format(mark))
    pidfd = one.pidfd()
    assert pidfd is not None
    soon(lambda: len(living(mark)) >= 7)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert one.end()[0] == 128 + 9
    # The supervisor has reaped the init, and that waits for all others: pid_namespaces(7).
    assert living(mark) == []
    os.close(pidfd)


def test_it_dies_with_its_parent() -> None:
    """kill -9 of whoever started it."""
    mark = marker()
    text = (
        "import os, socket, subprocess, sys, time\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "subprocess.Popen([sys.argv[1], '--parent', str(os.getpid()), '--control',"
        " str(theirs.fileno()), *sys.argv[3:], '--', '/bin/sh', '-c', sys.argv[2]],"
        " pass_fds=[theirs.fileno()])\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text, SUPERVISE, HIDE.format(mark), *SEEN],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as parent:
        soon(lambda: len(living(mark)) >= 7)
        below = set(descendants(parent.pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        # "sh -c" of the parent has the mark as well, and is gone by now.
        soon(lambda: living(mark) == [])
        soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


def test_a_parent_that_is_gone_already_starts_nothing(start: Start) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        # pid 1 is not the one that starts it here.
        ended = subprocess.run(
            [SUPERVISE, "--parent", "1", "--control", str(theirs.fileno()), "--", "/bin/echo", "x"],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            timeout=10,
            check=False,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


# --- what it enters, and what it sees ---


def test_each_door_is_entered_once_and_closed(start: Start) -> None:
    """By "0", whatever is behind; the command has no descriptor of it."""
    pipes = [os.pipe() for _ in range(2)]
    doors = [door for _, door in pipes]
    options = tuple(word for door in doors for word in ("--door", str(door)))
    one = start("/bin/ls", "/proc/self/fd", options=options, pass_fds=tuple(doors))
    code, out, _ = one.end()
    # The fourth is the one that lists.
    assert (code, out.split()) == (0, ["0", "1", "2", "3"])
    for entered, door in pipes:
        os.close(door)
        assert os.read(entered, 16) == b"0"
        assert os.read(entered, 16) == b""
        os.close(entered)


def test_a_door_that_does_not_open_starts_nothing(start: Start) -> None:
    code, out, words = start("/bin/echo", "x", options=("--door", "999")).end()
    assert (code, out) == (126, "")
    assert words == "stockade-supervise: enter the cgroup: Bad file descriptor\n"


def test_it_runs_on_the_cpus_that_were_named(start: Start) -> None:
    cpu = min(os.sched_getaffinity(0))
    one = start("/usr/bin/nproc", options=("--cpu", str(cpu)))
    assert one.end() == (0, "1\n", "")


def test_the_command_sees_its_own_processes_only(start: Start) -> None:
    line = "cd /proc; for n in [0-9]*; do read -r name < $n/comm; echo $n $name; done"
    code, out, _ = start("/bin/sh", "-c", line).end()
    assert code == 0
    init, command = out.splitlines()
    assert init == "1 stockade-superv"
    assert command.startswith("2 ")


def test_the_command_sees_of_the_host_what_was_named(start: Start) -> None:
    code, out, _ = start("/bin/ls", "-A", "/", "/tmp").end()
    assert code == 0
    root, tmp = out.split("\n\n")
    named = {Path(path).parts[1] for path in SEEN[1::2]}
    assert set(root.split()[1:]) == named | {"proc", "tmp"}
    assert tmp.split() == ["/tmp:"]


def test_nothing_of_its_mounts_is_the_hosts(start: Start) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    one = start("/bin/sleep", "30")
    assert one.pidfd() is not None
    time.sleep(0.1)
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nobody_of_it_is_the_hosts_root(start: Start) -> None:
    """Root inside, and of the host an id that owns nothing."""
    ids = {"--root-id": "2000000001", "--nobody-id": "2000000002", "--group-id": "2000000003"}
    options = tuple(word for pair in ids.items() for word in pair)
    mark = marker()
    one = start("/bin/sh", "-c", f"id -u; {HIDE.format(mark)}", options=options)
    pidfd = one.pidfd()
    assert pidfd is not None
    soon(lambda: len(living(mark)) >= 7)
    for pid in set(living(mark)) - {one.process.pid}:
        try:
            status = Path(f"/proc/{pid}").stat()
        except FileNotFoundError:
            continue  # one of those that hid the others
        assert (status.st_uid, status.st_gid) == (2000000001, 2000000003)
    # The change of user is what a process loses its parent's death for: prctl(2).
    one.process.send_signal(signal.SIGKILL)
    soon(lambda: living(mark) == [])
    os.close(pidfd)
    assert one.end()[1] == "0\n"
