"""By what each limit is kept."""

from dataclasses import fields

import pytest

from stockade.executor.doctor.enforcement import explain
from stockade.port import Enforcement, Limits

ENFORCED, PER_PROCESS, ABSENT = Enforcement.ENFORCED, Enforcement.PER_PROCESS, Enforcement.ABSENT
WHOLE = {field.name: ENFORCED for field in fields(Limits)} | {"open_files": PER_PROCESS}
PLAIN = WHOLE | {"memory_bytes": PER_PROCESS, "cpu_seconds": PER_PROCESS, "cpus": ABSENT}


@pytest.mark.parametrize(
    ("kept", "cgroup"), [(WHOLE, "cgroup v1"), (WHOLE, "cgroup v2"), (PLAIN, "")]
)
def test_every_limit_has_a_sentence(kept: dict[str, Enforcement], cgroup: str) -> None:
    """For each way in which the tier keeps it."""
    for name, (how, by) in explain(kept, cgroup, dict.fromkeys(kept, ENFORCED)).items():
        assert how is kept[name]
        assert by
        assert "no description" not in by
        assert "{" not in by


def test_cgroup_versions_have_their_own_files() -> None:
    """An operator can look at the very file."""
    for cgroup, file in (("cgroup v1", "memory.limit_in_bytes"), ("cgroup v2", "memory.max")):
        _, by = explain(WHOLE, cgroup, WHOLE)["memory_bytes"]
        assert f"{cgroup} {file}" in by


def test_a_controller_that_is_absent_is_not_claimed() -> None:
    """Processes stay bounded without the pids controller, by the other half alone."""
    _, by = explain(WHOLE, "cgroup v2", WHOLE | {"processes": ABSENT})["processes"]
    assert "pids.max" not in by
    assert "RLIMIT_NPROC" in by


def test_an_unknown_way_is_told_truly() -> None:
    """A limit that is not kept is never described as one that is."""
    assert explain({"disk_bytes": ABSENT}, "", {})["disk_bytes"] == (
        ABSENT,
        "absent, in a way that has no description",
    )
