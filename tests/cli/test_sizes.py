"""Sizes and durations: what people write is read exactly, and nonsense is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.cli.sizes import (
    format_duration,
    format_size,
    parse_count,
    parse_duration,
    parse_number,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("1b", 1),
        ("64k", 64 << 10),
        ("64K", 64 << 10),
        ("64kB", 64 << 10),
        ("64KiB", 64 << 10),
        ("64 kib", 64 << 10),
        ("512M", 512 << 20),
        ("1G", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("1.3k", 1331),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("2m", 120),
        ("2min", 120),
        ("1h", 3600),
        ("7", 7),
        ("1.5s", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


NONSENSE = [
    "", " ", "-1", "-1M", "+1", "nan", "inf", "infinity", "1e3", "0x10", "1_000", "1,5G", ".5", "1.",
    "1..5", "M", "1MM", "1Mi1", "1 2", "1X", "\u0661", "\u00b2", "1" * 19, "0", "0.0", "0M", "0s",
]  # fmt: skip


@pytest.mark.parametrize("text", NONSENSE)
@pytest.mark.parametrize("parse", [parse_size, parse_duration, parse_count, parse_number])
def test_nonsense_is_refused_with_a_sentence(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        parse(text)


def test_a_unit_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'s' is no unit"):
        parse_size("30s")
    with pytest.raises(ValueError, match="'k' is no unit"):
        parse_duration("30k")


def test_zero_only_where_it_means_something() -> None:
    assert parse_size("0", zero=True) == 0
    with pytest.raises(ValueError, match="more than 0"):
        parse_size("0M", zero=True)


@given(st.text(max_size=12))
def test_any_text_is_a_positive_number_or_a_value_error(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_count, parse_number):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert 0 < value < float("inf")


@given(st.integers(1, 10**15), st.sampled_from(["", "b", "k", "KiB", "M", "mb", "G", "GiB", "T"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    power = " kmgt".index(unit[0].lower()) if unit and unit != "b" else 0
    assert parse_size(f"{number}{unit}") == number * 1024**power


@given(st.integers(1, 1 << 50))
def test_a_formatted_size_reads_back_within_its_precision(size: int) -> None:
    again = parse_size(format_size(size))
    assert abs(again - size) <= size * 0.06
    if size % 1024 == 0 and size < 1 << 20:
        assert again == size


@given(st.integers(1, 10**9), st.integers(0, 999))
def test_fractions_of_durations_are_exact(whole: int, thousandths: int) -> None:
    assert parse_duration(f"{whole}.{thousandths:03}s") == (whole * 1000 + thousandths) / 1000


def test_durations_are_short_to_read() -> None:
    spelled = [format_duration(seconds) for seconds in (0, 0.0012, 0.5, 1.25, 30, 100, 86400)]
    assert spelled == ["0 s", "1.2 ms", "500 ms", "1.25 s", "30 s", "100 s", "86400 s"]
