"""Structured logs: one JSON object a line, in ASCII, so that nothing in it moves a terminal."""

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
_MOST_CHARACTERS: Final = 4000


def make_log(level: str = "info", file: TextIO | None = None) -> Log:
    """A log of its own: nothing global is set."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(file or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cut,
            structlog.processors.JSONRenderer(serializer=_dump),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    return log


class ToLog(logging.Handler):
    """The standard library's records, of the pool and of uvicorn, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        try:
            error = record.exc_info[1] if record.exc_info else None
            self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=error)
        except Exception:  # noqa: BLE001 - as logging has it: a log that fails ends nothing
            self.handleError(record)


def _cut(_logger: Any, _method: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
            event[key] = value[:_MOST_CHARACTERS] + "[...]"
    return event


def _dump(event: Any, **_options: Any) -> str:
    return json.dumps(event, ensure_ascii=True, default=ascii)
