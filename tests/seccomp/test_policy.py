"""The policy, the numbers and the generated files fit together."""

import subprocess
import sys
from pathlib import Path

import pytest

from stockade.executor.namespace.native.seccomp import generate, policy

NUMBERS = generate.read_numbers()
GENERATE = Path(generate.__file__)


def named() -> list[str]:
    return [
        call
        for calls in (
            *policy.ALLOWED.values(),
            *(denied.calls for denied in policy.DENIED),
            *(rule.calls for rule in policy.RULES),
        )
        for call in calls.split()
    ]


def test_the_headers_are_what_the_policy_says() -> None:
    check = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, check=False)
    assert (check.returncode, check.stderr) == (0, b"")


def test_check_fails_on_a_stale_header(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "header_path", lambda _: tmp_path / "seccomp.h")
    assert generate.main(["--check"]) == 1
    (tmp_path / "seccomp.h").write_text("static const struct sock_filter seccomp_filter[] = {};")
    assert generate.main(["--check"]) == 1


def test_no_call_is_named_twice() -> None:
    assert sorted(named()) == sorted(set(named()))


@pytest.mark.parametrize("architecture", policy.ARCHITECTURES, ids=lambda each: each.name)
def test_the_numbers_cover_the_policy(architecture: policy.Architecture) -> None:
    absent = architecture.absent.split()
    assert sorted(NUMBERS[architecture.name]) == sorted(set(named()) - set(absent))
    assert set(absent) <= set(named())


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_stands_twice(name: str) -> None:
    assert len(set(NUMBERS[name].values())) == len(NUMBERS[name])


def test_new_calls_have_one_number_everywhere() -> None:
    """From 424 on the kernel numbers its calls alike on all architectures."""
    new = {call: number for call, number in NUMBERS["x86_64"].items() if number >= 424}
    assert new == {call: nr for call, nr in NUMBERS["aarch64"].items() if nr >= 424}
    assert sorted(new.values()) == list(range(424, 472))


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_are_those_of_the_kernel_headers(name: str) -> None:
    header = generate.HEADERS[name]
    if not header.exists():
        pytest.skip(f"{header} is not here")
    known = NUMBERS[name]
    found = dict(generate.header_numbers(header.read_text()))
    assert len(found) > 300
    # A header newer than our numbers is no fault: its calls are ENOSYS until reviewed.
    assert {call: known.get(call, number) for call, number in found.items()} == found


def test_every_refusal_names_its_threat() -> None:
    for denied in policy.DENIED:
        assert len(denied.threat) > 10, denied.calls
        assert denied.answer in (policy.EPERM, policy.ENOSYS)
    for rule in policy.RULES:
        assert rule.reason, rule.calls


def test_a_call_that_nobody_reviewed_stops_the_build() -> None:
    x86_64 = policy.ARCHITECTURES[0]
    with pytest.raises(generate.PolicyError, match="not in the policy: brand_new"):
        generate.compile_policy(x86_64, {**NUMBERS["x86_64"], "brand_new": 472})


def test_a_call_without_a_number_stops_the_build() -> None:
    numbers = dict(NUMBERS["aarch64"])
    del numbers["mount"]
    with pytest.raises(generate.PolicyError, match="in no table: mount"):
        generate.compile_policy(policy.ARCHITECTURES[1], numbers)


def test_a_refresh_adds_and_never_changes(tmp_path: Path) -> None:
    header = tmp_path / "unistd.h"
    header.write_text("#define __NR_read 0\n#define __NR_new 472\n")
    headers = {"x86_64": header, "aarch64": tmp_path / "absent.h"}
    known = {"x86_64": {"late": 471, "read": 0}, "aarch64": {"read": 63}}
    assert generate.refreshed(known, headers) == {
        "x86_64": {"read": 0, "late": 471, "new": 472},
        "aarch64": {"read": 63},
    }
    header.write_text("#define __NR_read 1\n")
    with pytest.raises(generate.PolicyError, match="read is 1, not 0"):
        generate.refreshed(known, headers)


def test_the_generic_header_is_read_as_a_64_bit_kernel_reads_it() -> None:
    text = """
#define __NR3264_fcntl 25
#define __NR_sync_file_range2 84
#define __NR_sync_file_range 84
#define __NR_clock_gettime64 403
#define __NR_syscalls 451
#define __NR_fcntl __NR3264_fcntl
#define __NR_fcntl64 __NR3264_fcntl
"""
    assert dict(generate.header_numbers(text)) == {"fcntl": 25, "sync_file_range": 84}
