"""Structured logs: one JSON object a line, in ASCII. Secrets do not come here: no message has one."""

import json
import logging
import sys
from typing import Any, Final, TextIO

import structlog

Log = structlog.typing.FilteringBoundLogger

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_MOST_CHARACTERS: Final = 2000


def make_log(level: str = "info", file: TextIO | None = None) -> Log:
    """A log of its own: nothing global is set."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(file or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _cut,
            structlog.processors.JSONRenderer(serializer=_dump),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    return log


class ToLog(logging.Handler):
    """The standard library's records, in the same form, without what an exception says.

    A traceback has values of variables in its messages at times; a broker's are secrets.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        try:
            kind = type(record.exc_info[1]).__name__ if record.exc_info else None
            message = record.getMessage() if record.name.startswith("stockade") else record.msg
            if record.name == "asyncio":
                # Its further lines repeat what tasks and their exceptions have in them.
                message = str(message).partition("\n")[0]
            self._log.log(
                record.levelno, str(message), logger=record.name, **({"kind": kind} if kind else {})
            )
        except Exception:  # noqa: BLE001 - as logging has it: a log that fails ends nothing
            self.handleError(record)


def _cut(_logger: Any, _method: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
            event[key] = value[:_MOST_CHARACTERS] + "[...]"
    return event


def _dump(event: Any, **_options: Any) -> str:
    return json.dumps(event, ensure_ascii=True, default=lambda thing: type(thing).__name__)
