"""What the harness says of a call, read as anything of a guest's."""

from dataclasses import dataclass
from typing import Final

from stockade.tools import answers
from stockade.tools.answers import NoAnswer

_LONGEST_FRAME: Final = 5_000
_MOST_FRAMES: Final = 20
_MOST_CAUSES: Final = 4
_BEFORE_OUTPUT: Final = b'{"output":'


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call has no output."""

    kind: str
    """``raised`` by the tool, ``not_json`` or ``too_large`` of its output, ``bad_input``, ``no_main``
    of classes that do not load; ``no_result`` where there is no answer; else ``outcome``."""
    message: str
    place: str | None = None
    """In the input or output, as a JSON pointer."""
    exception: str | None = None
    """The class of it."""
    line: int | None = None
    """In the tool's source, where the exception came from."""
    trace: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def read_output(result: bytes | None) -> bytes | Failure:
    """The output as the guest wrote it, which nobody has read yet; or the failure that it tells.

    Raises :class:`NoAnswer`.
    """
    if result is None:
        raise NoAnswer("there is none")
    if result.startswith(_BEFORE_OUTPUT) and result.endswith(b"}"):
        return result[len(_BEFORE_OUTPUT) : -1]
    failure = answers.load(result).get("error")
    if type(failure) is not dict:
        raise NoAnswer("it has neither an output nor an error")
    return Failure(
        answers.word(failure.get("kind")),
        answers.text(failure.get("message")),
        _optional(failure.get("place")),
        _optional(failure.get("class")),
        None if failure.get("line") is None else answers.position(failure["line"]),
        _texts(failure.get("trace"), _MOST_FRAMES),
        _texts(failure.get("causes"), _MOST_CAUSES),
    )


def _optional(value: object) -> str | None:
    return None if value is None else answers.text(value)


def _texts(value: object, most: int) -> tuple[str, ...]:
    if type(value) is not list or len(value) > most:
        raise NoAnswer("it has a list that is none, or too long")
    return tuple(answers.text(item, _LONGEST_FRAME) for item in value)
