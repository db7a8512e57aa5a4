"""Where a service may be: TLS, or this machine."""

import pytest

from stockade.client.address import Address, parse
from stockade.port import InvalidRequest

pytestmark = pytest.mark.plain_user


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://stockade.example", Address("https://stockade.example")),
        ("https://stockade.example:8443/prefix/", Address("https://stockade.example:8443/prefix")),
        ("http://127.0.0.1:80", Address("http://127.0.0.1:80")),
        ("http://127.3.2.1", Address("http://127.3.2.1")),
        ("http://[::1]:80", Address("http://[::1]:80")),
        ("http://localhost:80", Address("http://localhost:80")),
        ("unix:/run/s.sock", Address("http://localhost", "/run/s.sock")),
        ("unix:///run/s.sock", Address("http://localhost", "/run/s.sock")),
    ],
)
def test_what_may_be_called(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "http://stockade.example",
        "http://10.0.0.1",
        "http://0.0.0.0:80",
        "http://[::]:80",
        "http://127.1",
        "http://2130706433",
        "http://localhost.example",
        "http://localhost.",
        "http://[::ffff:127.0.0.1]",
        "http://169.254.169.254",
    ],
)
def test_plain_http_off_this_machine_is_refused(url: str) -> None:
    """The key would be there for the network to read."""
    with pytest.raises(InvalidRequest, match=r"use https://") as error:
        parse(url)
    assert error.value.field == "url"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "stockade.example",
        "ftp://x",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://x y",
        "https://x\r\nHost: y",
        "https://ümlaut",
        "https://x:99999",
        "https://x:0",
        "https://x?a",
        "https://x#a",
        "https://x?",
        "unix:",
        "unix:relative",
        "unix:/" + "a" * 107,
        "unix:/a\0b",
        "unix://host/path",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse(url)
    assert error.value.field == "url"
    assert str(error.value).isprintable()


def test_a_password_in_it_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as error:
        parse("https://user:hunter2@x")
    assert "hunter2" not in str(error.value)
