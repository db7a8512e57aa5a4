"""Whatever comes back, in whatever pieces: the secret is not in it."""

import base64
import gzip
import html
import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.broker.masking import Decoder, Masks, TooMuch, Undecodable, forms

SPELLINGS: dict[str, Callable[[str], bytes]] = {
    "raw": lambda s: s.encode(),
    "quoted": lambda s: quote(s, safe="").encode(),
    "quoted with slashes": lambda s: quote(s).encode(),
    "quoted plus": lambda s: quote_plus(s).encode(),
    "json": lambda s: json.dumps(s)[1:-1].encode(),
    "json in Unicode": lambda s: json.dumps(s, ensure_ascii=False)[1:-1].encode(),
    "html": lambda s: html.escape(s).encode(),
    "hex": lambda s: s.encode().hex().encode(),
    "HEX": lambda s: s.encode().hex().upper().encode(),
    "base64": lambda s: base64.b64encode(s.encode()),
    "base64url": lambda s: base64.urlsafe_b64encode(s.encode()),
    "basic": lambda s: base64.b64encode(b"somebody:" + s.encode()),
}

secrets = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=["Cc"]),
    min_size=8,
    max_size=60,
).filter(lambda s: s == s.strip() and s.isprintable() and len(set(s)) >= 4)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(each % (len(data) + 1) for each in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(
    secret=secrets,
    spelling=st.sampled_from(sorted(SPELLINGS)),
    before=st.binary(max_size=50),
    after=st.binary(max_size=50),
    repeats=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 10_000), max_size=40),
)
@settings(max_examples=400, deadline=None)
def test_no_spelling_passes_at_any_border(
    secret: str, spelling: str, before: bytes, after: bytes, repeats: int, cuts: list[int]
) -> None:
    spelled = SPELLINGS[spelling](secret)
    said = before + (spelled + after) * repeats
    masks = Masks(forms(secret, users=["somebody"]))
    masker = masks.stream()
    came = b"".join(masker.feed(piece) for piece in cut(said, cuts)) + masker.flush()
    assert len(came) == len(said)
    assert spelled not in came
    assert secret.encode() not in came
    assert came == masks.whole(said), "in pieces it is what it is whole"


@given(secret=secrets, offset=st.integers(0, 8), after=st.binary(max_size=9))
@settings(max_examples=200, deadline=None)
def test_within_something_that_is_in_base64(secret: str, offset: int, after: bytes) -> None:
    said = base64.b64encode(b"\xf0" * offset + secret.encode() + after)
    came = Masks(forms(secret)).whole(said)
    assert secret.encode() not in base64.b64decode(came.replace(b"*", b"A"))
    # What is left of it are the bits that it shares with what is around it.
    assert came.count(b"*") >= len(secret.encode()) * 4 // 3 - 2


@given(said=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=20))
@settings(deadline=None)
def test_what_has_no_secret_is_untouched(said: bytes, cuts: list[int]) -> None:
    masker = Masks(forms("a-secret-that-is-nowhere")).stream()
    assert b"".join(masker.feed(piece) for piece in cut(said, cuts)) + masker.flush() == said


@given(text=st.text("ab", max_size=60), cuts=st.lists(st.integers(0, 60), max_size=20))
@settings(max_examples=300, deadline=None)
def test_secrets_that_overlap(text: str, cuts: list[int]) -> None:
    """Of a small alphabet: beginnings within ends, and one within another."""
    masks = Masks([b"abaab", b"aabab", b"babba", b"abaabaab"])
    masker = masks.stream()
    came = b"".join(masker.feed(p) for p in cut(text.encode(), cuts)) + masker.flush()
    assert came == masks.whole(text.encode())
    assert not any(form in came for form in (b"abaab", b"aabab", b"babba"))


def test_nothing_is_kept_back_that_cannot_be_the_beginning_of_one() -> None:
    masker = Masks(forms("supersecret")).stream()
    assert masker.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert masker.feed(b"data: sup") == b"data: "
    assert masker.feed(b"er\n\n") == b"super\n\n"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
def test_a_compressed_answer_is_decoded(encoding: str) -> None:
    said = b"hello " * 5000
    packed = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "raw": lambda d: zlib.compress(d)[2:-4],
    }
    decoder = Decoder("gzip" if encoding == "gzip" else "deflate")
    data = packed[encoding](said)
    came = b"".join(b"".join(decoder.feed(data[n : n + 7])) for n in range(0, len(data), 7))
    decoder.finish()
    assert came == said


def test_a_bomb_is_given_up() -> None:
    decoder = Decoder("gzip")
    bomb = gzip.compress(bytes(200 * 1024 * 1024), 9)
    size = 0
    with pytest.raises(TooMuch):
        for piece in decoder.feed(bomb):
            size += len(piece)
    assert size < 80 * 1024 * 1024


def test_what_is_cut_or_broken_is_told() -> None:
    decoder = Decoder("gzip")
    list(decoder.feed(gzip.compress(b"hello")[:-4]))
    with pytest.raises(Undecodable):
        decoder.finish()
    with pytest.raises(Undecodable):
        list(Decoder("gzip").feed(b"no gzip at all"))
    with pytest.raises(Undecodable):
        Decoder("br")


def test_what_repeats_itself_is_masked_without_trying_each_byte() -> None:
    """A secret like this, and a destination that sends its beginning without end, held up all."""

    class Counted(bytes):
        tries = 0

        def startswith(self, *arguments: object) -> bool:
            Counted.tries += 1
            return super().startswith(*arguments)  # type: ignore[arg-type]

    secret = b"a" * 4000 + b"bcd1"
    masks = Masks([secret])
    masks._forms = [Counted(secret)]
    masker = masks.stream()
    said = b""
    for _ in range(20):
        said += masker.feed(b"a" * 3999 + b"x")
    assert Counted.tries <= 20 * 256
    said += masker.feed(secret[:2000]) + masker.feed(secret[2000:] + b"the end") + masker.flush()
    assert said == (b"a" * 3999 + b"x") * 20 + b"*" * 4004 + b"the end"
