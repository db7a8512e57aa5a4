"""The executor's side of the broker's data protocol. No secret ever comes this way."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stockade.egress.broker_route import BrokerDown
from stockade.port import KIB
from stockade.port.egress import CredentialUse, DeniedDestination, EgressRule, Scheme

_MOST_LINE: Final = 64 * KIB
_BUFFER: Final = 64 * KIB
"""Of each connection; a guest that reads nothing makes us hold twice as much."""
_SECONDS: Final = 15.0


class BrokerRefused(Exception):
    """The broker does not open a sandbox: the ticket is no good, or a credential is unknown."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where the broker's data socket is: a unix socket, or a host and port with TLS."""

    path: Path | None = None
    host: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"tcp:{self.host}:{self.port}"


class BrokerLink:
    """Opens sandboxes at a broker. One for a whole executor."""

    def __init__(self, address: BrokerAddress, token: str) -> None:
        self._address = address
        self._token = token

    def __repr__(self) -> str:
        return f"<BrokerLink {self._address}>"

    async def open(
        self, *, tenant: str, execution: str, ticket: str | None, rules: Sequence[EgressRule]
    ) -> "BrokeredSandbox":
        """Open one. Raises :class:`BrokerDown` and :class:`BrokerRefused`."""
        said, reader, writer = await self.ask(
            {
                "open": {
                    "token": self._token,
                    "ticket": ticket,
                    "tenant": tenant,
                    "execution": execution,
                    "rules": [str(rule) for rule in rules],
                }
            }
        )
        try:
            if "error" in said:
                raise BrokerRefused(str(said["error"]), str(said.get("detail")))
            return BrokeredSandbox(self, said, reader, writer)
        except (KeyError, TypeError, ValueError):
            writer.transport.abort()
            raise BrokerDown(f"the broker at {self._address} answers what nobody asked") from None
        except BaseException:
            writer.transport.abort()
            raise

    async def connect(
        self, sandbox: str, host: str, port: int, *, tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a guest. Raises :class:`BrokerDown`."""
        fields = {"token": self._token, "sandbox": sandbox, "host": host, "port": port, "tls": tls}
        said, reader, writer = await self.ask({"connect": fields})
        if said != {"ok": True}:
            writer.transport.abort()
            raise BrokerDown(f"the broker refuses: {said.get('detail')}")
        return reader, writer

    async def ask(
        self, line: Mapping[str, Any]
    ) -> tuple[dict[str, Any], asyncio.StreamReader, asyncio.StreamWriter]:
        """Say a line on a new connection, and hear one. Raises :class:`BrokerDown`."""
        address = self._address
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_SECONDS):
                if address.path is not None:
                    reader, writer = await asyncio.open_unix_connection(address.path, limit=_BUFFER)
                else:
                    reader, writer = await asyncio.open_connection(
                        address.host, address.port, ssl=address.tls, limit=_BUFFER
                    )
                writer.write(json.dumps(line).encode() + b"\n")
                await writer.drain()
                return await _hear(reader), reader, writer
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                why = f"it said nothing within {_SECONDS:g} s"
            elif isinstance(error, OSError):
                why = error.strerror or str(error)
            elif isinstance(error, EOFError | ValueError | asyncio.LimitOverrunError):
                why = "it ended the connection, or said what is no answer"
            else:
                raise
            raise BrokerDown(
                f"the broker at {address} does not answer ({why}); nothing goes out without it",
                late=isinstance(error, TimeoutError),
            ) from None


class BrokeredSandbox:
    """One sandbox at the broker, for as long as its lease stands. It is a ``BrokerRoute``."""

    def __init__(
        self,
        link: BrokerLink,
        said: Mapping[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.certificate = _text(said["certificate"])
        """PEM, of the authority that the guest is to trust."""
        self.environment = {
            _text(name): _text(value) for name, value in dict(said["environment"]).items()
        }
        """Placeholders for the guest's environment."""
        self.destinations = tuple((_text(host), int(port)) for host, port in said["destinations"])
        """Hosts, also ``*.example.com``, whose connections are the broker's business."""
        self.denied: tuple[DeniedDestination, ...] = ()
        """What the broker refused, as far as it was asked for with the uses."""
        self._id = _text(said["sandbox"])
        self._link = link
        self._reader = reader
        self._writer = writer

    def __repr__(self) -> str:
        return f"<BrokeredSandbox {len(self.destinations)} destinations>"

    @property
    def stands(self) -> bool:
        """Whether its lease does, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def handles(self, host: str, port: int, scheme: Scheme) -> bool:
        """Whether connections to there are the broker's."""
        return scheme is not Scheme.TCP and any(
            port == known and (host == name or (name[:2] == "*." and host.endswith(name[1:])))
            for name, known in self.destinations
        )

    async def connect(
        self, host: str, port: int, tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream that takes what the guest sends. Raises :class:`BrokerDown`."""
        if not self.stands:
            raise BrokerDown(
                "the broker ended this sandbox's lease, and by that its credentials; "
                "nothing goes out without it"
            )
        return await self._link.connect(self._id, host, port, tls=tls)

    async def uses(self) -> tuple[CredentialUse, ...]:
        """What was used since this was asked the last time. A broker that is gone tells nothing."""
        return await self._hear(b'{"uses":true}\n')

    async def finish(self) -> tuple[CredentialUse, ...]:
        """The same, and end it."""
        try:
            return await self._hear(b'{"finish":true}\n')
        finally:
            await self.aclose()

    async def _hear(self, line: bytes) -> tuple[CredentialUse, ...]:
        self.denied = ()
        try:
            async with asyncio.timeout(_SECONDS):
                self._writer.write(line)
                await self._writer.drain()
                said = await _hear(self._reader)
            self.denied = tuple(
                DeniedDestination(
                    _text(each["destination"])[:300],
                    _text(each["reason"])[:64],
                    _text(each["detail"])[:1000],
                    int(each["count"]),
                )
                for each in said.get("denied", ())
            )
            return tuple(
                CredentialUse(
                    _text(each["credential"]), _text(each["destination"]), int(each["count"])
                )
                for each in said["uses"]
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError):
            # What it says next could be the answer to this.
            self._writer.transport.abort()
            return ()

    def close(self) -> None:
        """End it without asking."""
        self._writer.transport.abort()

    async def aclose(self) -> None:
        """The same, and wait for that."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def _hear(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readuntil(b"\n")
    if len(line) > _MOST_LINE:
        raise ValueError("the line is too long")
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("the line is no object")
    return said


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not text")
    return value
