"""Attacks by a fake guest: hostile bytes on the wire, read by the host's own end of it."""

import asyncio
import json
import os
import struct
from collections.abc import Callable

from stockade.cli.attack.model import Attack, Drive, Observed, Scene
from stockade.executor.link import Link
from stockade.executor.wire import Event, WireViolation, load_object
from stockade.port import Execution, Outcome, SandboxLost

HELLO, OPEN, DATA, CREDIT, CLOSE, RESET, END = range(1, 8)
_SPAN = 6
_WINDOW = 262_144
_BREAK_SECONDS = 3.0


def _frame(kind: int, channel: int, payload: bytes = b"", length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack(">IHB", size, channel, kind) + payload


HONEST = _frame(HELLO, 0, json.dumps({"version": 1, "receipt": {}}).encode())
_DEEP = b'{"version":1,"receipt":{"a":' + b"[" * 7000 + b"]" * 7000 + b"}}"


def _deep_message(_: object = None) -> bytes:
    """100,000 levels do not fit a frame of HELLO; a message of the agent is read like this."""
    for deep in (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"[" * 100_000, b"{" * 65_000):
        try:
            load_object(deep, "a message", 1 << 21)
        except WireViolation:
            continue
        raise AssertionError("100,000 levels were read")
    return _frame(HELLO, 0, _DEEP)


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "wire-truncated": ("ends within the header of a frame", lambda: HONEST + b"\0\0\1"),
    "wire-dies-mid-frame": (
        "dies after half of a frame that it announced",
        lambda: HONEST + _frame(DATA, 1, b"x" * 1000, 60_000),
    ),
    "wire-oversize": (
        "announces 4 GB, and sends on and on",
        lambda: HONEST + _frame(DATA, 1, b"x" * (8 << 20), 0xFFFF_FFFF),
    ),
    "wire-unknown-kind": ("sends kinds that do not exist", lambda: HONEST + _frame(99, 1, b"x")),
    "wire-host-kind": ("sends what only a host may say", lambda: HONEST + _frame(OPEN, 9, b"\1{}")),
    "wire-speaks-first": ("answers before it was asked", lambda: _frame(DATA, 1, b"x") + HONEST),
    "wire-forged-hello": (
        "claims another version and other keys",
        lambda: _frame(HELLO, 0, b'{"version":2,"receipt":{},"trusted":true}'),
    ),
    "wire-second-hello": ("greets twice, with another receipt", lambda: HONEST + HONEST),
    "wire-closed-channel": (
        "sends on channels that nobody opened",
        lambda: HONEST + _frame(DATA, 4000, b"x"),
    ),
    "wire-beyond-credit": (
        "sends more than it was granted",
        lambda: HONEST + _frame(DATA, 1, b"x" * 65_536) * (_WINDOW // 65_536 + 1),
    ),
    "wire-credit-overflow": (
        "grants until the sum overflows",
        lambda: HONEST + _frame(CREDIT, 1, struct.pack(">I", 1 << 20)) * 8192,
    ),
    "wire-credit-of-4-gb": (
        "grants 4 GB at once",
        lambda: HONEST + _frame(CREDIT, 1, b"\xff\xff\xff\xff"),
    ),
    "wire-early-end": ("ends a channel that the host has open", lambda: HONEST + _frame(END, 1)),
    "wire-deep-json": ("sends JSON that is 100,000 levels deep", _deep_message),
    "wire-nonsense": ("sends random bytes for ever", lambda: os.urandom(4 << 20)),
    "wire-one-byte-flood": (
        "sends a quarter of a million frames of one byte",
        lambda: HONEST + _frame(DATA, 1, b"x") * (_WINDOW + 1),
    ),
}


def hostile(name: str) -> Drive:
    """The drive that feeds the hostile bytes of that name to a link with six channels open."""

    async def drive(scene: Scene, _attack: Attack) -> Observed:
        stream = HONEST if scene.control else HOSTILE[name][1]()
        guest_in, to_guest = os.pipe()
        from_guest, guest_out = os.pipe()
        loop = asyncio.get_running_loop()
        link = Link(loop, from_guest, to_guest)
        taken: list[Event] = []
        link.open("program", b"", taken.append, _SPAN)
        # The guest of a control stays; a hostile one goes when it has said its piece.
        writing = loop.run_in_executor(None, _write, guest_out, stream, not scene.control)
        seconds = 0.3 if scene.control else _BREAK_SECONDS
        await asyncio.wait({link.broken}, timeout=seconds)
        breaches = []
        reason = "the wire stands"
        if link.broken.done():
            reason = link.broken.result()
            try:
                link.open("program", b"", taken.append, _SPAN)
                breaches.append("a program could still be started")
            except SandboxLost:
                pass
        else:
            breaches.append(f"the wire still stands after {seconds:g} s")
        link.close()
        await writing
        os.close(guest_in)
        if scene.control:
            os.close(guest_out)
        outcome = Outcome.LOST if link.broken.done() and not breaches else Outcome.OK
        return Observed([Execution(outcome, reason)], breaches)

    return drive


def _write(descriptor: int, stream: bytes, close: bool) -> None:
    view = memoryview(stream)
    try:
        while view:
            view = view[os.write(descriptor, view[:65_536]) :]
    except BrokenPipeError:
        pass  # the host hung up, as it should
    finally:
        if close:
            os.close(descriptor)
