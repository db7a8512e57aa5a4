"""The errors that cross the port.

A guest's failure is never one of these: it is an :class:`~stockade.port.outcome.Outcome`
in the record.  These are raised for a request that cannot be carried out.
"""

from collections.abc import Mapping

from stockade.port.tier import Tier


class StockadeError(Exception):
    """The root of every error that Stockade raises on purpose."""


class InvalidRequest(StockadeError, ValueError):
    """The request contradicts a rule.

    ``field`` names the offending field (``limits.memory_bytes``); the message says the
    value, the rule and what to do.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Unavailable(StockadeError):
    """No boundary that is strong enough can be started here; the message says what is missing.

    ``missing``: each tier that would have done, to why it is missing and how to get it. Empty
    where the tier is there and a sandbox of it could not be made.
    """

    def __init__(self, message: str, missing: Mapping[Tier, str] | None = None) -> None:
        super().__init__(message)
        self.missing = dict(missing or {})


class SandboxLost(StockadeError):
    """The sandbox died under the operation, or its wire broke."""


class FileRefused(StockadeError):
    """A workspace file cannot be read or written: absent, not a regular file, too large.

    ``path`` is the path in the workspace, ``reason`` one sentence.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r}: {reason}")
        self.path = path
        self.reason = reason


class Refused(StockadeError):
    """The service does not allow it: no valid key, a policy, a budget, or nothing of that name.

    ``code`` is one of the codes of docs/api.md; ``retry_after`` says in how many seconds the
    same call may succeed, where that is known.
    """

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class ToolFailed(StockadeError):
    """A tool was called and gave no output: it raised, was ended, or returned what is none.

    ``reason`` is a code of docs/tools.md; ``place`` says where: a line of its source, or a JSON
    pointer into its output. ``execution``: the id of its record, where there is one.
    """

    def __init__(
        self, reason: str, message: str, place: str | None = None, execution: str | None = None
    ) -> None:
        super().__init__(f"{message} (at {place})" if place else message)
        self.reason = reason
        self.message = message
        self.place = place
        self.execution = execution
