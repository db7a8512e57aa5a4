"""Frames: a header of 7 bytes (length, channel, kind) and a payload."""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NoReturn

from stockade.executor.wire.violation import WireViolation

HELLO: Final = 1
OPEN: Final = 2
DATA: Final = 3
CREDIT: Final = 4
CLOSE: Final = 5
RESET: Final = 6
END: Final = 7

LARGEST_PAYLOAD: Final = 65_536
LARGEST_HELLO: Final = 16_384
LARGEST_REASON: Final = 1_024
LARGEST_GRANT: Final = 1_048_576

NAMES: Final = {
    HELLO: "HELLO",
    OPEN: "OPEN",
    DATA: "DATA",
    CREDIT: "CREDIT",
    CLOSE: "CLOSE",
    RESET: "RESET",
    END: "END",
}

Frame = tuple[int, int, bytes]  # kind, channel, payload

_HEADER: Final = Struct(">IHB")
_CREDIT_FRAME: Final = Struct(">IHBI")
_HEADER_SIZE: Final = _HEADER.size

# The fewest and the most bytes of payload for each kind that a guest may send.
_BOUNDS: Final = {
    HELLO: (0, LARGEST_HELLO),
    DATA: (1, LARGEST_PAYLOAD),
    CREDIT: (4, 4),
    CLOSE: (0, 0),
    RESET: (0, LARGEST_REASON),
    END: (0, 0),
}
_UNKNOWN: Final = (1, 0)  # no length satisfies it

# A frame that came in more pieces than this is gathered in one buffer, so that a guest
# which writes single bytes cannot make us hold an object for each.
_MOST_PIECES: Final = 16


class FrameDecoder:
    """Cuts a byte stream into frames, however it is split.

    A header is judged as soon as it is complete, before a byte of its payload is kept.
    A payload is copied once, also when it came in two or three pieces.
    """

    __slots__ = ("_gathered", "_header", "_missing", "_pieces")

    def __init__(self) -> None:
        self._header = b""
        self._missing = 0
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._gathered = bytearray()

    @property
    def held(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return len(self._header) + sum(map(len, self._pieces)) + len(self._gathered)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes; exhaust it before the next ``feed``."""
        offset = 0
        end = len(data)
        if self._header:
            offset, frame = self._resume(data)
            if frame is not None:
                yield frame
        while end - offset >= _HEADER_SIZE:
            length, channel, kind = _HEADER.unpack_from(data, offset)
            fewest, most = _BOUNDS.get(kind, _UNKNOWN)
            if not fewest <= length <= most:
                _refuse(kind, length)
            start = offset + _HEADER_SIZE
            if start + length > end:
                self._header = bytes(data[offset:start])
                self._missing = length
                self._keep(data, start, end)
                return
            offset = start + length
            yield kind, channel, bytes(data[start:offset])
        if offset < end:
            self._header = bytes(data[offset:])

    def _resume(self, data: bytes | memoryview) -> tuple[int, Frame | None]:
        """Go on with the frame that was cut; return how much it took, and the frame if done."""
        offset = 0
        if len(self._header) < _HEADER_SIZE:
            offset = _HEADER_SIZE - len(self._header)
            self._header += bytes(data[:offset])
            if len(self._header) < _HEADER_SIZE:
                return len(data), None
            length, channel, kind = _HEADER.unpack(self._header)
            fewest, most = _BOUNDS.get(kind, _UNKNOWN)
            if not fewest <= length <= most:
                _refuse(kind, length)
            self._missing = length
        else:
            length, channel, kind = _HEADER.unpack(self._header)
        end = min(len(data), offset + self._missing)
        self._keep(data, offset, end)
        if self._missing:
            return end, None
        if self._gathered:
            self._pieces.append(self._gathered)
            self._gathered = bytearray()
        payload = b"".join(self._pieces)
        self._pieces.clear()
        self._header = b""
        return end, (kind, channel, payload)

    def _keep(self, data: bytes | memoryview, start: int, end: int) -> None:
        if start == end:
            return
        self._missing -= end - start
        if len(self._pieces) == _MOST_PIECES:
            self._gathered += data[start:end]
        elif isinstance(data, bytes):
            self._pieces.append(memoryview(data)[start:end])
        else:
            # The owner of a view may write its next read over it.
            self._pieces.append(bytes(data[start:end]))


def _refuse(kind: int, length: int) -> NoReturn:
    if length > LARGEST_PAYLOAD:
        raise WireViolation(f"a frame of {length} bytes; at most {LARGEST_PAYLOAD} may come")
    if kind == OPEN:
        raise WireViolation("OPEN from the guest; only the host opens channels")
    if kind not in NAMES:
        raise WireViolation(f"a frame of unknown kind {kind}")
    if kind == RESET:
        raise WireViolation(f"RESET with a reason of {length} bytes; at most {LARGEST_REASON}")
    if kind == DATA:
        raise WireViolation("DATA without a payload")
    if kind == HELLO:
        raise WireViolation(f"HELLO of {length} bytes; at most {LARGEST_HELLO} may come")
    expected = _BOUNDS[kind][1] or "none"
    raise WireViolation(f"{NAMES[kind]} with a payload of {length} bytes instead of {expected}")


def encode_open(channel: int, span: int, service: bytes) -> bytes:
    """OPEN of ``span`` channels from ``channel`` on; ``service`` is a JSON object."""
    return b"%b%c%b" % (_HEADER.pack(1 + len(service), channel, OPEN), span, service)


def encode_data_header(channel: int, length: int) -> bytes:
    """What stands in front of a payload of ``length`` bytes."""
    return _HEADER.pack(length, channel, DATA)


def encode_credit(channel: int, grant: int) -> bytes:
    """CREDIT: the guest may send ``grant`` more bytes."""
    return _CREDIT_FRAME.pack(4, channel, CREDIT, grant)


def encode_close(channel: int) -> bytes:
    """CLOSE: the host sends no more on ``channel``."""
    return _HEADER.pack(0, channel, CLOSE)


def encode_reset(channel: int, reason: str) -> bytes:
    """RESET, with as much of ``reason`` as fits."""
    text = reason.encode("utf-8", "backslashreplace")
    if len(text) > LARGEST_REASON:
        text = text[:LARGEST_REASON].decode("utf-8", "ignore").encode("utf-8")
    return _HEADER.pack(len(text), channel, RESET) + text


def decode_grant(payload: bytes) -> int:
    """The number in the payload of a CREDIT frame."""
    return int.from_bytes(payload, "big")
