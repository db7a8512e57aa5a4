"""``stockade run``: exit codes, the line that says why, and the record as JSON."""

import base64
import json
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stockade.cli import exit_codes
from stockade.cli.host import Host
from stockade.cli.main import cli
from stockade.port import (
    Execution,
    InvalidRequest,
    LimitHit,
    Limits,
    Outcome,
    SandboxLost,
    Tier,
    Unavailable,
    Usage,
)
from stockade.port.fake import FakeEnvironment, Scripted

Stockade = Callable[..., Any]

OUTCOMES = [
    (Scripted(), 0, ""),
    (Scripted(exit_code=3), 3, "the program exited with 3"),
    (Scripted(exit_code=255), 255, "the program exited with 255"),
    (
        Scripted(Outcome.SIGNAL, signal=11),
        139,
        "the program was ended by SIGSEGV (signal 11)",
    ),
    (
        Scripted(Outcome.SIGNAL, signal=40),
        168,
        "the program was ended by signal 40",
    ),
    (
        Scripted(Outcome.WALL_CLOCK, detail="time was up.", limit=LimitHit("wall_seconds", 30, 30)),
        124,
        "wall_clock: time was up; --timeout raises it",
    ),
    (
        Scripted(Outcome.CPU_TIME, detail="x"),
        123,
        "cpu_time: x; --cpu raises it",
    ),
    (
        Scripted(Outcome.MEMORY, detail="x", limit=LimitHit("memory_bytes", 1 << 29, 1 << 28)),
        122,
        "memory: x; --memory raises it",
    ),
    (
        Scripted(Outcome.PROCESSES, detail="x"),
        121,
        "processes: x; --processes raises it",
    ),
    (
        Scripted(Outcome.OPEN_FILES, detail="x"),
        120,
        "open_files: x; --open-files raises it",
    ),
    (Scripted(Outcome.DISK, detail="x"), 119, "disk: x; --disk raises it"),
    (Scripted(Outcome.INODES, detail="x"), 118, "inodes: x; --inodes raises it"),
    (
        Scripted(Outcome.OUTPUT, detail="x"),
        117,
        "output: x; --output-limit raises it",
    ),
    (
        Scripted(Outcome.OUTPUT, detail="x", limit=LimitHit("result_bytes", 1 << 20, None)),
        117,
        "output: x; --result-limit raises it",
    ),
    (Scripted(Outcome.EGRESS_DENIED, detail="10.0.0.1"), 116, "egress_denied: 10.0.0.1"),
    (Scripted(Outcome.LOST, detail="the sandbox died"), 115, "lost: the sandbox died"),
    (Scripted(Outcome.CANCELLED, detail="x"), 130, "cancelled: x"),
    (Scripted(Outcome.INVALID, detail="no such folder"), 64, "invalid: no such folder"),
    (
        Scripted(Outcome.INVALID, detail="no such program: 'node'"),
        127,
        "no such program: 'node'",
    ),
    (
        Scripted(Outcome.UNAVAILABLE, detail="no user namespaces"),
        69,
        "unavailable: no user namespaces; `stockade doctor` says what this machine can start",
    ),
]


@pytest.mark.parametrize(
    ("scripted", "code", "said"), OUTCOMES, ids=[f"{code}" for _, code, _ in OUTCOMES]
)
def test_an_outcome_has_a_code_and_one_line(
    stockade: Stockade, scripted: Scripted, code: int, said: str
) -> None:
    ended = stockade("run", "-c", "", script=[scripted])
    assert ended.code == code
    assert ended.said == (f"stockade: {said}\n" if said else "")


def test_every_outcome_is_covered() -> None:
    covered = {scripted.outcome for scripted, _, _ in OUTCOMES} | {Outcome.OK, Outcome.NONZERO_EXIT}
    assert covered >= set(Outcome)
    assert set(exit_codes.OF_OUTCOME) | {"nonzero_exit", "signal"} == set(Outcome)
    assert {row.outcome for row in exit_codes.TABLE} - {""} == set(Outcome)
    assert set(exit_codes.OPTION_OF_LIMIT) == {field.name for field in fields(Limits)}


def test_the_table_and_the_codes_agree() -> None:
    for row in exit_codes.TABLE:
        if row.outcome in exit_codes.OF_OUTCOME and row.code != "127":
            assert row.code == str(exit_codes.OF_OUTCOME[row.outcome])
        if row.option:
            assert (
                row.option == exit_codes.OPTION_OF_LIMIT[exit_codes.LIMIT_OF_OUTCOME[row.outcome]]
            )


def test_a_guest_cannot_steer_the_terminal_through_our_line(stockade: Stockade) -> None:
    detail = "\x1b[31m\r\nstockade: fine\u202e\u2028\x9b\udcff" + "x" * 10_000
    ended = stockade("run", "-c", "", script=[Scripted(Outcome.LOST, detail=detail)])
    assert ended.said.startswith(
        r"stockade: lost: \x1b[31m\r\nstockade: fine\u202e\u2028\x9b\udcffxxx"
    )
    assert ended.said.count("\n") == 1
    assert len(ended.said) < 2200


def test_verbose_says_where_how_long_and_what_was_used(stockade: Stockade) -> None:
    usage = Usage(1.5, 0.25, 3 << 20, 4, 5, 6, 7)
    ended = stockade("run", "-v", "-c", "", script=[Scripted(usage=usage)])
    where, times, used = ended.said.splitlines()
    assert where == "stockade: outcome ok, tier microvm"
    assert times.startswith("stockade: waited 0 s, set up 0 s, ran ")
    assert used == (
        "stockade: used: wall 1.5 s, cpu 250 ms, memory 3M, disk 5, processes 4, inodes 6, written 7"
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Unavailable("no cgroups"), 69, "unavailable: no cgroups; `stockade doctor`"),
        (
            Unavailable("no tier", {Tier.GVISOR: "no runsc", Tier.NAMESPACE: "no seccomp"}),
            69,
            "unavailable: no tier that may run untested code can be started here: "
            "gvisor (no runsc), namespace (no seccomp); `stockade doctor`",
        ),
        (SandboxLost("the wire broke"), 115, "lost: the wire broke"),
        (InvalidRequest("limits.memory_bytes", "too much"), 64, "--memory: too much"),
        (OSError(28, "No space left on device"), 74, "No space left on device"),
        (ZeroDivisionError("a bug"), 70, "a fault of Stockade itself"),
    ],
)
def test_what_the_executor_raises(error: Exception, code: int, said: str) -> None:
    def refuse(_: Collection[Tier]) -> FakeEnvironment:
        raise error

    result = CliRunner().invoke(cli, ["run", "-c", ""], obj=Host(refuse))
    assert result.exit_code == code
    assert said in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (Unavailable("no cgroups"), 69, "unavailable"),
        (SandboxLost("the wire broke"), 115, "lost"),
    ],
)
def test_json_without_a_sandbox(tmp_path: Path, error: Exception, code: int, outcome: str) -> None:
    """Who reads the object learns of these outcomes as of all others."""

    def refuse(_: Collection[Tier]) -> FakeEnvironment:
        raise error

    path = tmp_path / "out"
    with path.open("wb") as out:
        host = Host(refuse, stdout=out.fileno())
        result = CliRunner().invoke(cli, ["run", "--json", "-c", ""], obj=host)
    assert result.exit_code == code
    data = json.loads(path.read_bytes())
    assert (data["outcome"], data["command_exit_code"]) == (outcome, code)
    assert (data["detail"], data["exit_code"], data["tier"]) == (str(error), None, None)
    assert f"stockade: {outcome}: {error}" in result.stderr


# --- the record as JSON ---


def record(ended: Any) -> Any:
    assert ended.out.endswith(b"\n")
    assert ended.out.isascii()
    assert ended.out.count(b"\n") == 1
    return json.loads(ended.out)


def test_json_has_every_field_of_the_record(stockade: Stockade) -> None:
    script = [Scripted(stdout=b"1\n", stderr=b"\xff", artefacts={"a": b"x"}, result=b"{}")]
    ended = stockade("run", "--json", "--artefact", "a", "--artefact", "b", "-c", "", script=script)
    assert (ended.code, ended.err) == (66, b"")
    data = record(ended)
    assert set(data) == {field.name for field in fields(Execution)} | {"command_exit_code"}
    assert {
        name: data[name]
        for name in (
            "outcome", "exit_code", "signal", "limit", "stdout", "stderr", "result", "artefacts",
            "missing_artefacts", "tier", "image",
        )
    } == {
        "outcome": "ok",
        "exit_code": 0,
        "signal": None,
        "limit": None,
        "stdout": {"head": {"text": "1\n"}, "tail": {"text": ""}, "total": 2, "dropped": 0},
        "stderr": {"head": {"base64": "/w=="}, "tail": {"text": ""}, "total": 1, "dropped": 0},
        "result": {"text": "{}"},
        "artefacts": [
            {
                "name": "a",
                "digest": "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
                "data": {"text": "x"},
            }
        ],
        "missing_artefacts": [{"name": "b", "reason": "no such file"}],
        "tier": "microvm",
        "image": None,
    }  # fmt: skip
    assert set(data["usage"]) == {field.name for field in fields(Usage)}
    assert data["enforcement"]["memory_bytes"] == "enforced"


def test_json_of_a_limit_that_was_hit(stockade: Stockade) -> None:
    script = [Scripted(Outcome.MEMORY, stdout=bytes(range(256)), detail="\x1b\u2028")]
    ended = stockade("run", "--json", "--record-limit", "10", "-c", "", script=script)
    data = record(ended)
    assert ended.code == data["command_exit_code"] == 122
    assert data["limit"] == {"name": "memory_bytes", "ceiling": 1 << 29, "used": None}
    assert data["stdout"]["head"] == {"text": "\0\1\2\3\4"}
    assert base64.b64decode(data["stdout"]["tail"]["base64"]) == b"\xfb\xfc\xfd\xfe\xff"
    assert (data["stdout"]["total"], data["stdout"]["dropped"]) == (256, 246)
    assert ended.said.startswith("stockade: memory")
