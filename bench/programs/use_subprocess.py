"""Processes: a shell's pipeline, /dev/fd, a status, a signal, a deadline, a large output."""

import signal
import subprocess
import sys


def said(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


assert said("sh", "-c", "seq 1000 | grep 7 | sort -rn | head -n 1") == "997\n"
assert said("bash", "-c", "diff <(seq 3) <(seq 3) && echo same") == "same\n"
assert subprocess.run(["sh", "-c", "exit 3"], check=False).returncode == 3
assert subprocess.run(["sh", "-c", "kill -TERM $$"], check=False).returncode == -signal.SIGTERM
try:
    subprocess.run(["sleep", "60"], check=True, timeout=0.2)
except subprocess.TimeoutExpired:
    pass
else:
    raise AssertionError("the deadline was not kept")
echoed = subprocess.run(["cat"], input=b"x" * 5_000_000, check=True, capture_output=True).stdout
assert len(echoed) == 5_000_000
print(said(sys.executable, "-c", "print(6 * 7)"), end="")
