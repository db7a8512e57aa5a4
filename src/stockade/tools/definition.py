"""What a tool is. A version of one never changes: it has a digest, and is replaced by another."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

from stockade.port import (
    KIB,
    MIB,
    NO_EGRESS,
    EgressPolicy,
    EgressRule,
    InvalidRequest,
    Limits,
    Tier,
    TrustLevel,
)
from stockade.tools import json_text, schemas

LARGEST_SOURCE: Final = MIB
LARGEST_EXAMPLE: Final = 64 * KIB
LARGEST: Final = 2 * MIB
"""Of all of a definition together, as JSON."""
LONGEST_DESCRIPTION: Final = 4000
MOST_EXAMPLES: Final = 20

# What the makers of models take for a function's name.
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")


class Language(StrEnum):
    """What a tool is written in."""

    PYTHON = "python"
    JAVA = "java"
    JAVASCRIPT = "javascript"
    EXPRESSION = "expression"


class Need(StrEnum):
    """What a tool needs beyond its language, for the choice of a tier."""

    SUBPROCESS = "subprocess"
    """It starts programs of the image."""
    PACKAGES = "packages"
    """It imports packages of the image that are not its language's own."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input, and the output that a call of it has."""

    input: Any
    output: Any


def is_name(name: object) -> bool:
    """Whether a tool can be called so."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: object) -> None:
    """Raises :class:`InvalidRequest`."""
    if not is_name(name):
        raise InvalidRequest(
            "name",
            f"{str(name)[:80]!a} is not a tool's name: a letter, then up to 63 letters, "
            "digits, '_' and '-'",
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """One version, without its number."""

    name: str
    language: Language
    source: str
    input_schema: Mapping[str, Any]
    """Of an object: a model calls a tool with named arguments."""
    output_schema: Mapping[str, Any] | bool
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    egress: tuple[EgressRule, ...] = ()
    credentials: tuple[str, ...] = ()
    trust: TrustLevel = TrustLevel.UNTESTED
    tier: Tier | None = None
    """Exactly this one; ``None``: the lightest that will do."""
    needs: tuple[Need, ...] = ()
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_text("description", self.description, LONGEST_DESCRIPTION)
        _check_text("source", self.source, LARGEST_SOURCE)
        if not self.source.strip():
            raise InvalidRequest("source", "it is empty")
        given: object = self.input_schema
        if not isinstance(given, Mapping) or given.get("type") != "object":
            raise InvalidRequest(
                "input_schema", 'it is not of an object: give it "type": "object" at its top'
            )
        schemas.check(self.input_schema, "input_schema")
        schemas.check(self.output_schema, "output_schema")
        if len(self.examples) > MOST_EXAMPLES:
            raise InvalidRequest(
                "examples", f"{len(self.examples)} exceed {MOST_EXAMPLES}; keep the telling ones"
            )
        for index, example in enumerate(self.examples):
            for part in ("input", "output"):
                _check_json(f"examples/{index}/{part}", getattr(example, part), LARGEST_EXAMPLE)
        EgressPolicy(self.egress, self.credentials)  # refuses too many, and wrong names
        if len(set(self.needs)) != len(self.needs):
            raise InvalidRequest("needs", "one is named twice")
        if len(json_text.canonical(self.as_data())) > LARGEST:
            raise InvalidRequest("tool", f"all of it together exceeds {LARGEST} bytes")

    @property
    def policy(self) -> EgressPolicy:
        """What it may reach."""
        if not self.egress and not self.credentials:
            return NO_EGRESS
        return EgressPolicy(self.egress, self.credentials)

    @property
    def digest(self) -> str:
        """Of all that it is; two versions with the same one do the same."""
        return "sha256:" + hashlib.sha256(json_text.canonical(self.as_data())).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "language": self.language.value,
            "source": self.source,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "limits": {each.name: getattr(self.limits, each.name) for each in fields(Limits)},
            "egress": [str(rule) for rule in self.egress],
            "credentials": list(self.credentials),
            "trust": self.trust.value,
            "tier": None if self.tier is None else self.tier.value,
            "needs": [need.value for need in self.needs],
            "examples": [{"input": each.input, "output": each.output} for each in self.examples],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """What :meth:`as_data` gave."""
        return cls(
            name=data["name"],
            description=data["description"],
            language=Language(data["language"]),
            source=data["source"],
            input_schema=data["input_schema"],
            output_schema=data["output_schema"],
            limits=Limits(**data["limits"]),
            egress=tuple(map(EgressRule.parse, data["egress"])),
            credentials=tuple(data["credentials"]),
            trust=TrustLevel(data["trust"]),
            tier=None if data["tier"] is None else Tier(data["tier"]),
            needs=tuple(map(Need, data["needs"])),
            examples=tuple(Example(each["input"], each["output"]) for each in data["examples"]),
        )


def _check_text(name: str, text: object, most: int) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(name, f"{type(text).__name__} is not text")
    if len(text) > most:
        raise InvalidRequest(name, f"{len(text)} characters exceed {most}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            name, f"half a surrogate pair at character {error.start} is no text"
        ) from None
    if size > most:
        raise InvalidRequest(name, f"{size} bytes exceed {most}")


def _check_json(name: str, value: object, most: int) -> None:
    try:
        json_text.load(json_text.dump(value), most)
    except json_text.NoJson as error:
        raise InvalidRequest(name, f"it {error}") from None
