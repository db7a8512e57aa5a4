"""The first flight of TLS, also a damaged one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.kit import client_hello

from stockade.egress.client_hello import MAX_RECORDS, BadHello, ClientHello, read_hello

HELLO = client_hello("api.example.com", ["h2", "http/1.1"])


def records(hello: bytes, size: int) -> bytes:
    """The same message in records of at most so many bytes."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(each).to_bytes(2, "big") + each for each in pieces)


def with_extension(kind: int, content: bytes, hello: bytes = HELLO) -> bytes:
    """The hello with one extension more."""
    body = hello[9:]
    at = 34
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    extensions = (
        body[at + 2 :] + kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content
    )
    return wrapped(body[:at] + len(extensions).to_bytes(2, "big") + extensions)


def wrapped(body: bytes) -> bytes:
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def test_what_openssl_says() -> None:
    assert read_hello(HELLO) == ClientHello("api.example.com", (b"h2", b"http/1.1"), False)
    assert read_hello(client_hello(None)) == ClientHello(None, (), False)
    assert read_hello(HELLO + b"more") == read_hello(HELLO)


@pytest.mark.parametrize("size", [17, 40, 100, 300])
def test_split_into_records(size: int) -> None:
    assert read_hello(records(HELLO, size)) == read_hello(HELLO)


def test_every_beginning_needs_more() -> None:
    for data in (HELLO, records(HELLO, 40)):
        assert all(read_hello(data[:end]) is None for end in range(len(data)))


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_an_encrypted_hello_is_told(kind: int) -> None:
    found = read_hello(with_extension(kind, b"\0" * 40))
    assert found is not None
    assert found.encrypted


@pytest.mark.parametrize(
    "data",
    [
        b"\x17" + HELLO[1:],
        b"\x16\x02" + HELLO[2:],
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        with_extension(0, b"\x00\x07\x00\x00\x04evil"),
        wrapped(HELLO[9:] + b"x"),
        wrapped(b"\x03\x03"),
        wrapped(b"\x03\x03" + bytes(32) + b"\xff"),
        HELLO[:3] + (len(HELLO) - 4).to_bytes(2, "big") + HELLO[5:] + b"x",
        HELLO[:-1] + b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_what_is_not_to_be_trusted(data: bytes) -> None:
    if data == HELLO[:-1]:
        assert read_hello(data) is None
        return
    with pytest.raises(BadHello):
        read_hello(data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00",
        b"\x00\x08\x01\x00\x05a.com",
        b"\x00\x10\x00\x00\x05a.com\x00\x00\x05b.com",
        b"\x00\x08\x00\x00\x05a.comx",
        b"\x00\x08\x00\x00\x05\xff.com",
        b"\x00\x08\x00\x00\x09a.com",
    ],
)
def test_server_names_that_are_not_one_name(content: bytes) -> None:
    with pytest.raises(BadHello):
        read_hello(with_extension(0, content, client_hello(None)))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_too_many_records(size: int) -> None:
    with pytest.raises(BadHello):
        read_hello(records(HELLO, size))


def test_a_hello_without_end_is_bounded() -> None:
    data = b"\x16\x03\x01\x00\x04\x01\x00\xff\xff" + b"\x16\x03\x01\x00\x01x" * MAX_RECORDS
    with pytest.raises(BadHello):
        read_hello(data)


@settings(max_examples=500)
@given(st.data())
def test_damaged(data: st.DataObject) -> None:
    damaged = bytearray(records(HELLO, data.draw(st.sampled_from([40, 16384]))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        read_hello(bytes(damaged[:cut]))
    except BadHello:
        pass


@given(st.binary(max_size=2000))
def test_garbage(data: bytes) -> None:
    for each in (data, b"\x16\x03\x01" + data, wrapped(data)):
        try:
            read_hello(each)
        except BadHello:
            pass
