"""The group, ``doctor`` and ``completion``."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from stockade.cli.main import COMMANDS
from stockade.executor.doctor.report import Report, TierStatus
from stockade.port import Enforcement, Tier

Stockade = Callable[..., Any]

GOOD = Report(
    (TierStatus(Tier.NAMESPACE, True, "user namespaces of Linux 6.1", 71.2),),
    {
        "memory_bytes": (Enforcement.ENFORCED, "cgroup v2"),
        "open_files": (Enforcement.PER_PROCESS, "RLIMIT_NOFILE"),
    },
    {"kernel": "6.1 [bold]\x1b[31m"},
    ("Delegate the cpu controller.",),
)
BAD = Report((TierStatus(Tier.NAMESPACE, False, "user namespaces are switched off"),))


def test_doctor_prints_tables(stockade: Stockade) -> None:
    ended = stockade("doctor", report=GOOD)
    assert ended.code == 0
    text = ended.out.decode()
    for part in (
        "namespace", "yes", "71.2 ms", "user namespaces of Linux 6.1", "--memory", "enforced",
        "trust level", "hostile", "none: it needs gvisor", "cgroup v2", "--open-files", "per-process", "RLIMIT_NOFILE", r"6.1 [bold]\x1b[31m",
        "- Delegate the cpu controller.",
    ):  # fmt: skip
        assert part in text
    assert "\x1b" not in text


def test_doctor_fails_where_nothing_starts(stockade: Stockade) -> None:
    ended = stockade("doctor", report=BAD)
    assert ended.code == 69
    assert b"user namespaces are switched off" in ended.out


def test_doctor_as_json(stockade: Stockade) -> None:
    assert json.loads(stockade("doctor", "--json", report=GOOD).out) == {
        "usable": True,
        "tiers": [
            {
                "tier": "namespace",
                "available": True,
                "detail": "user namespaces of Linux 6.1",
                "start_ms": 71.2,
            }
        ],
        "trust_levels": {
            "reviewed": "namespace",
            "untested": "namespace",
            "hostile": None,
            "regulated": None,
        },
        "enforcement": {
            "memory_bytes": {"how": "enforced", "by": "cgroup v2"},
            "open_files": {"how": "per-process", "by": "RLIMIT_NOFILE"},
        },
        "facts": {"kernel": "6.1 [bold]\x1b[31m"},
        "remedies": ["Delegate the cpu controller."],
    }
    assert stockade("doctor", "--json", report=BAD).code == 69


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(stockade: Stockade, shell: str) -> None:
    ended = stockade("completion", shell)
    assert (ended.code, ended.said) == (0, "")
    assert b"_STOCKADE_COMPLETE=" + shell.encode() + b"_complete" in ended.out


def test_completion_knows_three_shells(stockade: Stockade) -> None:
    ended = stockade("completion", "csh")
    assert ended.code == 64
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in ended.said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("stockade r", "plain,run"),
        ("stockade run --mem", "plain,--memory"),
        ("stockade run --tier n", "plain,namespace"),
        ("stockade run --trust h", "plain,hostile"),
        ("stockade run pro", "file,pro"),
        ("stockade completion z", "plain,zsh"),
    ],
)
def test_completion_answers(words: str, answer: str) -> None:
    environment = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_STOCKADE_COMPLETE": "bash_complete",
    }
    command = [sys.executable, "-m", "stockade.cli.main"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert answer in done.stdout.split()


def test_help_names_every_command_and_section(stockade: Stockade) -> None:
    ended = stockade("--help")
    assert ended.code == 0
    for part in (b"run ", b"doctor ", b"completion ", b"stockade run script.py"):
        assert part in ended.out
    text = stockade("run", "--help").out.decode()
    sections = ("Program:", "Files and variables:", "Limits:", "Sandbox:", "Output:", "Help:")
    assert [text.index(section) for section in sections] == sorted(
        text.index(section) for section in sections
    )
    assert "stockade run -- node" in text
    assert "[default: 512M]" in text


@pytest.mark.tier("namespace")
@pytest.mark.parametrize(
    "arguments", [("doctor",), ("attack", "--only", "sleep")], ids=lambda words: words[0]
)
def test_a_reader_of_a_table_that_went_away(arguments: tuple[str, ...]) -> None:
    """Of `attack` 1 would mean that an attack was not held."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stockade.cli.main", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_a_command_all_are_named(stockade: Stockade) -> None:
    said = stockade().said
    assert f"there is no command; there are: {', '.join(COMMANDS)}\n" in said


def test_usage_errors_exit_with_64(stockade: Stockade) -> None:
    for arguments in ((), ("frobnicate",), ("--frob",), ("doctor", "x"), ("completion",)):
        ended = stockade(*arguments)
        assert ended.code == 64
        assert ended.said.startswith("stockade: ")


def test_help_and_version_import_neither_executor_nor_rich_nor_asyncio() -> None:
    program = (
        "import sys\n"
        "from stockade.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'asyncio', 'rich', 'stockade.executor', 'ssl'} & set(sys.modules)))\n"
    )
    for arguments in (["--help"], ["--version"], ["run", "--help"], ["run", "missing.py"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.stdout.endswith("[]\n")
