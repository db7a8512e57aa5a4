"""Fields in errors have the names of the documentation."""

import pytest
from pydantic import ValidationError

from stockade.api.fields import spell
from stockade.api.requests import ExecutionRequestMessage


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (("header", "idempotency-key"), "Idempotency-Key"),
        (("header", "last-event-id"), "Last-Event-ID"),
        (("header", "x-new"), "x-new"),
        (("query", "limit"), "limit"),
        (("path", "id"), "id"),
        (("body", "program", "python", "fresh"), "program.fresh"),
        (("body", "terminal", "rows"), "terminal.rows"),
        (("body",), ""),
        (("program",), "program"),
        ((), ""),
    ],
)
def test_a_place_is_a_name(place: tuple[str, ...], name: str) -> None:
    assert spell(place) == name


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ('{"program": {"kind": "python", "source": 1}}', {"program.source"}),
        ('{"program": {"kind": "x"}}', {"program"}),
        ('{"program": {"kind": "python", "source": ""}, "environment": {"A": 1}}',
         {"environment", "environment.A"}),
        ('{"program": {"kind": "python", "source": ""}, "files": [{"name": "a"}]}',
         {"files", "files.0.content"}),
    ],
)  # fmt: skip
def test_no_form_of_ours_is_named(body: str, fields: set[str]) -> None:
    """``dict[str,function-before[...]]`` is nothing that a caller wrote."""
    with pytest.raises(ValidationError) as refused:
        ExecutionRequestMessage.model_validate_json(body)
    assert {spell(each["loc"]) for each in refused.value.errors()} == fields
