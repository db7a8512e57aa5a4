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
    # One write a line: a process that is killed leaves no half of one.
    log: Log = structlog.wrap_logger(
        structlog.WriteLogger(target),
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    return log


def take_over() -> None:
    """Of a process that is a gateway: what is logged by way of structlog or logging goes here."""
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    root = logging.getLogger()
    root.handlers[:] = [ToLog(open_log())]
    root.setLevel(logging.WARNING)


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


_PROCESSORS = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.ExceptionRenderer(
        # Where it was raised, and never a local variable: it may be a key, or a guest's bytes.
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
    ),
    _shortened,
    structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=True),
)
