"""What the figures were measured on."""

import os
import platform
import subprocess
from pathlib import Path

import stockade
from bench.contestants import PYTHON

ROOT = Path(__file__).parent.parent


def facts() -> dict[str, str]:
    """Label to value; nothing that names the host or its owner."""
    return {
        "stockade": _revision(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "CPUs": f"{len(os.sched_getaffinity(0))} x {_cpu_model()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30):.0f} GiB",
        "Python of Stockade": platform.python_version(),
        "Python that is run": _said(
            PYTHON, "-c", "import platform as p; print(p.python_version())"
        ),
    }


def _revision() -> str:
    commit = _said("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return f"{stockade.__version__} ({commit})" if commit else stockade.__version__


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
