"""Which outcome which evidence gives: every branch, and what wins over what."""

from dataclasses import replace

import pytest

from stockade.executor.outcome import Evidence, Stopped, judge
from stockade.port import KIB, MIB, DeniedDestination, Limits, Outcome

pytestmark = pytest.mark.plain_user

LIMITS = Limits(
    wall_seconds=10,
    cpu_seconds=5,
    memory_bytes=64 * MIB,
    processes=20,
    open_files=64,
    disk_bytes=MIB,
    inodes=50,
    output_bytes=1000,
    result_bytes=100,
)
OK = Evidence(
    wall_seconds=1.0,
    exit_code=0,
    cpu_seconds=0.1,
    peak_memory_bytes=10 * MIB,
    peak_processes=1,
    processes_counted=True,
    open_files=4,
    disk_used=4 * KIB,
    disk_size=MIB,
    inodes_used=1,
    inodes_size=50,
)
FAILED = replace(OK, exit_code=1)
KILLED = replace(OK, exit_code=None, signal=9)
NOTHING = replace(OK, exit_code=None)

TABLE: list[tuple[str, Evidence, Outcome, str | None]] = [
    ("ran to its end", OK, Outcome.OK, None),
    ("failed", FAILED, Outcome.NONZERO_EXIT, None),
    ("failed with 137", replace(OK, exit_code=137), Outcome.NONZERO_EXIT, None),
    ("ended by a signal", KILLED, Outcome.SIGNAL, None),
    ("no end was told", NOTHING, Outcome.LOST, None),
    ("no end, exit claimed by nobody", replace(NOTHING, lost_because="x"), Outcome.LOST, None),
    # What the host did itself.
    ("clock", replace(KILLED, stopped=Stopped.WALL_CLOCK), Outcome.WALL_CLOCK, "wall_seconds"),
    ("clock, exit 0", replace(OK, stopped=Stopped.WALL_CLOCK), Outcome.WALL_CLOCK, "wall_seconds"),
    ("clock, no report", replace(NOTHING, stopped=Stopped.WALL_CLOCK), Outcome.WALL_CLOCK, "wall_seconds"),
    ("cpu", replace(KILLED, stopped=Stopped.CPU_TIME), Outcome.CPU_TIME, "cpu_seconds"),
    ("output", replace(KILLED, stopped=Stopped.OUTPUT), Outcome.OUTPUT, "output_bytes"),
    ("result", replace(KILLED, stopped=Stopped.RESULT), Outcome.OUTPUT, "result_bytes"),
    ("memory", replace(KILLED, stopped=Stopped.MEMORY), Outcome.MEMORY, "memory_bytes"),
    ("cancelled", replace(KILLED, stopped=Stopped.CANCELLED), Outcome.CANCELLED, None),
    ("cancelled, exit 0", replace(OK, stopped=Stopped.CANCELLED), Outcome.CANCELLED, None),
    ("lost", replace(NOTHING, stopped=Stopped.LOST), Outcome.LOST, None),
    ("lost, exit 0 claimed", replace(OK, stopped=Stopped.LOST), Outcome.LOST, None),
    # Counters of the host win over what the agent says.
    ("oom kill", replace(KILLED, oom_kills=1), Outcome.MEMORY, "memory_bytes"),
    ("oom kill of a child", replace(OK, oom_kills=1), Outcome.MEMORY, "memory_bytes"),
    ("oom kill, then clock", replace(KILLED, oom_kills=1, stopped=Stopped.WALL_CLOCK), Outcome.MEMORY, "memory_bytes"),
    ("oom kill, then lost", replace(NOTHING, oom_kills=1, stopped=Stopped.LOST), Outcome.MEMORY, "memory_bytes"),
    # Refused.
    ("refused", replace(NOTHING, refused="no such program"), Outcome.INVALID, None),
    ("refused, exit 255", replace(FAILED, exit_code=255, refused="no"), Outcome.INVALID, None),
    ("refused, cancelled", replace(NOTHING, refused="no", stopped=Stopped.CANCELLED), Outcome.CANCELLED, None),
    # CPU time explains a failure.
    ("cpu, killed", replace(KILLED, cpu_seconds=5.0), Outcome.CPU_TIME, "cpu_seconds"),
    ("cpu, below", replace(KILLED, cpu_seconds=4.9), Outcome.SIGNAL, None),
    ("cpu, unknown", replace(KILLED, cpu_seconds=None), Outcome.SIGNAL, None),
    ("cpu, but a success", replace(OK, cpu_seconds=6.0), Outcome.OK, None),
    ("SIGXCPU with the time used up", replace(KILLED, signal=24, cpu_seconds=5.1), Outcome.CPU_TIME, "cpu_seconds"),
    ("SIGXCPU of its own", replace(KILLED, signal=24, cpu_seconds=0.1), Outcome.SIGNAL, None),
    # The kernel sends it for a file beyond its ceiling, whatever is free.
    ("SIGXFSZ", replace(KILLED, signal=25), Outcome.DISK, "disk_bytes"),
    # Processes.
    ("processes refused", replace(FAILED, processes_refused=3), Outcome.PROCESSES, "processes"),
    ("processes refused, killed", replace(KILLED, processes_refused=1), Outcome.PROCESSES, "processes"),
    ("processes refused, a success", replace(OK, processes_refused=3), Outcome.OK, None),
    ("processes at the ceiling, counted", replace(FAILED, peak_processes=20), Outcome.NONZERO_EXIT, None),
    ("processes at the ceiling, uncounted", replace(FAILED, processes_counted=False, peak_processes=20), Outcome.PROCESSES, "processes"),
    ("processes unknown", replace(FAILED, processes_counted=False, peak_processes=None), Outcome.NONZERO_EXIT, None),
    # Disk, inodes.
    ("disk full", replace(FAILED, disk_used=MIB), Outcome.DISK, "disk_bytes"),
    ("disk full but for some bytes", replace(FAILED, disk_used=MIB - 4095), Outcome.DISK, "disk_bytes"),
    ("a page is free", replace(FAILED, disk_used=MIB - 4096), Outcome.NONZERO_EXIT, None),
    ("disk full, a success", replace(OK, disk_used=MIB), Outcome.OK, None),
    ("disk unknown", replace(FAILED, disk_used=0, disk_size=0), Outcome.NONZERO_EXIT, None),
    ("inodes gone", replace(FAILED, inodes_used=50), Outcome.INODES, "inodes"),
    ("one inode left", replace(FAILED, inodes_used=49), Outcome.NONZERO_EXIT, None),
    ("inodes gone, a success", replace(OK, inodes_used=50), Outcome.OK, None),
    ("inodes unknown", replace(FAILED, inodes_used=0, inodes_size=0), Outcome.NONZERO_EXIT, None),
    ("disk before inodes", replace(FAILED, disk_used=MIB, inodes_used=50), Outcome.DISK, "disk_bytes"),
    # Open files.
    ("open files", replace(FAILED, open_files=63), Outcome.OPEN_FILES, "open_files"),
    ("open files, one less", replace(FAILED, open_files=62), Outcome.NONZERO_EXIT, None),
    ("open files, a success", replace(OK, open_files=64), Outcome.OK, None),
    # The first explanation counts.
    ("clock and processes", replace(KILLED, stopped=Stopped.WALL_CLOCK, processes_refused=9), Outcome.WALL_CLOCK, "wall_seconds"),
    ("processes before disk", replace(FAILED, processes_refused=1, disk_used=MIB), Outcome.PROCESSES, "processes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "outcome", "limit"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_table(evidence: Evidence, outcome: Outcome, limit: str | None) -> None:
    judgement = judge(evidence, LIMITS)
    assert judgement.outcome is outcome
    assert (judgement.limit.name if judgement.limit else None) == limit
    if judgement.limit:
        assert judgement.limit.ceiling == getattr(LIMITS, judgement.limit.name)
    assert judgement.detail
    assert "\n" not in judgement.detail


def test_every_outcome_of_an_execution_is_in_the_table() -> None:
    unreachable = {Outcome.EGRESS_DENIED, Outcome.UNAVAILABLE}
    assert {row[2] for row in TABLE} == set(Outcome) - unreachable


@pytest.mark.parametrize("stopped", Stopped)
def test_every_reason_gives_an_outcome_that_is_no_success(stopped: Stopped) -> None:
    for evidence in (OK, FAILED, KILLED, NOTHING):
        assert judge(replace(evidence, stopped=stopped), LIMITS).outcome not in (
            Outcome.OK,
            Outcome.NONZERO_EXIT,
            Outcome.SIGNAL,
        )


def test_the_sentence_says_what_a_person_needs() -> None:
    assert "3" in judge(replace(FAILED, exit_code=3), LIMITS).detail
    assert "SIGSEGV" in judge(replace(KILLED, signal=11), LIMITS).detail
    assert "40" in judge(replace(KILLED, signal=40), LIMITS).detail
    clock = judge(replace(KILLED, stopped=Stopped.WALL_CLOCK, wall_seconds=10.02), LIMITS).detail
    assert "10" in clock
    assert "10.02" in clock
    bomb = replace(KILLED, stopped=Stopped.WALL_CLOCK, processes_refused=77)
    assert "77" in judge(bomb, LIMITS).detail
    assert "the pipe broke" in judge(replace(NOTHING, lost_because="the pipe broke"), LIMITS).detail
    assert judge(replace(NOTHING, refused="no such program: 'x'"), LIMITS).detail == (
        "no such program: 'x'"
    )


def test_the_use_is_told_where_it_is_known() -> None:
    hit = judge(replace(KILLED, oom_kills=1), LIMITS).limit
    assert hit is not None
    assert hit.used == 10 * MIB
    hit = judge(replace(KILLED, oom_kills=1, peak_memory_bytes=None), LIMITS).limit
    assert hit is not None
    assert hit.used is None


DENIED = tuple(
    DeniedDestination(
        f"{name}.example:443", "no-rule", f"--allow {name}.example:443 would allow it"
    )
    for name in "abcde"
)


@pytest.mark.parametrize("how", [{"exit_code": 7}, {"signal": 9}])
def test_a_failure_that_was_denied_a_destination_says_so(how: dict[str, int]) -> None:
    judged = judge(Evidence(wall_seconds=1.0, denied=DENIED, **how), Limits())  # type: ignore[arg-type]
    assert judged.outcome is Outcome.EGRESS_DENIED
    assert "--allow a.example:443" in judged.detail
    assert judged.detail.endswith("2 more destinations were denied")


def test_a_success_stays_one_and_a_limit_explains_more_than_a_denial() -> None:
    fine = judge(Evidence(wall_seconds=1.0, exit_code=0, denied=DENIED), Limits())
    assert fine.outcome is Outcome.OK
    full = Evidence(wall_seconds=1.0, exit_code=1, denied=DENIED, disk_used=8192, disk_size=8192)
    assert judge(full, Limits()).outcome is Outcome.DISK
    assert judge(Evidence(wall_seconds=1.0, exit_code=1), Limits()).outcome is Outcome.NONZERO_EXIT
