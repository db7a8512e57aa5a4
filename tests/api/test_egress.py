"""What is asked of the network, and what came of it, as JSON: nothing is lost, nothing is believed."""

import pytest
from pydantic import ValidationError

from stockade.api.frames import FrameDecoder, FrameType, FrameViolation, encode
from stockade.api.records import DetachedRecord, EgressEventMessage, EgressUseMessage
from stockade.api.requests import EgressMessage, ExecutionRequestMessage, SandboxMessage
from stockade.client import messages
from stockade.port import (
    NO_EGRESS,
    CredentialUse,
    DeniedDestination,
    EgressEvent,
    EgressPolicy,
    EgressRule,
    EgressUse,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    PythonSource,
    SandboxRequest,
)

RULES = (
    "api.example.com:443",
    "*.example.com:8443",
    "http://a.example:80",
    "tcp://db.example:5432",
    "GET,HEAD https://api.example.com:443/v1/",
    "10.1.2.3:8080",
    "10.1.0.0/16:443",
    "[2001:db8::1]:443",
    "[2001:db8::]/32:443",
    "wiki.internal:443 in 10.1.0.0/16,10.2.0.0/16",
)
POLICY = EgressPolicy(
    tuple(map(EgressRule.parse, RULES)),
    credentials=("a", "b"),
    watched=True,
    connections=7,
    total_connections=70,
    sent_bytes=1,
    received_bytes=2,
    bytes_per_second=4096,
    seconds=1.5,
)
USE = EgressUse(
    connections=3,
    sent_bytes=4,
    received_bytes=2**40,
    denied=(DeniedDestination("a.example:443", "no-rule", "no rule allows it", 5),),
    denied_others=6,
    credentials=(CredentialUse("a", "b.example:443", 2),),
)


@pytest.mark.parametrize("policy", [POLICY, NO_EGRESS, EgressPolicy(watched=True)])
def test_a_policy_comes_back_as_it_was(policy: EgressPolicy) -> None:
    request = SandboxRequest(egress=policy)
    asked = ExecutionRequest(PythonSource("1"))
    by_model = SandboxMessage.of(request).model_dump_json()
    assert SandboxMessage.model_validate_json(by_model).to_port("local") == request
    by_client = ExecutionRequestMessage.model_validate_json(
        messages.execution(asked, request, b"", watch_egress=True)
    )
    assert by_client.sandbox.to_port("local") == request
    assert by_client.watch_egress


@pytest.mark.parametrize(
    "egress",
    [
        '{"rules": ["http:/x"]}',
        '{"rules": ["a.example:0"]}',
        '{"connections": 257}',
        '{"connections": 0}',
        '{"seconds": 0}',
        '{"credentials": ["UPPER"]}',
        '{"bytes_per_second": 1}',
    ],
)
def test_what_the_port_refuses_is_refused_in_its_words(egress: str) -> None:
    with pytest.raises(InvalidRequest):
        EgressMessage.model_validate_json(egress).to_port()


@pytest.mark.parametrize(
    "egress",
    [
        '{"rule": []}',
        '{"rules": "a.example"}',
        '{"rules": [7]}',
        '{"watched": "yes"}',
        '{"connections": 1.5}',
        '{"rules": ' + str(["a.example"] * 65).replace("'", '"') + "}",
        '{"rules": ["' + "a" * 5000 + '"]}',
    ],
)
def test_what_is_no_policy_is_none(egress: str) -> None:
    with pytest.raises(ValidationError):
        EgressMessage.model_validate_json(egress)


def test_a_record_says_what_was_done_on_the_network() -> None:
    ran = Execution(Outcome.EGRESS_DENIED, "denied", exit_code=1, egress=USE)
    detached = DetachedRecord.model_validate_json(DetachedRecord.of(ran).model_dump_json())
    assert detached.to_port([b""] * 5).egress == USE
    quiet = DetachedRecord.of(Execution(Outcome.OK, "ok", exit_code=0))
    assert quiet.to_port([b""] * 5).egress is None


@pytest.mark.parametrize(
    "use",
    [
        '{"connections": -1}',
        '{"sent_bytes": 1e400}',
        '{"denied": [{"destination": "' + "a" * 301 + '", "reason": "r", "detail": ""}]}',
        '{"denied": [' + ",".join(['{"destination":"a","reason":"r","detail":""}'] * 65) + "]}",
    ],
)
def test_what_no_record_can_say_is_refused(use: str) -> None:
    with pytest.raises(ValidationError):
        EgressUseMessage.model_validate_json(use)


def test_an_event_is_a_small_frame() -> None:
    event = EgressEvent("denied", "a.example:443", "no-rule", "no rule allows it", 1, 2)
    payload = EgressEventMessage.of(event).model_dump_json().encode()
    (frame,) = FrameDecoder().feed(encode(FrameType.EGRESS, payload))
    assert EgressEventMessage.model_validate_json(frame.payload).to_port() == event
    with pytest.raises(FrameViolation):
        list(FrameDecoder().feed(b"\x09" + (32 * 1024 + 1).to_bytes(4, "big")))
