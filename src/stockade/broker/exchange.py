"""One guest's connection to one destination: each request is judged, filled in, sent, and masked."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Final

from stockade.broker.http1 import BadRequest, UpstreamBroken
from stockade.broker.injection import Uninjectable, inject
from stockade.broker.masking import Decoder, Masker, Masks, TooMuch, Undecodable
from stockade.broker.messages import Answer, Body, Header, Request, Tunnel, refusal
from stockade.broker.sandboxes import BrokeredSandbox
from stockade.broker.store import Store, Use
from stockade.broker.upstream import Reach, Upstream, UpstreamFault
from stockade.egress.decision import Denied
from stockade.egress.http_head import OTHER_METHOD, OTHER_PATH
from stockade.egress.names import Destination
from stockade.egress.room import NoRoom
from stockade.egress.turns import Turns
from stockade.port.egress import Scheme

_PLAIN: Final = (b"", b"identity")


class Exchange:
    """What stands between the guest's HTTP and the destination's."""

    def __init__(
        self,
        sandbox: BrokeredSandbox,
        destination: Destination,
        scheme: Scheme,
        *,
        store: Store,
        reach: Reach,
    ) -> None:
        self._sandbox = sandbox
        self._destination = destination
        self._scheme = scheme
        self._store = store
        self._upstream = Upstream(reach, destination, scheme)

    def close(self) -> None:
        """Let go of the destination."""
        self._upstream.close()

    async def handle(self, request: Request) -> Answer:
        """The answer for the guest, whatever happens."""
        held = ExitStack()
        try:
            held.callback(self._sandbox.room.requests.take())
            answer = await self._handle(request, held.callback)
            held_on = held.pop_all()
            _when_closed(answer, held_on.close)
            return answer
        except NoRoom as error:
            return self._refuse(429, "no-room", str(error))
        except (BadRequest, Uninjectable) as error:
            return self._refuse(error.status, error.code, str(error))
        except UpstreamFault as error:
            if error.status == 403:
                self._sandbox.note_denial(self._destination, Denied(error.code, str(error)))
            return self._refuse(error.status, error.code, str(error))
        finally:
            held.close()

    def _refuse(self, status: int, code: str, sentence: str) -> Answer:
        # It may repeat what the destination said, which may repeat what it was told.
        masked = self._sandbox.masks.whole(sentence.encode("utf-8", "replace"))
        return refusal(status, code, masked.decode("utf-8", "replace"))

    async def _handle(
        self, request: Request, hold: Callable[[Callable[[], None]], object]
    ) -> Answer:
        # The path before anything is put in: a secret is never part of what is judged or told.
        verdict = self._sandbox.access.decide(
            self._destination, self._scheme, request.method, request.path
        )
        if isinstance(verdict, Denied):
            self._sandbox.note_denial(self._destination, verdict)
            return refusal(403, verdict.reason, verdict.detail)
        # Also where another rule allows all: the credential is granted for less.
        if any(rule.methods for rule in verdict.rules):
            request = request.without_kin(OTHER_METHOD)
        if any(rule.path for rule in verdict.rules):
            request = request.without_kin(OTHER_PATH)
        sent, used = await inject(
            request,
            verdict.granted,
            url=self._upstream.url,
            placeholders=self._sandbox.placeholders,
            keep=lambda size: hold(self._sandbox.room.bodies.take(size)),
        )
        masks = self._sandbox.masks
        if masks:
            sent = sent.with_headers((b"accept-encoding", b"identity"))
            if sent.header(b"grpc-accept-encoding") is not None:
                sent = sent.with_headers((b"grpc-accept-encoding", b"identity"))
            if sent.websocket:
                sent = sent.without_headers(b"sec-websocket-extensions")
        numbers = await self._record(request, used)
        answer = await self._upstream.ask(sent, verdict.rules)
        if numbers:
            await self._store.answered(numbers, answer.status)
        try:
            return _masked(answer, masks, self._destination, head=request.method == "HEAD")
        except Undecodable as error:
            await answer.close()
            return self._refuse(502, "upstream-encoding", f"{self._destination}: {error}")

    async def _record(self, request: Request, used: Sequence[str]) -> list[int]:
        """Before the secret goes: a use that cannot be told does not happen."""
        if not used:
            return []
        sandbox, host = self._sandbox, self._destination.host
        sandbox.room.uses.take(len(used))  # for good
        numbers = await self._store.record(
            Use(
                sandbox.tenant,
                sandbox.execution,
                credential,
                request.method,
                host.name,
                self._destination.port,
                request.path,
            )
            for credential in used
        )
        for credential in used:
            sandbox.note_use(credential, self._destination)
        return numbers


def _when_closed(answer: Answer, then: Callable[[], None]) -> None:
    close = answer.close

    async def close_both() -> None:
        try:
            await close()
        finally:
            then()

    answer.close = close_both


def _masked(answer: Answer, masks: Masks, destination: Destination, *, head: bool) -> Answer:
    """Raises :class:`Undecodable`."""
    if not masks:
        return answer
    headers = _masked_headers(answer.headers, masks)
    headers = [header for header in headers if header[0] != b"sec-websocket-extensions"]
    if answer.tunnel is not None:
        tunnel = _MaskedTunnel(answer.tunnel, masks.stream())
        return Answer(
            answer.status,
            headers,
            answer.body,
            masks.whole(answer.reason),
            tunnel=tunnel,
            close=answer.close,
        )
    encodings = [
        part.strip().lower()
        for name, value in headers
        if name == b"content-encoding"
        for part in value.split(b",")
    ]
    encodings = [each for each in encodings if each not in _PLAIN]
    grpc = next((v.lower() for n, v in headers if n == b"grpc-encoding"), b"")
    if grpc not in _PLAIN:
        raise Undecodable("the answer's messages are compressed, although that was not asked for")
    decoder: Decoder | None = None
    length = answer.body.length
    if encodings and not head and answer.status not in (204, 304):
        if len(encodings) > 1:
            raise Undecodable("the answer is encoded more than once")
        decoder = Decoder(encodings[0].decode("latin-1"))
        dropped = (
            b"content-encoding",
            b"content-length",
            b"content-md5",
            b"digest",
            b"repr-digest",
        )
        headers = [header for header in headers if header[0] not in dropped]
        length = None
    source = answer.body

    # The trailers are there only when the source has come to its end.
    async def pieces() -> AsyncIterator[bytes]:
        async for piece in _pieces(source, masks, decoder, destination):
            yield piece
        body.trailers = _masked_headers(source.trailers, masks)

    body = Body(pieces(), length)
    return Answer(answer.status, headers, body, masks.whole(answer.reason), close=answer.close)


def _masked_headers(headers: list[Header], masks: Masks) -> list[Header]:
    return [(masks.whole(name), masks.whole(value)) for name, value in headers]


async def _pieces(
    source: Body, masks: Masks, decoder: Decoder | None, destination: Destination
) -> AsyncIterator[bytes]:
    masker = masks.stream()
    turns = Turns()
    try:
        async for data in source:
            await turns.step()
            for piece in decoder.feed(data) if decoder is not None else (data,):
                if masked := masker.feed(piece):
                    yield masked
        if decoder is not None:
            decoder.finish()
    except (TooMuch, Undecodable) as error:
        # Its head has gone: cut, so that nobody takes it for whole.
        raise UpstreamBroken(f"{destination}: {error}") from None
    if rest := masker.flush():
        yield rest


class _MaskedTunnel:
    def __init__(self, tunnel: Tunnel, masker: Masker) -> None:
        self._tunnel = tunnel
        self._masker = masker
        self._ended = False

    async def read(self) -> bytes:
        while not self._ended:
            data = await self._tunnel.read()
            if not data:
                self._ended = True
                return self._masker.flush()
            if masked := self._masker.feed(data):
                return masked
        return b""

    async def write(self, data: bytes) -> None:
        await self._tunnel.write(data)

    def end(self) -> None:
        self._tunnel.end()
