"""Sandboxes fit into the limit of open files, or there are fewer of them."""

import subprocess
import sys

import pytest

from stockade.executor.descriptors import PER_SANDBOX

pytestmark = pytest.mark.plain_user

PROGRAM = """
import resource, sys
from stockade.executor.descriptors import make_room
wanted, soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
room = make_room(wanted)
print(room.sandboxes, *resource.getrlimit(resource.RLIMIT_NOFILE), room.limited_by, sep="|")
"""


def room(wanted: int, soft: int, hard: int) -> tuple[int, int, int, str]:
    """Sandboxes, the limits afterwards, and the reason, in a process with these limits."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, (wanted, soft, hard))],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    *numbers, reason = said.split("|")
    sandboxes, soft, hard = map(int, numbers)
    return sandboxes, soft, hard, reason


def test_a_limit_that_suffices_is_left_alone() -> None:
    assert room(20, 1024, 4096) == (20, 1024, 4096, "pool.most_alive")


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    sandboxes, soft, hard, reason = room(100, 256, 4096)
    assert (sandboxes, hard, reason) == (100, 4096, "pool.most_alive")
    assert 100 * PER_SANDBOX < soft < 100 * PER_SANDBOX + 256


def test_a_low_hard_limit_leaves_less_room() -> None:
    sandboxes, soft, hard, reason = room(512, 256, 1024)
    assert (soft, hard, reason) == (1024, 1024, "ulimit -n: 1024 open files")
    assert 1024 - 256 < sandboxes * PER_SANDBOX < 1024


def test_one_is_always_tried() -> None:
    """What there really is no room for fails by itself, and says so."""
    assert room(512, 64, 64)[0] == 1
