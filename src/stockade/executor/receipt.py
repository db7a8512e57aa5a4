"""Reading what an agent proves of its confinement; each tier knows what it expects of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GUEST_ID: Final = "1000"
NO_CAPABILITY: Final = "0000000000000000"
CAPABILITIES: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

Mounts = Mapping[str, tuple[str, frozenset[str]]]
"""Mount point to file system and flags."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The facts of one, as text of /proc and as single words. All of it is a guest's claim."""

    status: Mapping[str, list[str]]
    mounts: Mounts
    interfaces: list[str]
    words: Mapping[str, str | int]

    @classmethod
    def read(cls, receipt: Mapping[str, object]) -> "Receipt":
        """What is absent, or of another kind, is empty: it fails every expectation."""
        words = {name: value for name, value in receipt.items() if isinstance(value, str | int)}
        return cls(
            status=_status(str(words.get("status", ""))),
            mounts=_mounts(str(words.get("mounts", ""))),
            interfaces=_interfaces(str(words.get("devices", ""))),
            words=words,
        )


class Expectations:
    """Collects what a receipt lacks, a sentence each."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def expect(self, name: str, value: object, *wanted: object) -> None:
        """The value is one of those wanted."""
        if value not in wanted:
            choice = " or ".join(map(repr, wanted))
            self.faults.append(f"{name} is {value!r}, not {choice}")


def _status(text: str) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.split() for name, _, value in lines}


def _interfaces(text: str) -> list[str]:
    """The names in /proc/net/dev, below its two lines of headings."""
    return [line.partition(":")[0].strip() for line in text.splitlines()[2:]]


def _mounts(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Mount point to file system and flags; a later mount covers an earlier one."""
    mounts = {}
    for line in text.splitlines():
        match line.split(" "):
            case [place, flags, kind]:
                mounts[place] = (kind, frozenset(flags.split(",")))
    return mounts
