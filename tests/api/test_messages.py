"""What goes through JSON and frames comes out as it went in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.api.frames import (
    FrameDecoder,
    FrameType,
    FrameViolation,
    RecordAssembler,
    encode,
    encode_record,
)
from stockade.api.problems import Code, Problem
from stockade.api.records import DetachedRecord, RecordMessage
from stockade.api.requests import ExecutionRequestMessage, SandboxMessage, request_fields
from stockade.port import (
    Artefact,
    Attestation,
    Captured,
    Command,
    Enforcement,
    Execution,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    LimitHit,
    MissingArtefact,
    Outcome,
    Program,
    PythonScript,
    PythonSource,
    Refused,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    TerminalSize,
    Tier,
    Timings,
    Unavailable,
    Usage,
)

_names = (
    st.binary(min_size=1, max_size=8)
    .map(lambda raw: raw.replace(b"\0", b"").replace(b"/", b"").decode("utf-8", "surrogateescape"))
    .filter(lambda name: name not in ("", ".", ".."))
)
_blobs = st.binary(max_size=64)
_captured = st.builds(
    lambda head, tail, more: Captured(head, tail, len(head) + len(tail) + more),
    _blobs,
    _blobs,
    st.integers(0, 99),
)
_records = st.builds(
    Execution,
    outcome=st.sampled_from(Outcome),
    detail=st.text(max_size=20),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    limit=st.none() | st.builds(LimitHit, st.just("wall_seconds"), st.just(1.0), st.none()),
    stdout=_captured,
    stderr=_captured,
    result=st.none() | _blobs,
    artefacts=st.lists(st.builds(Artefact, _names, _blobs, st.just("sha256:0")), max_size=3).map(
        tuple
    ),
    missing_artefacts=st.lists(
        st.builds(MissingArtefact, _names, st.text(max_size=9)), max_size=2
    ).map(tuple),
    usage=st.builds(Usage, wall_seconds=st.floats(0, 9), peak_processes=st.none() | st.integers(0)),
    timings=st.builds(Timings, waited=st.floats(0, 9)),
    tier=st.none() | st.sampled_from(Tier),
    image=st.none() | st.just("sha256:1"),
    enforcement=st.just({"cpus": Enforcement.PER_PROCESS}),
    attestation=st.none()
    | st.just(
        Attestation(
            image="sha256:1",
            kernel="sha256:2",
            initramfs="sha256:3",
            disk="sha256:4",
            kernel_version="6.12",
            vmm="QEMU",
            vmm_version="10.0.2",
            accelerator="kvm",
            command_line=("-m", "1G"),
            command_line_digest="sha256:5",
            vmm_files={"/usr/bin/qemu": "sha256:6"},
            firmware={"bios": "sha256:7"},
        )
    ),
)
_programs: st.SearchStrategy[Program] = (
    st.builds(PythonSource, _blobs, st.lists(_names, max_size=2).map(tuple), st.booleans())
    | st.builds(PythonScript, _names, _blobs)
    | st.builds(Command, st.lists(_names, min_size=1, max_size=3).map(tuple))
)


@given(_programs, _blobs, st.booleans())
def test_a_request_comes_out_as_it_went_in(program: Program, stdin: bytes, terminal: bool) -> None:
    request = ExecutionRequest(
        program,
        environment={"A": "b\udcff"},
        files={"a/b": stdin},
        artefacts=("x\udc80",),
        terminal=TerminalSize(3, 4) if terminal else None,
    )
    sandbox = SandboxRequest(tier=Tier.GVISOR)
    message = ExecutionRequestMessage(
        **request_fields(request, stdin), sandbox=SandboxMessage.of(sandbox)
    )
    again = ExecutionRequestMessage.model_validate_json(message.model_dump_json())
    assert again.to_port() == request
    assert again.stdin == stdin
    assert again.sandbox.to_port("local") == sandbox


@given(_records, st.integers(1, 50))
def test_a_record_in_frames_comes_out_as_it_went_in(record: Execution, cut: int) -> None:
    stream = b"".join(encode_record(record))
    decoder = FrameDecoder()
    frames = [
        frame
        for start in range(0, len(stream), cut)
        for frame in decoder.feed(stream[start : start + cut])
    ]
    assert frames[0].type is FrameType.RECORD
    assert frames[-1].type is FrameType.END
    assembler = RecordAssembler(DetachedRecord.model_validate_json(frames[0].payload), 10_000)
    for frame in frames[1:-1]:
        assembler.add(frame.payload)
    assert assembler.finish() == record


@given(_records)
def test_a_record_is_json(record: Execution) -> None:
    message = RecordMessage.of(record)
    assert RecordMessage.model_validate_json(message.model_dump_json()) == message


@given(st.binary(max_size=64))
def test_hostile_frames_do_no_more_than_be_refused(data: bytes) -> None:
    try:
        list(FrameDecoder().feed(data))
    except FrameViolation:
        pass


def test_a_length_is_judged_before_its_bytes_come() -> None:
    header = bytes([FrameType.STDOUT]) + (2**31).to_bytes(4, "big")
    with pytest.raises(FrameViolation, match="2147483648 bytes"):
        list(FrameDecoder().feed(header))


def test_a_record_that_announces_too_much_is_refused() -> None:
    detached = DetachedRecord.of(Execution(Outcome.OK, "", stdout=Captured(b"x" * 99, b"", 99)))
    with pytest.raises(FrameViolation, match="99 bytes; 98 are the most"):
        RecordAssembler(detached, 98)


def test_an_incomplete_record_is_none() -> None:
    assembler = RecordAssembler(DetachedRecord.of(Execution(Outcome.OK, "", result=b"abc")), 98)
    assembler.add(b"ab")
    with pytest.raises(FrameViolation, match="incomplete"):
        assembler.finish()


def test_a_frame_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(FrameViolation, match="unknown type 77"):
        list(FrameDecoder().feed(b"\x4d\0\0\0\0"))


def test_frames_before_a_bad_one_are_kept() -> None:
    frames = []
    with pytest.raises(FrameViolation):
        for frame in FrameDecoder().feed(encode(FrameType.STDOUT, b"a") + b"\xff\0\0\0\0"):
            frames.append(frame)  # noqa: PERF402 - what was seen before the error counts
    assert [frame.payload for frame in frames] == [b"a"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("limits.cpus", "too many"),
        Unavailable("nothing", {Tier.GVISOR: "no runsc"}),
        SandboxLost("it died"),
        FileRefused("a/b", "is a folder"),
        Refused(Code.BUDGET_EXHAUSTED, "later", 3.5),
        Refused(Code.NOT_FOUND, "no such thing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_ports_survives_the_way(error: StockadeError) -> None:
    problem = Problem.model_validate_json(Problem.of(error).body())
    again = problem.to_error()
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="tenant"):
        ExecutionRequestMessage.model_validate(
            {"program": {"kind": "python", "source": "1"}, "tenant": "other"}
        )


def test_a_record_of_a_later_version_is_read() -> None:
    """It may say more: a reader keeps what it knows."""
    said = json.loads(DetachedRecord.of(Execution(Outcome.OK, "fine")).model_dump_json())
    said["mood"] = "good"
    said["usage"]["joules"] = 3
    said["stdout"]["colour"] = "red"
    record = DetachedRecord.model_validate_json(json.dumps(said))
    assert record.to_port([b""] * 5) == Execution(Outcome.OK, "fine")
