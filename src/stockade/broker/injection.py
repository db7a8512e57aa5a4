"""Putting secrets into a request: the one place where it is done.

What a guest itself put there is taken out first, so that it is ours or nothing.
"""

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote_plus

from stockade.api.credentials import Way, WayKind
from stockade.broker.granting import Granted
from stockade.broker.masking import forms
from stockade.broker.messages import Body, Request, whole
from stockade.port import MIB

MOST_HASHED: Final = 16 * MIB
"""Of a body that has to be signed, and so to be had whole, before it is sent."""

_HASH: Final = re.compile(rb"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER")
_SIGNED: Final = frozenset({b"content-type", b"content-md5", b"range", b"if-match"})


class Uninjectable(Exception):
    """The request cannot take the secret; ``status`` is for the guest."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


def new_placeholder(credential: str) -> str:
    """What stands for a secret in the environment: letters and digits, nothing to be quoted."""
    return f"stockade0{hashlib.sha256(credential.encode()).hexdigest()[:6]}0{secrets.token_hex(20)}"


def masked_forms(secret: str, ways: Iterable[Way]) -> frozenset[bytes]:
    """What is looked for in answers."""
    found: frozenset[bytes] = frozenset()
    ways = tuple(ways)
    users = [way.user or "" for way in ways if way.kind is WayKind.BASIC]
    if any(way.kind is not WayKind.SIGV4 for way in ways):
        found |= forms(secret, users=users)
    if any(way.kind is WayKind.SIGV4 for way in ways):
        for part in secret.split(":", 2)[1:]:  # the first part is no secret: each request shows it
            found |= forms(part)
    return found


async def inject(
    request: Request,
    granted: Iterable[Granted],
    *,
    url: str,
    placeholders: dict[str, str],
    keep: Callable[[int], object] = lambda _size: None,
) -> tuple[Request, tuple[str, ...]]:
    """The request with the secrets in it, and the names of those that went in.

    ``url``: scheme, host and port. ``placeholders``: of each credential. ``keep`` is told of bytes
    of a body before they are kept. Raises :class:`Uninjectable`, and what ``keep`` does.
    """
    used: list[str] = []
    granted = tuple(granted)
    for each in granted:
        if each.way.kind is WayKind.PLACEHOLDER:
            placeholder = placeholders.get(each.credential)
            if placeholder is None:
                continue
            replaced = _replace(request, placeholder, each.secret)
            if replaced != request:
                used.append(each.credential)
            request = replaced
    signing: Granted | None = None
    for each in granted:
        way, secret = each.way, each.secret
        match way.kind:
            case WayKind.BEARER:
                request = request.with_headers((b"authorization", b"Bearer " + secret.encode()))
            case WayKind.HEADER:
                assert way.name is not None
                value = (way.prefix or "").encode() + secret.encode()
                request = request.with_headers((way.name.lower().encode(), value))
            case WayKind.BASIC:
                pair = base64.b64encode(f"{way.user}:{secret}".encode())
                request = request.with_headers((b"authorization", b"Basic " + pair))
            case WayKind.QUERY:
                assert way.name is not None
                request = replace(request, target=_with_query(request.target, way.name, secret))
            case WayKind.SIGV4:
                signing = each
                continue
            case WayKind.PLACEHOLDER:
                continue
        used.append(each.credential)
    if signing is not None:
        # The last: it is over what the others did.
        request = await _sign(request, signing, url, keep)
        used.append(signing.credential)
    return request, tuple(dict.fromkeys(used))


def _replace(request: Request, placeholder: str, secret: str) -> Request:
    mark = placeholder.encode()
    headers = []
    for name, value in request.headers:
        if mark in value:
            value = value.replace(mark, secret.encode())
        elif name == b"authorization" and value[:6].lower() == b"basic ":
            try:
                pair = base64.b64decode(value[6:].strip(), validate=True)
            except (ValueError, binascii.Error):
                pair = b""
            if mark in pair:
                pair = pair.replace(mark, secret.encode())
                value = b"Basic " + base64.b64encode(pair)
        headers.append((name, value))
    path, query, rest = request.target.partition("?")
    rest = rest.replace(placeholder, quote(secret, safe=""))
    if not secret.isascii() and any(mark in value for _, value in request.headers):
        raise Uninjectable(
            400, "credential-not-ascii", "the credential has characters that no header takes"
        )
    return replace(request, headers=tuple(headers), target=path + query + rest)


def _with_query(target: str, name: str, secret: str) -> str:
    path, _, query = target.partition("?")
    # A parameter's name may be spelled with escapes, and parted by a semicolon for some servers.
    parts = [
        part
        for part in re.split(r"[&;]", query)
        if part and unquote_plus(part.partition("=")[0]) != name
    ]
    parts.append(f"{name}={quote(secret, safe='')}")
    return f"{path}?{'&'.join(parts)}"


async def _sign(
    request: Request, granted: Granted, url: str, keep: Callable[[int], object]
) -> Request:
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    way = granted.way
    assert way.service is not None
    assert way.region is not None
    is_s3 = way.service in ("s3", "s3express")
    given = request.header(b"x-amz-content-sha256")
    if given is not None and not _HASH.fullmatch(given):
        raise Uninjectable(
            400,
            "signed-chunks",
            "each chunk of this body was signed by the guest's own key, which cannot be done anew: "
            "send it unsigned, or with the digest of the whole",
        )
    if given is None and request.body is not None and not is_s3:
        data = await _all(request.body, keep)
        request = replace(request, body=whole(data))
        given = hashlib.sha256(data).hexdigest().encode()
    elif given is None:
        given = b"UNSIGNED-PAYLOAD" if is_s3 else hashlib.sha256(b"").hexdigest().encode()
    digest = given.decode()
    path, _, query = request.target.partition("?")
    kept = [part for part in query.split("&") if not part.lower().startswith("x-amz-")]
    target = f"{path}?{'&'.join(kept)}" if any(kept) else path
    request = replace(request, target=target).without_headers(
        b"authorization", b"x-amz-date", b"date", b"x-amz-security-token", b"x-amz-content-sha256"
    )

    class Signer(S3SigV4Auth if is_s3 else SigV4Auth):  # type: ignore[misc]
        def payload(self, _request: object) -> str:
            return digest

    key_id, secret, *token = granted.secret.split(":", 2)
    signed = AWSRequest(
        method=request.method,
        url=url + target,
        headers={
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers
            if name in _SIGNED or name.startswith(b"x-amz-")
        },
    )
    credentials = Credentials(key_id, secret, token[0] if token else None)
    Signer(credentials, way.service, way.region).add_auth(signed)
    added = [
        (name.lower().encode(), str(value).encode("latin-1"))
        for name, value in signed.headers.items()
        if name.lower() not in ("host",)
    ]
    if is_s3 or given is not None:
        added = [each for each in added if each[0] != b"x-amz-content-sha256"]
        added.append((b"x-amz-content-sha256", digest.encode()))
    return request.with_headers(*added)


async def _all(body: Body, keep: Callable[[int], object]) -> bytes:
    found = bytearray()
    async for piece in body:
        keep(len(piece))
        found += piece
        if len(found) > MOST_HASHED:
            raise Uninjectable(
                413,
                "too-large-to-sign",
                f"a body of more than {MOST_HASHED // MIB} MiB is signed only with its digest in "
                "X-Amz-Content-Sha256",
            )
    return bytes(found)
