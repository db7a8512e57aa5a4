"""``stockade run`` as a process: closed pipes, signals, terminals."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ENTRY = str(Path(__file__).with_name("fake_stockade.py"))
CODE = ("run", "-c", "")


def command(scenario: str, *arguments: str) -> list[str]:
    return [sys.executable, ENTRY, scenario, *(arguments or CODE)]


class Process:
    """A command that was started, with what the fake executor saw once it has ended."""

    def __init__(self, log: Path, scenario: str, *arguments: str, **popen: Any) -> None:
        self.log = log
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen["env"] = {**os.environ, "FAKE_LOG": str(log), **popen.pop("env", {})}
        self.popen: Any = subprocess.Popen(command(scenario, *arguments), **popen)

    def end(self) -> tuple[Any, ...]:
        out, err = self.popen.communicate(timeout=20)
        return self.popen.returncode, out, err

    @property
    def call(self) -> Any:
        (call,) = json.loads(self.log.read_text())
        return call


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def start(scenario: str, *arguments: str, **popen: Any) -> Process:
        log = tmp_path / f"log{len(processes)}"
        processes.append(Process(log, scenario, *arguments, **popen))
        return processes[-1]

    yield start
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def read_some(stream: Any) -> bytes:
    return os.read(stream.fileno(), 65_536)


# --- output that cannot be written ---


def test_a_reader_that_goes_away_ends_it_quietly(start: Start) -> None:
    process = start("yes")
    assert read_some(process.popen.stdout).startswith(b"y\n")
    process.popen.stdout.close()
    process.popen.stdout = None
    assert process.end() == (141, None, b"")
    assert (process.call["cancelled"], process.call["outcome"]) == (True, "cancelled")


def test_head_in_a_shell() -> None:
    script = f"{sys.executable} {ENTRY} yes run -c '' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")


def test_a_full_disk_is_named(start: Start) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start("yes", stdout=full)
        code, _, err = process.end()
    assert code == 74
    assert err == (
        b"stockade: standard output: No space left on device; the execution was cancelled\n"
    )
    assert process.call["cancelled"]


def test_standard_error_that_cannot_be_written(start: Start) -> None:
    with Path("/dev/full").open("wb") as full:
        assert start("both", stderr=full).end() == (74, b"out\n", None)


def test_json_that_cannot_be_written(start: Start) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, err = start("both", "run", "--json", "-c", "", stdout=full).end()
    assert (code, err) == (74, b"stockade: standard output: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    assert start("both", "run", "--json", "-c", "", stdout=write).end() == (141, None, b"")
    os.close(write)


def test_help_that_cannot_be_written(start: Start) -> None:
    read, write = os.pipe()
    os.close(read)
    assert start("nothing", "--help", stdout=write).end() == (141, None, b"")
    os.close(write)
    with Path("/dev/full").open("wb") as full:
        code, _, err = start("nothing", "run", "--help", stdout=full).end()
    assert (code, err) == (74, b"stockade: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 74, b"stockade: standard output: Bad file descriptor"),
        ("2>&-", 0, b""),
        ("<&-", 0, b""),
    ],
)
def test_descriptors_that_are_closed(redirection: str, code: int, said: bytes) -> None:
    wrapped = f"exec {redirection}; exec {sys.executable} {ENTRY} both run -c ''"
    done = subprocess.run(["bash", "-c", wrapped], capture_output=True, timeout=20, check=False)
    assert done.returncode == code
    assert said in done.stderr


def test_a_pipe_set_non_blocking_by_others_loses_nothing(start: Start) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = start("cat", stdin=subprocess.PIPE, stdout=write)
    os.close(write)
    data = os.urandom(1 << 20)

    def feed() -> None:
        with process.popen.stdin as pipe:
            pipe.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    time.sleep(0.5)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == data
    feeder.join()
    process.popen.stdin = None
    assert process.popen.wait(20) == 0


# --- input ---


def test_input_is_streamed_both_ways(start: Start) -> None:
    process = start("cat", stdin=subprocess.PIPE)
    for piece in (b"one\n", b"\0\xfftwo", b"3" * 5000):
        os.write(process.popen.stdin.fileno(), piece)
        got = b""
        while len(got) < len(piece):
            got += read_some(process.popen.stdout)
        assert got == piece
    process.popen.stdin.close()
    process.popen.stdin = None
    assert process.end() == (0, b"", b"")


def test_input_is_not_read_ahead(start: Start) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = start("sleep", stdin=read)
    os.close(read)
    read_some(process.popen.stdout)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while written < 1 << 24:
            written += os.write(write, b"x" * 4096)
    assert written < 1 << 20
    process.popen.send_signal(signal.SIGTERM)
    assert process.end()[0] == 130
    os.close(write)


# --- signals ---


def ready(process: Process) -> Process:
    assert read_some(process.popen.stdout) == b"ready\r\n"
    return process


def test_ctrl_c_reaches_the_program(start: Start) -> None:
    process = ready(start("sleep"))
    process.popen.send_signal(signal.SIGINT)
    code, _, err = process.end()
    assert (code, err) == (130, b"stockade: the program was ended by SIGINT (signal 2)\n")
    assert process.call["signals"] == [2]
    assert not process.call["cancelled"]


def test_a_second_ctrl_c_cancels_at_once(start: Start) -> None:
    process = ready(start("deaf"))
    process.popen.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.popen.poll() is None
    began = time.monotonic()
    process.popen.send_signal(signal.SIGINT)
    code, _, err = process.end()
    assert time.monotonic() - began < 1.5
    assert (code, err) == (130, b"stockade: cancelled by Ctrl-C\n")
    assert (process.call["signals"], process.call["cancelled"]) == ([2], True)


def test_one_ctrl_c_cancels_after_two_seconds(start: Start) -> None:
    process = ready(start("deaf"))
    began = time.monotonic()
    process.popen.send_signal(signal.SIGINT)
    assert process.end()[0] == 130
    assert 1.8 < time.monotonic() - began < 5
    assert process.call["cancelled"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_other_signals_cancel(start: Start, number: int) -> None:
    process = ready(start("deaf"))
    process.popen.send_signal(number)
    code, _, err = process.end()
    assert (code, err) == (130, b"stockade: cancelled by a signal to stockade\n")
    assert (process.call["signals"], process.call["outcome"]) == ([], "cancelled")


def test_a_signal_ignored_from_outside_stays_ignored(start: Start) -> None:
    process = start("sleep", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    ready(process).popen.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.popen.poll() is None
    process.popen.send_signal(signal.SIGTERM)
    assert process.end()[0] == 130


def test_ctrl_c_before_the_program_started(start: Start) -> None:
    process = start("slow_to_open")
    assert read_some(process.popen.stdout) == b"opening\n"
    process.popen.send_signal(signal.SIGINT)
    code, _, err = process.end()
    assert (code, err) == (130, b"stockade: cancelled before the program started\n")


def test_a_reader_that_never_reads_does_not_hold_up_the_end(start: Start) -> None:
    process = start("yes")
    time.sleep(1)
    began = time.monotonic()
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(10) == 130
    assert time.monotonic() - began < 3


# --- terminals ---


class Terminal:
    """A pseudo-terminal with a command in its foreground."""

    def __init__(self, log: Path, scenario: str, *arguments: str, typed: bytes = b"") -> None:
        self.master, self.slave = pty.openpty()
        self.resize(40, 120)
        self.before = termios.tcgetattr(self.slave)
        os.write(self.master, typed)
        self.process = Process(
            log,
            scenario,
            *arguments,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={"TERM": "xterm-256color"},
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, text: bytes) -> None:
        end = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65_536)

    def end(self) -> int:
        code: int = self.process.popen.wait(20)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.seen += os.read(self.master, 65_536)
            except OSError:
                break  # EIO: the last one to hold the other end is gone
        return code

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    @property
    def is_restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        self.process.popen.kill()
        self.process.popen.wait()
        os.close(self.master)
        os.close(self.slave)


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[OpenTerminal]:
    terminals: list[Terminal] = []

    def open_terminal(scenario: str, *arguments: str, **options: Any) -> Terminal:
        terminals.append(Terminal(tmp_path / "log", scenario, *arguments, **options))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def test_on_a_terminal_the_program_gets_one(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("cat")
    while not terminal.is_raw:
        time.sleep(0.02)
    for key in (b"a", b"\x03", b"\x04", b"\x1a"):
        terminal.type(key)
        terminal.expect(key)
    assert terminal.seen == b"a\x03\x04\x1a"
    terminal.resize(10, 20)
    time.sleep(0.3)
    terminal.process.popen.send_signal(signal.SIGTERM)
    assert terminal.end() == 130
    assert terminal.is_restored
    call = terminal.process.call
    assert call["terminal"] == "TerminalSize(rows=40, columns=120)"
    assert call["environment"] == {"TERM": "xterm-256color"}
    assert call["sizes"] == [[10, 20]]
    assert call["signals"] == []


def test_the_terminal_is_restored_after_a_crash(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("crash")
    assert terminal.end() == 70
    assert b"ZeroDivisionError" in terminal.seen
    assert terminal.is_restored


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_restored_after_a_signal(on_terminal: OpenTerminal, number: int) -> None:
    terminal = on_terminal("sleep")
    terminal.expect(b"ready")
    assert terminal.is_raw
    terminal.process.popen.send_signal(number)
    assert terminal.end() == 130
    assert terminal.is_restored


def test_what_was_typed_ahead_is_not_lost(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("first_line", typed=b"early\n")
    assert terminal.end() == 0
    # Once as the terminal's echo, once from the program.
    assert terminal.seen.count(b"early") == 2


def test_without_a_terminal_for_the_program_lines_pass(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("first_line", "run", "--no-tty", "-c", "")
    time.sleep(0.3)
    assert not terminal.is_raw
    terminal.type(b"line\n")
    assert terminal.end() == 0
    assert terminal.seen == b"line\r\nline\r\n"
    assert terminal.process.call["terminal"] == "None"


def test_our_line_begins_on_a_line_of_its_own_and_is_coloured(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("partial_line")
    assert terminal.end() == 3
    said = b"\x1b[31m\x1b[1mstockade:\x1b[0m the program exited with 3\r\n"
    assert terminal.seen == b"no newline\r\n" + said


def test_no_color_is_respected(on_terminal: OpenTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = on_terminal("memory")
    assert terminal.end() == 122
    assert b"\x1b" not in terminal.seen
    assert terminal.seen.startswith(rb"stockade: memory: \x1b[31mred\u202e; --memory")


def test_json_never_takes_the_terminal(on_terminal: OpenTerminal) -> None:
    terminal = on_terminal("both", "run", "--json", "-c", "")
    assert terminal.end() == 0
    assert json.loads(terminal.seen)["outcome"] == "ok"
    assert terminal.process.call["terminal"] == "None"


def test_a_background_job_is_not_stopped_by_its_terminal(tmp_path: Path) -> None:
    """A job in a process group of its own that does not own the terminal."""
    program = (
        "import subprocess, sys\n"
        "job = subprocess.Popen(sys.argv[1:], process_group=0)\n"
        "print('code', job.wait(15))\n"
    )
    child, master = pty.fork()
    if child == 0:
        os.environ["FAKE_LOG"] = str(tmp_path / "log")
        arguments = [sys.executable, "-c", program, *command("first_line")]
        os.execv(sys.executable, arguments)
    seen = b""
    with contextlib.suppress(OSError):
        while piece := os.read(master, 4096):
            seen += piece
    os.waitpid(child, 0)
    os.close(master)
    assert seen == b"end of input\r\ncode 0\r\n"
    assert json.loads((tmp_path / "log").read_text())[0]["terminal"] == "None"
