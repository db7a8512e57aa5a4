"""What the client writes by hand is what the models of the API read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stockade.api.requests import (
    ExecutionRequestMessage,
    ProgramRequestMessage,
    SessionRequestMessage,
)
from stockade.client import messages
from stockade.port import (
    Command,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    PythonScript,
    PythonSource,
    SandboxRequest,
    TerminalSize,
    Tier,
    TrustLevel,
)

pytestmark = pytest.mark.plain_user

TEXT = st.binary(max_size=8).map(
    lambda data: data.replace(b"\0", b"x").decode("utf-8", "surrogateescape")
)
NAME = TEXT.map(lambda text: "n" + text.replace("/", "_"))
PROGRAM = st.one_of(
    st.builds(
        PythonSource,
        # Of a text with surrogates the bytes are meant.
        st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.binary()),
        st.lists(TEXT, max_size=2).map(tuple),
        st.booleans(),
    ),
    st.builds(
        PythonScript, NAME, st.binary(), st.lists(TEXT, max_size=2).map(tuple), st.booleans()
    ),
    st.builds(Command, st.lists(NAME, min_size=1, max_size=3).map(tuple)),
)
REQUEST = st.builds(
    ExecutionRequest,
    PROGRAM,
    environment=st.dictionaries(NAME.map(lambda name: name.replace("=", "_")), TEXT, max_size=2),
    files=st.dictionaries(NAME, st.binary(max_size=9), max_size=2),
    artefacts=st.lists(NAME, max_size=2).map(tuple),
    working_directory=st.one_of(st.just(""), NAME),
    terminal=st.one_of(
        st.none(), st.builds(TerminalSize, st.integers(1, 65_535), st.integers(1, 65_535))
    ),
)
SANDBOX = st.builds(
    SandboxRequest,
    limits=st.builds(
        Limits,
        wall_seconds=st.floats(0.01, 86_400),
        processes=st.integers(1, 100),
        record_bytes=st.integers(0, 10**6),
    ),
    trust=st.sampled_from([TrustLevel.REVIEWED, TrustLevel.UNTESTED]),
    tier=st.one_of(st.none(), st.sampled_from(Tier)),
)


def as_sent(request: ExecutionRequest) -> ExecutionRequest:
    """Source in text is sent as its bytes or text alike; arguments come back as tuples."""
    program = request.program
    if isinstance(program, PythonSource) and isinstance(program.source, str):
        program = PythonSource(program.source.encode(), program.arguments, program.fresh)
    return ExecutionRequest(
        program,
        environment=request.environment,
        files=request.files,
        artefacts=request.artefacts,
        working_directory=request.working_directory,
        terminal=request.terminal,
    )


@given(REQUEST, SANDBOX, st.one_of(st.none(), st.binary(max_size=9)))
def test_a_request_is_read_as_it_was_meant(
    request: ExecutionRequest, sandbox: SandboxRequest, stdin: bytes | None
) -> None:
    """All of it, names that are no text too."""
    read = ExecutionRequestMessage.model_validate_json(messages.execution(request, sandbox, stdin))
    assert read.to_port() == as_sent(request)
    assert read.sandbox.to_port("local") == sandbox
    assert read.stdin == stdin
    alone = ProgramRequestMessage.model_validate_json(messages.program(request, stdin))
    assert (alone.to_port(), alone.stdin) == (as_sent(request), stdin)


@given(SANDBOX, st.floats(0.1, 1e6), st.one_of(st.none(), st.just("w")))
def test_a_session_is_read_as_it_was_meant(
    sandbox: SandboxRequest, lease: float, workspace: str | None
) -> None:
    read = SessionRequestMessage.model_validate_json(messages.session(sandbox, lease, workspace))
    assert read.sandbox.to_port("local") == sandbox
    assert (read.lease_seconds, read.workspace) == (lease, workspace)


@pytest.mark.parametrize(
    "data",
    [bytes(2**20), b"\n" * 2**20, b"\x1b[0m" * 2**18, "\u4e16\u754c".encode() * 2**17],
    ids=["zeros", "lines", "colours", "Chinese"],
)
def test_no_content_grows_beyond_base64(data: bytes) -> None:
    """What a gateway takes, its executor must not refuse as too large."""
    request = ExecutionRequest(PythonSource(data), files={"file": data})
    written = messages.execution(request, SandboxRequest(), data)
    read = ExecutionRequestMessage.model_validate_json(written)
    assert read.to_port() == request
    assert read.stdin == data
    assert len(written) < 3 * len(data) * 4 / 3 + 1000


def test_a_name_that_comes_twice_is_refused() -> None:
    """In a list that can be said, and one of them would be lost."""
    twice = [{"name": "a", "content": "1"}, {"name": "a", "content": "2"}]
    message = {"program": {"kind": "command", "argv": ["true"]}, "files": twice}
    read = ProgramRequestMessage.model_validate_json(json.dumps(message))
    with pytest.raises(InvalidRequest, match="named twice"):
        read.to_port()
    with pytest.raises(ValidationError):
        ProgramRequestMessage.model_validate_json(
            json.dumps({**message, "files": [{"name": "a", "content": "1", "mode": 7}]})
        )
