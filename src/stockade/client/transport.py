"""One service over HTTP: connections, headers, refusals, and what was not answered.

Two families of failure. What was refused, or never sent, is an error of the port's. What was sent
and not answered whole is :class:`Interrupted`: it may have happened, and the caller of this module
says what that means.
"""

import asyncio
import errno
import os
import random
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

import stockade
from stockade.api import headers as names
from stockade.api import problems
from stockade.api.problems import Code, Problem
from stockade.client.address import Address
from stockade.port import InvalidRequest, Refused, StockadeError, Unavailable

MOST_PROBLEM_BYTES: Final = 256 * 1024
_LONGEST_SENTENCE = 1000
_KEY = re.compile(r"[\x21-\x7e]{1,1024}", re.ASCII)
# Less than the servers' 75 s: a connection that the other end is about to close is not used.
_IDLE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PIECE_BYTES = 65_536
# What the slowest network that is worth waiting for carries.
BYTES_PER_SECOND: Final = 32 * 1024
_LEAST_PATIENCE = 60.0
# Without a body that says more, what a status means.
_CODE_OF_STATUS: Final = {
    int(status): code
    for code, status in reversed(problems.STATUS.items())
    if code not in (Code.FILE_REFUSED, Code.IDEMPOTENCY_CONFLICT)
}

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the service is waited for, in seconds."""

    connect: float = 5.0
    """One attempt to connect, the handshake included."""
    reach: float = 5.0
    """All attempts together, from the first: it may be starting again."""
    silence: float = 20.0
    """Without a byte; a server that lives says something every 5 seconds."""
    answer: float = 60.0
    """A whole answer that is no stream."""
    start: float = 300.0
    """Until a program has started, from the call: it may have to wait for a sandbox."""
    grace: float = 60.0
    """Beyond what the limits of an execution allow it."""


class Interrupted(Exception):
    """It was sent, and no whole answer came; the message is one sentence."""


def spoken(text: str) -> str:
    """What the other end said, for a message of ours: bounded, on one line, without controls."""
    if len(text) > _LONGEST_SENTENCE:
        text = text[:_LONGEST_SENTENCE] + " [...]"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def parsed(model: type[M], answer: bytes) -> M:
    """An answer. Raises :class:`Interrupted` for what is none."""
    try:
        return model.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Interrupted(
            f"its answer cannot be read: {spoken(where)}: {spoken(first['msg'])}"
        ) from None


class Outgoing(AsyncIterable[bytes]):
    """A body in pieces, bounded in time by what it is, and never sent as less than it is.

    aiohttp repeats some requests by itself, and would send a source that is used up as an empty one.
    """

    def __init__(self, content: bytes | AsyncIterable[bytes], *, once: bool = False) -> None:
        """``once``: what was taken of it may have been used, so nothing is sent again."""
        self._content = content
        self._once = once or not isinstance(content, bytes)
        self._begun = False
        self.failure: BaseException | None = None
        """What the source raised."""
        self.clock: asyncio.Timeout | None = None
        """Wound with each piece, for as long as the slowest network takes for it."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._begun and self._once:
            self.failure = Interrupted("the connection broke off as it was sent")
            raise self.failure
        self._begun = True
        try:
            if isinstance(self._content, bytes):
                for start in range(0, len(self._content), _PIECE_BYTES):
                    self._wind(_PIECE_BYTES)
                    yield self._content[start : start + _PIECE_BYTES]
            else:
                source = aiter(self._content)
                self._wind(None)
                async for piece in source:
                    self._wind(len(piece))
                    if piece:  # an empty chunk would be the end
                        yield piece
                    # The caller's own source may take its time.
                    self._wind(None)
            self._wind(0)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            self.failure = error
            raise

    def _wind(self, size: int | None) -> None:
        if self.clock is None or self.clock.expired():
            return
        now = asyncio.get_running_loop().time()
        seconds = None if size is None else _LEAST_PATIENCE + size / BYTES_PER_SECOND
        self.clock.reschedule(None if seconds is None else now + seconds)


class Transport:
    """The connections to one service."""

    def __init__(
        self,
        address: Address,
        key: str,
        *,
        tenant: str | None,
        tls: ssl.SSLContext | None,
        timeouts: Timeouts,
        more_headers: Callable[[], Mapping[str, str]] = dict,
        called: str | None = None,
    ) -> None:
        if not _KEY.fullmatch(key):
            raise InvalidRequest("key", "it is not 1 to 1024 visible ASCII characters")
        self.tenant = tenant
        self.timeouts = timeouts
        self._address = address
        self._more_headers = more_headers
        self._called = called
        self._headers = {
            "Authorization": f"Bearer {key}",
            "User-Agent": f"stockade/{stockade.__version__}",
            # A bomb is small until it is unpacked.
            "Accept-Encoding": "identity",
        }
        connector: aiohttp.BaseConnector
        # Each execution holds a connection while it runs: a ceiling here would keep back the very
        # request that is to cancel one.
        if address.socket is not None:
            connector = aiohttp.UnixConnector(
                path=address.socket, limit=0, keepalive_timeout=_IDLE_SECONDS
            )
        else:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_IDLE_SECONDS, ssl=True if tls is None else tls
            )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("Accept", "Content-Type"),
        )
        self._silent = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect)
        self._spoken = aiohttp.ClientTimeout(
            total=None, sock_connect=timeouts.connect, sock_read=timeouts.silence
        )
        self._urls: dict[str, URL] = {}

    def __repr__(self) -> str:
        return f"<Transport to {self._address}>"

    def __str__(self) -> str:
        return self._called or str(self._address)

    async def close(self) -> None:
        """Close the connections, with whatever uses them."""
        await self._session.close()

    def headers(self, tenant: str | None, more: Mapping[str, str]) -> dict[str, str]:
        """Of one request. ``tenant``: whose it is, where the service is told."""
        found = {**self._headers, **self._more_headers(), **more}
        if tenant is not None:
            found[names.TENANT] = names.encode_tenant(tenant)
        return found

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Outgoing | None = None,
        *,
        repeatable: bool = False,
        silent: bool = False,
    ) -> aiohttp.ClientResponse:
        """Send a request; its answer, of which the head is here.

        Tried again while no connection can be made, for then nothing was sent. ``repeatable``:
        also where the service says that it takes no calls now, and when it will. ``silent``: it
        may say nothing for as long as it likes. Raises :class:`Unavailable`,
        :class:`Interrupted`, and what a body's source raises.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.timeouts.reach
        pause = _FIRST_PAUSE
        while True:
            try:
                response = await self._send(method, path, headers, body, silent)
            except _NotReached as error:
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
                pause = min(2 * pause, _LONGEST_PAUSE)
                if error.final or loop.time() + wait > give_up:
                    raise Unavailable(f"{self} cannot be reached: {error}") from error.__cause__
            else:
                if not (repeatable and response.status == 503):
                    return response
                after = _retry_after(response)
                if after is None or loop.time() + after > give_up:
                    return response
                wait = after
                response.close()
            await asyncio.sleep(wait)

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Outgoing | None,
        silent: bool,
    ) -> aiohttp.ClientResponse:
        try:
            return await self._session.request(
                method,
                self._url(path),
                headers=headers,
                data=body,
                allow_redirects=False,
                timeout=self._silent if silent else self._spoken,
            )
        except aiohttp.ClientSSLError as error:
            raise _NotReached(_reason(error), final=True) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NotReached(_reason(error)) from error
        except aiohttp.SocketTimeoutError:
            raise Interrupted(
                f"nothing came from it for {self.timeouts.silence:g} seconds"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            if isinstance(body, Outgoing) and body.failure is not None:
                raise body.failure from None
            if _refuses_certificate(error):
                raise Unavailable(f"{self} refuses the client's certificate") from error
            if self._session.closed and type(error) is RuntimeError:
                # Before anything was sent: else it is a connection that broke off.
                raise Unavailable("the environment is closed") from None
            raise Interrupted(f"the connection broke off: {_reason(error)}") from error

    async def ask(
        self,
        method: str,
        path: str,
        *,
        tenant: str | None = None,
        message: bytes | None = None,
        most_bytes: int = MOST_PROBLEM_BYTES,
        accept: str = "application/json",
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request and read its whole answer, which a success must be."""
        headers = self.headers(tenant, {"Accept": accept, **(more or {})})
        if message is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(self.timeouts.answer):
                response = await self.send(method, path, headers, message)
                try:
                    await self.require(response)
                    return await self.read(response, most_bytes)
                finally:
                    response.release()
        except TimeoutError:
            raise Interrupted(
                f"no whole answer came within {self.timeouts.answer:g} seconds"
            ) from None

    async def require(self, response: aiohttp.ClientResponse) -> None:
        """Raise what a response that is no success says."""
        if not 200 <= response.status < 300:
            await self.refuse(response)

    async def refuse(self, response: aiohttp.ClientResponse) -> NoReturn:
        """Raise what it says: an error of the port's for a refusal, else :class:`Interrupted`."""
        status = response.status
        try:
            body = await self.read(response, MOST_PROBLEM_BYTES)
        except Interrupted:
            body = b""
        finally:
            response.release()
        if 300 <= status < 400:
            raise Unavailable(f"{self} answers with a redirect (status {status}); none is followed")
        raise _error(self, status, response.content_type, body, _retry_after(response))

    async def read(self, response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
        """All of a body. Raises :class:`Interrupted`."""
        found = bytearray()
        async for piece in self.pieces(response):
            found += piece
            if len(found) > most_bytes:
                response.close()
                raise Interrupted(f"its answer is larger than {most_bytes} bytes")
        return bytes(found)

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """A body as it comes, to its end; one that trickles is cut. Raises :class:`Interrupted`."""
        loop = asyncio.get_running_loop()
        waited, taken = 0.0, 0
        while True:
            since = loop.time()
            piece = await self.piece(response)
            waited += loop.time() - since  # what the caller does in between is not counted
            taken += len(piece)
            if not piece:
                return
            if waited > self.timeouts.answer + taken / BYTES_PER_SECOND:
                raise Interrupted(f"it sent {taken} bytes in {waited:.0f} seconds")
            yield piece

    async def piece(self, response: aiohttp.ClientResponse) -> bytes:
        """What came of a body; empty at its end. Raises :class:`Interrupted`."""
        try:
            return await response.content.readany()
        except aiohttp.SocketTimeoutError:
            raise Interrupted(
                f"nothing came from it for {self.timeouts.silence:g} seconds"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            raise Interrupted(f"the connection broke off: {_reason(error)}") from error

    def _url(self, path: str) -> URL:
        # Those without an id are few, and are asked for again and again.
        url = self._urls.get(path)
        if url is None:
            # Encoded: what was spelled byte by byte is not to be spelled anew.
            url = URL(self._address.base + path, encoded=True)
            if path.count("/") < 3 and "?" not in path:
                self._urls[path] = url
        return url


def client_tls(
    ca: str | Path | None, certificate: tuple[str | Path, str | Path] | str | Path | None
) -> ssl.SSLContext | None:
    """What proves either end to the other; ``None`` for what the system trusts."""
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest("ca", f"{str(ca)!r} holds no certificate: {_reason(error)}") from None
    if certificate is not None:
        chain, key = certificate if isinstance(certificate, tuple) else (certificate, None)
        try:
            context.load_cert_chain(chain, key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                "client_certificate", f"{str(chain)!r} cannot be used: {_reason(error)}"
            ) from None
    return context


class _NotReached(Exception):
    """No connection: nothing was sent."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def _error(
    transport: Transport, status: int, content_type: str, body: bytes, retry_after: float | None
) -> Exception:
    problem = _problem(body) if content_type == problems.MEDIA_TYPE else None
    if problem is not None:
        if problem.code is Code.INTERNAL:
            return Interrupted(f"{transport} failed: {spoken(problem.detail)}")
        return error_of(problem, retry_after)
    code = _CODE_OF_STATUS.get(status)
    if code is None and 400 <= status < 500:
        code = Code.FORBIDDEN
    said = f"{transport} answers with status {status}, and does not say why"
    if code is Code.UNAVAILABLE:
        return Unavailable(said)
    if code is None or code is Code.INTERNAL:
        # What stands between may have handed the request on before it failed.
        return Interrupted(said)
    if code in (Code.INVALID_REQUEST, Code.SANDBOX_LOST):
        return Refused(code, said)
    return Refused(code, said, retry_after)


def error_of(problem: Problem, retry_after: float | None = None) -> StockadeError:
    """The port's error for a problem, with words that are safe to print."""
    after = problem.retry_after if problem.retry_after is not None else retry_after
    errors = tuple(
        problems.Violation(field=spoken(error.field), message=spoken(error.message))
        for error in problem.errors[:1]
    )
    missing = {tier: spoken(why) for tier, why in problem.missing.items()}
    return problem.model_copy(
        update={
            "detail": spoken(problem.detail),
            "errors": errors,
            "missing": missing,
            "retry_after": after,
        }
    ).to_error()


def _problem(body: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        return None


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds: a number or a date (RFC 9110, 10.2.3)."""
    value = response.headers.get("Retry-After", "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _reason(error: Any) -> str:
    """In the words of the system where it has some."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLError):  # whose number is no error of the system's
        why = getattr(inner, "verify_message", None) or inner.reason or str(inner)
        verifying = isinstance(inner, ssl.SSLCertVerificationError)
        return spoken(f"its certificate is not believed: {why}" if verifying else f"TLS: {why}")
    number = getattr(inner, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number)  # asyncio's own text repeats the address
    text = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return spoken(str(text))


def _refuses_certificate(error: BaseException) -> bool:
    """Whether it is the other end's alert, which in TLS 1.3 comes behind the handshake."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, ssl.SSLError):
            return "ALERT" in (seen.reason or "")
        seen = getattr(seen, "__cause__", None) or getattr(seen, "__context__", None)
        if seen is None:
            return False
    return False
