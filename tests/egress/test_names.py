# ruff: noqa: RUF001  # look-alikes are the point
"""One spelling for each host, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.egress.names import BadHost, printable, read_authority, read_host

METADATA_SPELLINGS = (
    "2852039166",
    "0xA9FEA9FE",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "0xa9.0xfe.0xa9.0xfe",
    "169.254.169.254.",
    "169.254.169.0254",
    "①⑥⑨.②⑤④.①⑥⑨.②⑤④",
    "１６９.254.169.254",
    "169。254。169。254",
    "169.254.169.254%00.example.com",
    "169.254.169.254@example.com",
    "example.com@169.254.169.254",
    "[fe80::a9fe:a9fe%eth0]",
    "0x7f.1",
    "127.1",
    "0177.0.0.1",
    "017700000001",
    "2130706433",
    "0",
    "0x",
)


@pytest.mark.parametrize("spelled", METADATA_SPELLINGS)
def test_what_a_resolver_takes_for_a_number_is_refused(spelled: str) -> None:
    with pytest.raises(BadHost):
        read_host(spelled)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example.", "xn--bcher-kva.example"),
        ("exаmple.com", "xn--exmple-4nf.com"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[0:0:0:0:0:FFFF:169.254.169.254]", "::ffff:a9fe:a9fe"),
    ],
)
def test_one_spelling(spelled: str, name: str) -> None:
    assert read_host(spelled).name in (name, "::ffff:169.254.169.254")


@pytest.mark.parametrize(
    "spelled",
    [
        "",
        ".",
        "..",
        "example.com..",
        ".example.com",
        "a..b",
        "-a.example",
        "a-.example",
        "a" * 64 + ".example",
        ".".join(["a" * 63] * 4) + ".b",
        "example.com\0.evil.example",
        "example.com\r\nX: 1",
        "example.com ",
        "exam ple.com",
        "example%2ecom",
        "example。com",
        "example．com",
        "ex\u200bample.com",
        "ﬀ.example",
        "xn--a",
        "xn--.example",
        "xn--example-.com",
        "xn--BCHER-kva.example.xn--",
        "*.example.com",
        "example.com/x",
        "example.com#",
        "example.com?x",
        "example.com\\x",
        "[127.0.0.1]",
        "[::1",
        "::1]",
        "[::1]x",
        "[fe80::1%25eth0]",
        "user@example.com",
        "x" * 5000,
    ],
)
def test_no_spelling(spelled: str) -> None:
    with pytest.raises(BadHost):
        read_host(spelled)


@pytest.mark.parametrize(
    "spelled",
    ["example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:+80",
     "example.com:８０", "example.com:80:80", "user:x@example.com:80", "[::1]80", "::1:80"],
)  # fmt: skip
def test_no_authority(spelled: str) -> None:
    with pytest.raises(BadHost):
        read_authority(spelled)


@given(st.text(max_size=300))
def test_what_is_read_reads_as_itself(text: str) -> None:
    try:
        host = read_host(text)
    except BadHost:
        return
    assert read_host(host.name) == host
    assert host.name.isascii()
    assert host.name == host.name.lower()


@given(st.text())
def test_hostile_text_is_bounded_and_shows(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= 300
    assert all("!" <= each <= "~" for each in shown)
