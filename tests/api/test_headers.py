"""Names in headers and paths: each has one spelling, and comes back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.api.headers import (
    decode_path,
    decode_tenant,
    encode_path,
    encode_tenant,
    is_idempotency_key,
    is_identifier,
)

pytestmark = pytest.mark.plain_user


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128))
def test_a_tenant_makes_a_round_trip(name: str) -> None:
    """In ASCII that no header has to escape."""
    spelled = encode_tenant(name)
    assert spelled.isascii()
    assert spelled.isprintable()
    assert decode_tenant(spelled) == name


@pytest.mark.parametrize("value", ["", "a b", "%61", "%zz", "%ff", "é", "a%2fb", "%C3%A9%", "a/b"])
def test_another_spelling_of_a_tenant_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="percent-encod"):
        decode_tenant(value)


@given(st.binary(max_size=64).map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_a_path_makes_a_round_trip(path: str) -> None:
    """Whatever its bytes are."""
    spelled = encode_path(path)
    assert spelled.isascii()
    assert not set(spelled) & set("?#% \n") - {"%"}
    assert decode_path(spelled.encode()) == path


@pytest.mark.parametrize("text", ["", "..", "-a", "_a", "a/b", "a b", "a\n", "a" * 65, "é", "a.b"])
def test_what_is_no_identifier(text: str) -> None:
    assert not is_identifier(text)


def test_what_is_one() -> None:
    assert is_identifier("e-01J_x")
    assert is_identifier("a" * 64)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a", True),
        ("~!" * 64, True),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("a" * 129, False),
    ],
)
def test_idempotency_keys(text: str, good: bool) -> None:
    assert is_idempotency_key(text) is good
