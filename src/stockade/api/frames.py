"""The stream of one execution over HTTP, as frames: ``application/vnd.stockade.frames``.

A frame is a type (one byte), a length (four bytes, big-endian), and that many bytes. Output is in
them as it is: no base64, no guess at an encoding. The stream's last frame is END or PROBLEM; one
that stops without it was cut, and what ran is ``lost``. Sans-io: no socket here.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from stockade.api.records import DetachedRecord, blobs_of
from stockade.port import Execution

MEDIA_TYPE: Final = "application/vnd.stockade.frames"
_HEADER: Final = struct.Struct(">BI")
MOST_BYTES: Final = 1024 * 1024
"""Of the payload of any frame but RECORD's and PROBLEM's."""
MOST_EGRESS_BYTES: Final = 32 * 1024
MOST_JSON_BYTES: Final = 8 * 1024 * 1024
"""Of a record without its bytes, or a problem: thousands of artefacts with long names."""
GATHERED_SECONDS: Final = 0.005
"""How long STARTED and output may wait for what goes out with them. docs/api.md promises it."""
GATHERED_BYTES: Final = 16 * 1024
"""Of what waits; more goes at once."""


class FrameType(IntEnum):
    """What a frame holds."""

    STARTED = 1
    """JSON: ``{"id": "..."}``, of the execution."""
    STDOUT = 2
    STDERR = 3
    RECORD = 4
    """JSON: a :class:`~stockade.api.records.DetachedRecord`."""
    BLOB = 5
    """A piece of the record's bytes."""
    END = 6
    """Nothing follows, and all was said."""
    PROBLEM = 7
    """JSON: a :class:`~stockade.api.problems.Problem`. Nothing follows."""
    KEEPALIVE = 8
    """Empty: the peer lives, and so does the execution."""
    EGRESS = 9
    """JSON: an :class:`~stockade.api.records.EgressEventMessage`. Only where it was asked for."""


class Frame(NamedTuple):
    """One frame."""

    type: FrameType
    payload: bytes


class FrameViolation(ValueError):
    """The peer did not keep to the protocol."""


def encode(kind: FrameType, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    if len(payload) > _most(kind):
        raise ValueError(f"{len(payload)} bytes are more than a {kind.name} frame takes")
    return _HEADER.pack(kind, len(payload)) + payload


def encode_output(kind: FrameType, data: bytes) -> Iterator[bytes]:
    """Output of any size, as frames."""
    for start in range(0, len(data), MOST_BYTES):
        yield encode(kind, data[start : start + MOST_BYTES])


def encode_record(execution: Execution) -> Iterator[bytes]:
    """A record with all its bytes, and the end, in pieces of bounded size."""
    piece = bytearray(
        encode(FrameType.RECORD, DetachedRecord.of(execution).model_dump_json().encode())
    )
    for blob in blobs_of(execution):
        for frame in encode_output(FrameType.BLOB, blob):
            piece += frame
            if len(piece) >= MOST_BYTES:
                yield bytes(piece)
                piece.clear()
    piece += encode(FrameType.END)
    yield bytes(piece)


class FrameDecoder:
    """Bytes in, frames out. Raises :class:`FrameViolation`."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes."""
        self._buffer += data
        place = 0
        try:
            while len(self._buffer) - place >= _HEADER.size:
                number, length = _HEADER.unpack_from(self._buffer, place)
                try:
                    kind = FrameType(number)
                except ValueError:
                    raise FrameViolation(f"a frame of the unknown type {number}") from None
                # Before anything of it is kept.
                if length > _most(kind):
                    raise FrameViolation(f"a {kind.name} frame of {length} bytes")
                end = place + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                payload = bytes(self._buffer[place + _HEADER.size : end])
                place = end
                yield Frame(kind, payload)
        finally:
            del self._buffer[:place]


class RecordAssembler:
    """Puts a record together from its frames. Raises :class:`FrameViolation`.

    ``most_bytes``: what it may hold; the sizes that a record announces are judged first.
    """

    def __init__(self, detached: DetachedRecord, most_bytes: int) -> None:
        self._record = detached
        self._sizes = list(detached.sizes())
        announced = sum(self._sizes)
        if announced > most_bytes:
            raise FrameViolation(f"a record of {announced} bytes; {most_bytes} are the most")
        self._blobs: list[bytearray] = [bytearray()]
        self._skip_full()

    def add(self, data: bytes) -> None:
        """A BLOB frame's payload."""
        if len(self._blobs) > len(self._sizes):
            raise FrameViolation("more bytes than the record announced")
        blob = self._blobs[-1]
        if len(blob) + len(data) > self._sizes[len(self._blobs) - 1]:
            raise FrameViolation("a blob is larger than the record announced")
        blob += data
        self._skip_full()

    def finish(self) -> Execution:
        """The record, when END came."""
        if len(self._blobs) <= len(self._sizes):
            raise FrameViolation("the record is incomplete")
        return self._record.to_port([bytes(blob) for blob in self._blobs[:-1]])

    def _skip_full(self) -> None:
        while (
            len(self._blobs) <= len(self._sizes)
            and len(self._blobs[-1]) == self._sizes[len(self._blobs) - 1]
        ):
            self._blobs.append(bytearray())


def _most(kind: FrameType) -> int:
    if kind is FrameType.EGRESS:
        return MOST_EGRESS_BYTES
    return MOST_JSON_BYTES if kind in (FrameType.RECORD, FrameType.PROBLEM) else MOST_BYTES
