"""The gateway's log: one JSON object a line, in ASCII, so that nothing in it can steer a terminal.

Nothing of a guest's is logged, no key, no body, and no path as a caller wrote it.
"""

import logging
import sys
from typing import Any, TextIO

import structlog

Log = structlog.typing.FilteringBoundLogger


def open_log(to: TextIO | None = None, level: int = logging.INFO) -> Log:
    """A log of its own: nothing global is set."""
    target = sys.stderr if to is None else to
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(target),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            _shortened,
            structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    return log


class ToLog(logging.Handler):
    """What libraries say by way of :mod:`logging`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one on, with the type of what was raised and where, and none of its locals."""
        raised = record.exc_info[0] if record.exc_info else None
        self._log.log(
            record.levelno,
            record.getMessage(),
            logger=record.name,
            raised=raised.__name__ if raised else None,
        )


_LONGEST = 4000


def _shortened(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {
        name: value[:_LONGEST] + " [...]"
        if isinstance(value, str) and len(value) > _LONGEST
        else value
        for name, value in event.items()
    }
