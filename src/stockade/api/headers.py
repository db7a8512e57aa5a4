"""What the headers of a request say beside HTTP's own, and how names are written in them."""

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

TENANT: Final = "Stockade-Tenant"
"""Of an executor's request: whose it is, as :func:`encode_tenant` writes it."""
ID: Final = "Stockade-Id"
"""The id that what is made is to have."""
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
GENERATION: Final = "Stockade-Generation"
"""Of an executor's request about a session: the ``generation`` of the one that is meant."""

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
"""An id, whole. Nothing of it has to be escaped in a path, a header or a log."""
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)


def is_identifier(text: str) -> bool:
    """Whether it may be an id."""
    return IDENTIFIER.fullmatch(text) is not None


def is_idempotency_key(text: str) -> bool:
    """Whether it may be the value of ``Idempotency-Key``."""
    return _IDEMPOTENCY_KEY.fullmatch(text) is not None


def encode_tenant(name: str) -> str:
    """A tenant's name as a header has it: UTF-8, percent-encoded, for names are any text."""
    return quote(name, safe="")


def decode_tenant(value: str) -> str:
    """The name; raises :class:`ValueError` unless it is exactly what :func:`encode_tenant` writes.

    One spelling for each name: two that mean the same could be judged as two.
    """
    try:
        name = unquote_to_bytes(value).decode()
    except UnicodeError:
        raise ValueError("it is no percent-encoded UTF-8") from None
    if not name or quote(name, safe="") != value:
        raise ValueError("it is not spelled as percent-encoding spells it")
    return name


def encode_path(path: str) -> str:
    """A workspace path in a URL: each byte percent-encoded but unreserved ones and ``/``."""
    return quote(path, safe="/", errors="surrogateescape")


def decode_path(raw: bytes) -> str:
    """The path of a URL's raw path, with surrogates for bytes that are no text (PEP 383)."""
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")
