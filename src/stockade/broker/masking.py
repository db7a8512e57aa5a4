"""Takes secrets out of what comes back: by stars, as many as there were bytes, across any border.

What is known is the secret as it is and as programs spell it: URL-quoted, escaped for JSON and HTML,
in hexadecimal, in base64 at each of its three alignments, and as the pair of basic authentication.
A server that spells it in a way of its own, or sends it in pieces, is not stopped by this:
docs/broker.md says so.
"""

import base64
import html
import json
import zlib
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = b"*"
_SHORTEST: Final = 6
"""Of a form: what is shorter is found everywhere."""
_MOST_TRIES: Final = 256
"""Places at which one form may begin that the end of some data may cut."""


def forms(secret: str, *, users: Iterable[str] = ()) -> frozenset[bytes]:
    """All the spellings of a secret that are looked for."""
    raw = secret.encode()
    found: set[bytes] = {raw}
    quoted = {
        quote(secret, safe=""),
        quote(secret),
        quote(secret, safe="!$&'()*+,;=:@/?~"),
        quote_plus(secret),
        quote(secret, safe="!'()*~"),  # encodeURIComponent
        quote_plus(secret, safe="*").replace("~", "%7E"),  # application/x-www-form-urlencoded
    }
    every = "".join(f"%{byte:02X}" for byte in raw)
    for text in (*quoted, every):
        found.add(text.encode())
        found.add(_lower_escapes(text).encode())
    for ascii_only in (True, False):
        text = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        found.add(text.encode())
        found.add(text.replace("/", "\\/").encode())
    escaped = "".join(
        f"\\u{ord(char):04x}" if char in "<>&'\"\\" else char for char in secret
    )  # as JSON for the inside of HTML has it
    found.add(escaped.encode())
    for marks in (True, False):
        text = html.escape(secret, quote=marks)
        found |= {
            text.encode(),
            text.replace("&#x27;", "&#39;").replace("&quot;", "&#34;").encode(),
        }
    found |= {raw.hex().encode(), raw.hex().upper().encode()}
    found |= _base64(raw)
    for user in users:
        found |= _base64(f"{user}:{secret}".encode(), whole=True)
    for encoding in ("latin-1", "utf-16-le", "utf-16-be"):
        try:
            found.add(secret.encode(encoding))
        except UnicodeEncodeError:
            pass  # then it cannot come back in it, either
    return frozenset(form for form in found if len(form) >= _SHORTEST)


def _lower_escapes(text: str) -> str:
    parts = text.split("%")
    return parts[0] + "".join(f"%{part[:2].lower()}{part[2:]}" for part in parts[1:])


def _base64(raw: bytes, *, whole: bool = False) -> set[bytes]:
    """What of its base64 the bytes around it do not decide, for each place in a group of three."""
    found: set[bytes] = set()
    for before in range(3):
        # A character whose six bits are not all the secret's is left out, at either end.
        first = (8 * before + 5) // 6
        last = 8 * (before + len(raw)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(b"\0" * before + raw)[first:last])
    if whole:
        found |= {base64.b64encode(raw), base64.urlsafe_b64encode(raw)}
    return found


class Masks:
    """The forms of all secrets of one sandbox."""

    def __init__(self, found: Iterable[bytes] = ()) -> None:
        # The longest first: what is found within it need not be looked at.
        self._forms = sorted(set(found), key=len, reverse=True)
        self.longest = max(map(len, self._forms), default=0)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def whole(self, data: bytes) -> bytes:
        """Something that comes in one piece, such as a header."""
        hits = self._hits(data, 0)
        if not hits:
            return data
        masked = bytearray(data)
        for start, end in hits:
            masked[start:end] = MASK * (end - start)
        return bytes(masked)

    def stream(self) -> "Masker":
        """For something that comes in many."""
        return Masker(self)

    def _hits(self, data: bytes, known: int) -> list[tuple[int, int]]:
        """Where forms are that do not end within the first ``known`` bytes."""
        hits = []
        for form in self._forms:
            place = data.find(form, max(0, known - len(form) + 1))
            while place >= 0:
                hits.append((place, place + len(form)))
                place = data.find(form, place + 1)
        return hits

    def _open_end(self, data: bytes) -> int:
        """Where the first form begins that the end of the data may cut."""
        least = len(data)
        for form in self._forms:
            place = first = data.find(form[:1], max(0, len(data) - len(form) + 1))
            tries = 0
            while 0 <= place < least:
                tries += 1
                if tries > _MOST_TRIES:
                    # What repeats itself could be tried at each of its bytes. To keep back more
                    # than is needed is a delay, and nothing is let through.
                    least = min(least, first)
                    break
                if form.startswith(data[place:]):
                    least = place
                    break
                place = data.find(form[:1], place + 1)
        return least


class Masker:
    """Masks a stream. It keeps back only what may be the beginning of a secret."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._kept = b""
        self._hidden = 0
        """How much of what is kept is part of a secret that was found already."""

    def feed(self, data: bytes) -> bytes:
        """Give it some; returns what can go on."""
        if not self._masks:
            return data
        known = len(self._kept)
        data = self._kept + data
        hits = self._masks._hits(data, known)  # noqa: SLF001 - one thing in two parts
        cut = self._masks._open_end(data)  # noqa: SLF001
        hidden, masked = self._hidden, data
        if hits or hidden:
            stars = bytearray(data)
            for start, end in (*hits, (0, hidden)):
                stars[start:end] = MASK * (end - start)
            masked = bytes(stars)
        reach = max([hidden, *(end for _, end in hits)])
        self._kept = data[cut:]
        self._hidden = max(0, reach - cut)
        return masked[:cut]

    def flush(self) -> bytes:
        """The rest, at the end: it was not a whole secret."""
        rest = MASK * self._hidden + self._kept[self._hidden :]
        self._kept, self._hidden = b"", 0
        return rest


class TooMuch(Exception):
    """A compressed answer is so much larger than it was sent that it can only be meant to harm."""


class Undecodable(Exception):
    """An answer in an encoding that nobody here reads, or that is broken."""


class Decoder:
    """Undoes gzip or deflate, within bounds."""

    _FREE: Final = 8 * 1024 * 1024
    _RATIO: Final = 200
    _PIECE: Final = 256 * 1024

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise Undecodable(f"the answer is encoded as {encoding[:40]!r}, which nobody asked for")
        self._gzip = encoding != "deflate"
        self._inflate = self._make(raw=False)
        self._first = True
        self._taken = 0
        self._made = 0

    def _make(self, *, raw: bool) -> "zlib._Decompress":
        bits = 16 + zlib.MAX_WBITS if self._gzip else (-zlib.MAX_WBITS if raw else zlib.MAX_WBITS)
        return zlib.decompressobj(bits)

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Pieces of what it says. Raises :class:`TooMuch` and :class:`Undecodable`."""
        self._taken += len(data)
        while data:
            if self._inflate.eof:
                if not self._gzip:
                    raise Undecodable("something follows the end of a compressed answer")
                self._inflate = self._make(raw=False)  # a second member
            try:
                piece = self._inflate.decompress(data, self._PIECE)
            except zlib.error as error:
                if self._first and not self._gzip:
                    # deflate is zlib by RFC 9110, and raw as some servers have it.
                    self._inflate, self._first = self._make(raw=True), False
                    continue
                raise Undecodable("a compressed answer is broken") from error
            self._first = False
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            self._made += len(piece)
            if self._made > self._FREE + self._RATIO * self._taken:
                raise TooMuch(f"an answer of {self._taken} bytes would become {self._made} or more")
            if piece:
                yield piece

    def finish(self) -> None:
        """Raises :class:`Undecodable` where the end is missing."""
        if self._taken and not self._inflate.eof:
            raise Undecodable("a compressed answer ends in the middle")
