"""The host's end of the wire: a sans-io core that reads hostile bytes.

The protocol is in ``docs/wire.md``.  Bytes in, events and bytes out; no descriptor, no
clock.  The guest's end is ``guest/native/wire.c`` and shares no code with this one.
"""

from stockade.executor.wire.bounded_json import dump_object, load_object
from stockade.executor.wire.connection import WINDOW, Connection
from stockade.executor.wire.events import Closed, Data, Event, Granted, Hello, Reset
from stockade.executor.wire.violation import CannotOpen, WireViolation

__all__ = [
    "WINDOW",
    "CannotOpen",
    "Closed",
    "Connection",
    "Data",
    "Event",
    "Granted",
    "Hello",
    "Reset",
    "WireViolation",
    "dump_object",
    "load_object",
]
