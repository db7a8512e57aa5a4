"""The keys that seal secrets at rest: where they come from, and sealing by them."""

import asyncio
import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_MOST_KEYS: Final = 16
_MOST_BYTES: Final = 4096
_COMMAND_SECONDS: Final = 30.0
_VERSION: Final = b"\x01"
_NAME_BYTES: Final = 8
_NONCE_BYTES: Final = 12


class KeyFault(Exception):
    """No key, or not the right one; the message says what to do, and has no key in it."""


class Keyring:
    """Seals by the first key, and opens by any.

    What is sealed says by the key's digest which one it takes. The tenant and the name go into the
    seal: a row that is copied over another one does not open.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise KeyFault("there is no encryption key")
        self._keys = {_name(key): AESGCM(key) for key in keys}
        self._first = _name(keys[0])

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._keys)}>"

    def seal(self, tenant: str, name: str, secret: bytes) -> bytes:
        """For the store."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        text = self._keys[self._first].encrypt(nonce, secret, _bound(tenant, name))
        return _VERSION + self._first + nonce + text

    def open(self, tenant: str, name: str, sealed: bytes) -> bytes:
        """Raises :class:`KeyFault`."""
        key = self._keys.get(sealed[1 : 1 + _NAME_BYTES])
        if sealed[:1] != _VERSION or key is None:
            raise KeyFault(
                f"the credential {name!r} was sealed by a key that is not here: add it to the keys"
            )
        rest = sealed[1 + _NAME_BYTES :]
        try:
            return key.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bound(tenant, name))
        except (InvalidTag, ValueError):
            raise KeyFault(f"the credential {name!r} was altered in the store") from None

    def is_current(self, sealed: bytes) -> bool:
        """Whether it is sealed by the first key."""
        return sealed[1 : 1 + _NAME_BYTES] == self._first


def _name(key: bytes) -> bytes:
    return hashlib.sha256(b"stockade key name 1\0" + key).digest()[:_NAME_BYTES]


def _bound(tenant: str, name: str) -> bytes:
    # Lengths first: no two pairs are spelled alike.
    owner = tenant.encode()
    return b"stockade credential 1\0%d\0%s\0%s" % (len(owner), owner, name.encode())


def parse_keys(text: str, where: str) -> list[bytes]:
    """One key a line, base64 or hexadecimal of 32 bytes; the first one seals."""
    keys: list[bytes] = []
    for line in text.split():
        key = _decoded(line)
        if key is None or len(key) != KEY_BYTES:
            raise KeyFault(
                f"{where} has a line that is no key of {KEY_BYTES} bytes in base64 or hexadecimal: "
                "`openssl rand -base64 32` makes one"
            )
        if len(set(key)) < 12:
            raise KeyFault(f"{where} has a key that can be guessed: `openssl rand -base64 32`")
        keys.append(key)
    if not keys:
        raise KeyFault(f"{where} has no key: `openssl rand -base64 32` makes one")
    if len(keys) > _MOST_KEYS:
        raise KeyFault(f"{where} has more than {_MOST_KEYS} keys")
    return keys


def _decoded(line: str) -> bytes | None:
    try:
        if len(line) == 2 * KEY_BYTES:
            return bytes.fromhex(line)
        return base64.b64decode(line.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        return None


def read_key_file(path: Path) -> list[bytes]:
    """Raises :class:`KeyFault`."""
    return parse_keys(read_private(path, "key_file"), f"key_file {path}")


def read_private(path: Path, what: str) -> str:
    """A small file that nobody but its owner and group can read. Raises :class:`KeyFault`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFault(f"{what} {path} is no regular file")
            if status.st_mode & stat.S_IRWXO:
                raise KeyFault(f"{what} {path} can be read by every user: chmod 600 {path}")
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KeyFault(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise KeyFault(f"{what} {path} has more than {_MOST_BYTES} bytes")
    return data.decode("ascii", "replace")


async def ask_key_command(command: Sequence[str]) -> list[bytes]:
    """What a command prints, such as one that asks a vault. Raises :class:`KeyFault`."""
    where = f"key_command {command[0]}"
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    stream = asyncio.StreamReader()
    # A pipe of our own: asyncio waits for the end of its pipes, too, which a process that was killed
    # in the middle of much output, or has children, never brings.
    with os.fdopen(ours, "rb", 0) as end, os.fdopen(theirs, "wb", 0) as other:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), end
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=other
            )
        except OSError as error:
            transport.close()
            raise KeyFault(f"{where} cannot be started: {error.strerror}") from None
        other.close()
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                said = await _bounded(stream)
                code = await process.wait()
        except TimeoutError:
            raise KeyFault(f"{where} said nothing within {_COMMAND_SECONDS:g} s") from None
        finally:
            transport.close()
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code != 0:
        raise KeyFault(f"{where} ended with {code}")
    return parse_keys(said.decode("ascii", "replace"), where)


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    said = b""
    while piece := await stream.read(_MOST_BYTES):
        said += piece
        if len(said) > _MOST_BYTES:
            raise KeyFault(f"key_command prints more than {_MOST_BYTES} bytes")
    return said
