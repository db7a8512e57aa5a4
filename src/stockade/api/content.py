"""Bytes in JSON: text where they are UTF-8, else an object with their base64."""

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SCHEMA = {
    "anyOf": [
        {"type": "string", "description": "UTF-8 text"},
        {
            "type": "object",
            "description": "any bytes",
            "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
    ]
}


def _decoded(value: object) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"it is no Unicode text: {error.reason}") from None
        case {"base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"it is no base64: {error}") from None
    raise ValueError('it is neither text nor {"base64": "..."}')


def encode_content(data: bytes) -> str | dict[str, str]:
    """Bytes, as JSON has them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _decoded_name(value: object) -> str:
    # A caller's str may hold surrogates, which stand for bytes that are no text (PEP 383).
    return os.fsdecode(_decoded(value)) if isinstance(value, Mapping) else _text(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('it is neither text nor {"base64": "..."}')
    return value


def encode_name(name: str) -> str | dict[str, str]:
    """A name, as JSON has it."""
    return encode_content(os.fsencode(name))


Content = Annotated[
    bytes, BeforeValidator(_decoded), PlainSerializer(encode_content), WithJsonSchema(_SCHEMA)
]
"""Bytes."""

Name = Annotated[
    str, BeforeValidator(_decoded_name), PlainSerializer(encode_name), WithJsonSchema(_SCHEMA)
]
"""A name or an argument of the guest's system: bytes, in Python text with surrogates."""
