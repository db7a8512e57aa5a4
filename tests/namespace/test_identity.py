"""No two sandboxes that live at the same time share a host user id."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.executor.namespace.identity import (
    RANGE_IDS,
    REGION_BASE,
    REGION_END,
    SLICE_IDS,
    IdentityError,
    IdentityRange,
    IdentitySlice,
    SoleIdentity,
    open_identities,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: ids of their own")

HOLDER = """
import sys
from pathlib import Path
from stockade.executor.namespace.identity import IdentityRange
held = IdentityRange(locks=Path(sys.argv[1]))
print(held.ranges[0], flush=True)
sys.stdin.read()
"""


def a_map(directory: Path, *lines: str) -> Path:
    path = directory / f"map-{len(list(directory.iterdir()))}"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def a_range(directory: Path, *lines: str, base: int | None = None) -> IdentityRange:
    where = directory / "maps"
    where.mkdir(exist_ok=True)
    ids = a_map(where, *lines)
    return IdentityRange(base, locks=directory / "locks", uid_map=ids, gid_map=ids)


def start_holder(locks: Path) -> tuple[subprocess.Popen[bytes], int]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(locks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def end_holder(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


class TestSlice:
    def test_uid_0_of_the_interpreter_is_never_given_to_a_sandbox(self) -> None:
        taken = IdentitySlice(1000)
        offsets = [taken.acquire() for _ in range(SLICE_IDS - 1)]
        assert offsets == list(range(1, SLICE_IDS))
        assert taken.host_id(1) == 1001
        with pytest.raises(IdentityError, match="4096 ids from 1000 are in use"):
            taken.acquire()

    def test_an_id_is_not_used_again_at_once(self) -> None:
        taken = IdentitySlice(1000, count=5)
        first = taken.acquire()
        taken.release(first)
        assert [taken.acquire() for _ in range(4)] == [2, 3, 4, first]

    def test_an_id_that_is_not_in_use_cannot_be_released(self) -> None:
        taken = IdentitySlice(1000)
        offset = taken.acquire()
        taken.release(offset)
        for wrong in (offset, 0, SLICE_IDS):
            with pytest.raises(ValueError, match="not in use"):
                taken.release(wrong)

    def test_an_offset_beyond_the_slice_has_no_host_id(self) -> None:
        for wrong in (-1, SLICE_IDS):
            with pytest.raises(ValueError, match="outside the slice"):
                IdentitySlice(1000).host_id(wrong)

    @settings(database=None)
    @given(st.lists(st.booleans(), max_size=200))
    def test_no_offset_is_held_twice(self, steps: list[bool]) -> None:
        taken, held = IdentitySlice(1000, count=9), set[int]()
        for take in steps:
            if take and len(held) < 8:
                offset = taken.acquire()
                assert offset not in held
                assert 1 <= offset <= 8
                held.add(offset)
            elif held:
                taken.release(held.pop())
            assert taken.in_use == len(held)


@needs_root
class TestRange:
    def test_a_range_lies_in_the_region_and_in_no_other_executors_range(
        self, tmp_path: Path
    ) -> None:
        ranges = [a_range(tmp_path, "0 0 4294967295") for _ in range(31)]
        bases = {one.ranges[0] for one in ranges}
        assert len(bases) == 31
        assert all(base >= REGION_BASE and base + RANGE_IDS <= REGION_END for base in bases)
        with pytest.raises(IdentityError, match=r"all 31 ranges .* are locked"):
            a_range(tmp_path, "0 0 4294967295")
        ranges.pop().close()
        a_range(tmp_path, "0 0 4294967295").close()
        for one in ranges:
            one.close()

    def test_two_processes_never_get_the_same_range(self, tmp_path: Path) -> None:
        holders = [start_holder(tmp_path) for _ in range(4)]
        mine = IdentityRange(locks=tmp_path)
        try:
            assert len({base for _, base in holders} | {mine.ranges[0]}) == 5
        finally:
            mine.close()
            for child, _ in holders:
                end_holder(child)

    def test_a_range_is_free_again_after_kill_9(self, tmp_path: Path) -> None:
        others = [IdentityRange(locks=tmp_path) for _ in range(30)]
        child, base = start_holder(tmp_path)
        with pytest.raises(IdentityError, match="locked"):
            IdentityRange(locks=tmp_path)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        again = IdentityRange(locks=tmp_path)
        assert again.ranges == (base,)
        for one in [*others, again]:
            one.close()

    def test_slices_do_not_overlap_and_come_back(self, tmp_path: Path) -> None:
        one = a_range(tmp_path, "0 0 4294967295")
        taken = [one.slice() for _ in range(RANGE_IDS // SLICE_IDS)]
        bases = sorted(part.base for part in taken)
        assert bases[0] == one.ranges[0]
        assert bases[-1] + SLICE_IDS <= one.ranges[0] + RANGE_IDS
        assert all(after - before >= SLICE_IDS for before, after in itertools.pairwise(bases))
        for part in taken:
            one.give_back(part)
        with pytest.raises(ValueError, match="not of this range"):
            one.give_back(taken[0])
        assert one.slice().base == taken[0].base
        one.give_back(taken[0])
        one.close()

    def test_an_executor_in_a_container_takes_ids_that_the_container_has(
        self, tmp_path: Path
    ) -> None:
        # Each small range holds one slice; a further one is locked when it is needed.
        one = a_range(tmp_path, "0 100000 65536")
        taken = [one.slice() for _ in range(6)]
        assert len({part.base for part in taken}) == 6
        assert all(part.base >= 8192 and part.base + SLICE_IDS <= 65_534 for part in taken)
        assert len(one.ranges) == 6
        with pytest.raises(IdentityError, match="locked"):
            one.slice()

    def test_a_map_in_several_lines_counts_as_one(self, tmp_path: Path) -> None:
        one = a_range(tmp_path, "0 1000 1", "1 100000 16777216", "16777217 500000000 117440512")
        assert one.size == RANGE_IDS
        assert one.ranges[0] + RANGE_IDS <= 134_217_729

    @pytest.mark.parametrize("line", ["0 1000 1", "0 100000 8192", "0 100000 16000"])
    def test_a_container_with_too_few_ids_is_refused(self, tmp_path: Path, line: str) -> None:
        with pytest.raises(IdentityError, match=r"has too few ids .* map more"):
            a_range(tmp_path, line)

    def test_ids_must_exist_as_groups_too(self, tmp_path: Path) -> None:
        users, groups = a_map(tmp_path, "0 0 4294967295"), a_map(tmp_path, "0 0 1")
        with pytest.raises(IdentityError, match="too few ids"):
            IdentityRange(locks=tmp_path / "locks", uid_map=users, gid_map=groups)

    def test_an_unreadable_map_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(IdentityError, match="cannot read"):
            IdentityRange(locks=tmp_path, uid_map=tmp_path / "none", gid_map=tmp_path / "none")

    @pytest.mark.parametrize("base", [0, -RANGE_IDS, RANGE_IDS])
    def test_a_base_outside_the_map_is_refused(self, tmp_path: Path, base: int) -> None:
        with pytest.raises(IdentityError, match="not all in this user namespace"):
            a_range(tmp_path, "0 0 65536", base=base)

    def test_a_base_between_ranges_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(IdentityError, match="multiple of 16777216"):
            a_range(tmp_path, "0 0 4294967295", base=REGION_BASE + 1)

    def test_regions_that_overlap_share_their_locks(self, tmp_path: Path) -> None:
        high = REGION_END - RANGE_IDS - RANGE_IDS // 2
        base = high - high % RANGE_IDS
        one = a_range(tmp_path, "0 0 4294967295", base=base)
        others = [a_range(tmp_path, "0 0 4294967295") for _ in range(30)]
        assert one.ranges[0] not in {other.ranges[0] for other in others}

    def test_a_lock_that_is_a_link_is_refused(self, tmp_path: Path) -> None:
        for index in range(0x60, 0x80):
            (tmp_path / str(index)).symlink_to("/etc/passwd")
        with pytest.raises(IdentityError, match="Too many levels of symbolic links"):
            IdentityRange(locks=tmp_path)


def test_without_privilege_the_only_id_is_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    identities = open_identities()
    assert isinstance(identities, SoleIdentity)
    assert not identities.distinct
    taken = identities.slice()
    assert (taken.base, taken.count, taken.acquire(), taken.acquire()) == (1234, 1, 0, 0)
    assert taken.host_id(0) == 1234
    taken.release(0)
    taken.release(0)
    with pytest.raises(ValueError, match="not in use"):
        taken.release(0)
    identities.give_back(taken)
    identities.close()


def test_without_privilege_a_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(IdentityError, match="only root"):
        IdentityRange(locks=tmp_path)
