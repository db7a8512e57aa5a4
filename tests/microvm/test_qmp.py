"""What a hostile QEMU may say, and what comes of it."""

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.executor.microvm.qmp import (
    LARGEST_LINE,
    MOST_BYTES,
    MOST_PENDING,
    Done,
    Event,
    Failed,
    Greeting,
    Qmp,
    QmpViolation,
)

GREETING = {
    "QMP": {
        "version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "Debian 1"},
        "capabilities": ["oob"],
    }
}


def line(body: Any) -> bytes:
    """As QEMU writes it."""
    return json.dumps(body).encode() + b"\r\n"


def greeted(commands: int = 0) -> Qmp:
    """One that waits for so many answers."""
    qmp = Qmp()
    for _ in range(commands):
        qmp.command("cont", {})
    assert qmp.receive(line(GREETING)) == [Greeting("10.0.2 (Debian 1)")]
    return qmp


def test_a_command() -> None:
    qmp = Qmp()
    number, data = qmp.command("migrate", {"uri": "fd:s"})
    assert data.endswith(b"\n")
    assert json.loads(data) == {"execute": "migrate", "arguments": {"uri": "fd:s"}, "id": number}


def test_a_conversation() -> None:
    """Commands before the greeting; events between."""
    qmp = greeted(2)
    assert qmp.receive(
        line({"return": {"anything": [1]}, "id": 1})
        + line(
            {
                "event": "MIGRATION",
                "data": {"status": "completed"},
                "timestamp": {"seconds": 1, "microseconds": 2},
            }
        )
        + line({"error": {"class": "GenericError", "desc": "no\033[2J\nway"}, "id": 2})
        + line({"event": "RESUME", "timestamp": {}})
    ) == [
        Done(1),
        Event("MIGRATION", "completed"),
        Failed(2, "GenericError", "no [2J way"),
        Event("RESUME"),
    ]


@given(st.lists(st.integers(0, 400), max_size=20))
def test_however_it_is_split(cuts: list[int]) -> None:
    text = line(GREETING) + line({"return": {}, "id": 1}) + line({"event": "STOP"})
    whole = Qmp()
    whole.command("stop", {})
    expected = whole.receive(text)
    qmp = Qmp()
    qmp.command("stop", {})
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    heard = []
    for start, end in itertools.pairwise(places):
        heard += qmp.receive(text[start:end])
    assert heard == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"return": {}, "id": 2}, "out of turn"),
        ({"return": {}, "id": 3}, "no question"),
        ({"return": {}, "id": "1"}, "no question"),
        ({"return": {}, "id": True}, "no question"),
        ({"return": {}}, "no question"),
        ({"error": {"class": "GenericError", "desc": "no id"}}, "no question"),
        ({"id": 1}, "no known kind"),
        ({"return": {}, "error": {}, "id": 1}, "no known kind"),
        ({"return": {}, "id": 1, "more": 1}, "no known kind"),
        ({"error": {"class": "Other", "desc": "x"}, "id": 1}, "no known class"),
        ({"error": {"class": "GenericError"}, "id": 1}, "no known class"),
        ({"error": "x", "id": 1}, "no known class"),
        (GREETING, "no question"),
        ({"event": 1}, "without a name"),
        ({"event": ""}, "without a name"),
        ({"event": "X" * 65}, "without a name"),
        ({"event": "\u202e"}, "without a name"),
        ({"event": "STOP", "data": []}, "no object"),
        ({"event": "STOP", "more": 1}, "members that none has"),
        ([], "not an object"),
        (1, "not an object"),
    ],
)
def test_a_violation(body: object, reason: str) -> None:
    """And nothing that came after it is heard."""
    qmp = greeted(2)
    with pytest.raises(QmpViolation, match=reason):
        qmp.receive(line(body) + line({"event": "STOP"}))
    with pytest.raises(QmpViolation, match=reason):
        qmp.receive(line({"return": {}, "id": 1}))


@pytest.mark.parametrize(
    "body",
    [
        {"return": {}, "id": 1},
        {"event": "RESUME"},
        {"QMP": {}},
        {"QMP": {"version": {"qemu": {"major": 10, "minor": 0}, "package": ""}}},
        {"QMP": {"version": {"qemu": {"major": 10, "minor": 0, "micro": "2"}, "package": ""}}},
        {"QMP": {"version": {"qemu": {"major": True, "minor": 0, "micro": 2}, "package": ""}}},
        {"QMP": {"version": {"qemu": {"major": 10, "minor": 0, "micro": -2}, "package": ""}}},
    ],
)
def test_first_a_greeting(body: object) -> None:
    qmp = Qmp()
    qmp.command("cont", {})
    with pytest.raises(QmpViolation, match="no greeting"):
        qmp.receive(line(body))


def test_a_line_without_an_end_is_not_kept() -> None:
    qmp = greeted()
    with pytest.raises(QmpViolation, match=f"more than {LARGEST_LINE} bytes"):
        for _ in range(LARGEST_LINE // 1000 + 1):
            qmp.receive(b"x" * 1000)
    assert len(qmp._line) == 0


def test_it_may_not_talk_for_ever() -> None:
    qmp = greeted()
    with pytest.raises(QmpViolation, match=f"more than {MOST_BYTES} bytes in all"):
        while True:
            qmp.receive(line({"event": "STOP"}) * 100)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"id": ' + b"9" * 5_000 + b', "return": {}}',
        b'{"event": "STOP", "event": "RESUME"}',
        b'{"id": NaN, "return": {}}',
        b'{"event": "\xff"}',
        b"",
        b"null",
    ],
)
def test_json_that_would_cost_something(text: bytes) -> None:
    """It is refused before it is built."""
    with pytest.raises(QmpViolation) as refused:
        greeted(1).receive(text + b"\n")
    assert len(str(refused.value)) < 200


def test_commands_that_nobody_answers() -> None:
    qmp = greeted(MOST_PENDING)
    with pytest.raises(RuntimeError, match="unanswered"):
        qmp.command("cont", {})


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """Messages or a violation, and nothing else."""
    qmp = greeted(1)
    with contextlib.suppress(QmpViolation):
        qmp.receive(data + b"\n")
    assert repr(qmp).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["return", "error", "event", "id", "data", "class", "desc", "QMP", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(json_values, st.booleans())
def test_any_json(value: object, first: bool) -> None:
    qmp = Qmp() if first else greeted(1)
    with contextlib.suppress(QmpViolation):
        qmp.receive(line(value))
    assert repr(qmp).isprintable()
