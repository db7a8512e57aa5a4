"""The executor's end of QMP, by which QEMU is told what to do: bytes in, messages out.

QEMU may have been taken over by its guest, so what it says is judged before it is built: a
line's length, then its depth and numbers, then its shape. No descriptor and no clock here.
https://www.qemu.org/docs/master/interop/qmp-spec.html
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stockade.executor.wire import WireViolation, dump_object, load_object

LARGEST_LINE: Final = 65_536
MOST_BYTES: Final = 1_048_576
"""All that a QEMU may say in its life: a start takes two thousand, and nothing is asked after."""
MOST_PENDING: Final = 8
"""Commands that wait for their answers; QEMU itself stops reading at as many."""
LONGEST_DESCRIPTION: Final = 500

ERROR_CLASSES: Final = frozenset(
    {"GenericError", "CommandNotFound", "DeviceNotActive", "DeviceNotFound", "KVMMissingCap"}
)


class QmpViolation(Exception):
    """QEMU broke the protocol; the message is one sentence that quotes nothing of QEMU's.

    The connection is dead from here on, and QEMU has to be killed.
    """


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first word of a QEMU that is up."""

    version: str
    """With its maker's: ``10.0.2 (Debian 1:10.0.2+ds-2)``."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command did what it should; what else it answered is nothing that is asked for here."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A command did not. ``description`` is QEMU's text, on one line, bounded."""

    number: int
    kind: str
    description: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened. ``status``: of its data, the one member that is read here."""

    name: str
    status: str = ""


Message = Greeting | Done | Failed | Event


class Qmp:
    """One conversation. Commands may be made before the greeting came: QEMU reads them then."""

    __slots__ = ("_dead", "_greeted", "_line", "_next", "_pending", "_said")

    def __init__(self) -> None:
        self._line = bytearray()
        self._said = 0
        self._greeted = False
        self._dead = ""
        self._next = 1
        self._pending: deque[int] = deque()

    def __repr__(self) -> str:
        state = self._dead or ("greeted" if self._greeted else "not greeted")
        return f"<Qmp {state}, {len(self._pending)} pending, {self._said} bytes heard>"

    def command(self, name: str, arguments: Mapping[str, object]) -> tuple[int, bytes]:
        """Its number and the bytes to send. Raises RuntimeError with too many unanswered."""
        if len(self._pending) == MOST_PENDING:
            raise RuntimeError(f"{MOST_PENDING} commands are unanswered; there may be no more")
        number = self._next
        self._next += 1
        self._pending.append(number)
        body = {"execute": name, "arguments": dict(arguments), "id": number}
        return number, dump_object(body) + b"\n"

    def receive(self, data: bytes) -> list[Message]:
        """Take bytes that QEMU sent; return what they mean, in order.

        Raises :class:`QmpViolation` if they break the protocol, and from then on always.
        """
        if self._dead:
            raise QmpViolation(self._dead)
        try:
            return self._receive(data)
        except WireViolation as violation:
            self._dead = str(violation)
        except QmpViolation as violation:
            self._dead = str(violation)
        self._line.clear()
        raise QmpViolation(self._dead)

    def _receive(self, data: bytes) -> list[Message]:
        self._said += len(data)
        if self._said > MOST_BYTES:
            raise QmpViolation(f"more than {MOST_BYTES} bytes in all")
        messages: list[Message] = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            line = bytes(self._line)
            self._line.clear()
            messages.append(self._read(load_object(line, "QMP", LARGEST_LINE)))
        self._keep(rest)
        return messages

    def _keep(self, piece: bytes) -> None:
        if len(self._line) + len(piece) > LARGEST_LINE:
            raise QmpViolation(f"a line of more than {LARGEST_LINE} bytes")
        self._line += piece

    def _read(self, body: dict[str, object]) -> Message:
        if not self._greeted:
            greeting = _read_greeting(body)
            self._greeted = True
            return greeting
        if "event" in body:
            return _read_event(body)
        number = body.get("id")
        if type(number) is not int or not self._pending or number != self._pending[0]:
            raise QmpViolation("an answer to no question, or out of turn")
        self._pending.popleft()
        if body.keys() == {"return", "id"}:
            return Done(number)
        if body.keys() == {"error", "id"}:
            return _read_error(number, body["error"])
        raise QmpViolation("a message of no known kind")


def _read_greeting(body: dict[str, object]) -> Greeting:
    match body:
        case {"QMP": {"version": {"qemu": {**numbers}, "package": str(package)}}}:
            parts = [numbers.get(name) for name in ("major", "minor", "micro")]
            if all(type(part) is int and 0 <= part < 1000 for part in parts):
                release = ".".join(map(str, parts))
                package = _printable(package, 100)
                return Greeting(f"{release} ({package})" if package else release)
    raise QmpViolation("a first message that is no greeting")


def _read_event(body: dict[str, object]) -> Event:
    name, data = body["event"], body.get("data", {})
    if not body.keys() <= {"event", "data", "timestamp"}:
        raise QmpViolation("an event with members that none has")
    if type(name) is not str or not name.isascii() or not 0 < len(name) <= 64:
        raise QmpViolation("an event without a name")
    if type(data) is not dict:
        raise QmpViolation("an event whose data is no object")
    status = data.get("status")
    return Event(name, _printable(status, 64) if type(status) is str else "")


def _read_error(number: int, error: object) -> Failed:
    match error:
        case {"class": str(kind), "desc": str(description)} if kind in ERROR_CLASSES:
            return Failed(number, kind, _printable(description, LONGEST_DESCRIPTION))
    raise QmpViolation("an error of no known class")


def _printable(text: str, most: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()
