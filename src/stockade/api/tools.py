"""Tools, as callers and gateway speak of them."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from stockade.api.answers import Answer
from stockade.api.requests import LimitsMessage, Message, RuleText
from stockade.port import EgressRule, Limits, Tier, TrustLevel
from stockade.port.egress import MAX_CREDENTIALS, MAX_RULES
from stockade.tools.definition import MOST_EXAMPLES, Example, Language, Need, Tool

HIGHEST_VERSION = 2**31 - 1
VersionNumber = Annotated[int, Field(ge=1, le=HIGHEST_VERSION, strict=True)]


class ExampleMessage(Message):
    """An input, and the output that it has."""

    input: Any
    output: Any


class ToolBody(Message):
    """A version of a tool. Its name is in the path."""

    description: str = ""
    """For whoever chooses among tools, a model above all."""
    language: Language
    source: str
    input_schema: dict[str, Any]
    """JSON Schema 2020-12, of an object."""
    output_schema: dict[str, Any] | bool
    limits: LimitsMessage = Field(default_factory=LimitsMessage)
    egress: tuple[RuleText, ...] = Field(default=(), max_length=MAX_RULES)
    credentials: tuple[Annotated[str, Field(max_length=64)], ...] = Field(
        default=(), max_length=MAX_CREDENTIALS
    )
    trust: TrustLevel = TrustLevel.UNTESTED
    tier: Tier | Literal["auto"] = "auto"
    """``auto``: the lightest that the trust level allows and the needs fit."""
    needs: tuple[Need, ...] = Field(default=(), max_length=len(Need))
    examples: tuple[ExampleMessage, ...] = Field(default=(), max_length=MOST_EXAMPLES)
    """Run before the version is called by anybody; one that comes out otherwise refuses it."""

    def to_tool(self, name: str) -> Tool:
        """Raises :class:`~stockade.port.InvalidRequest`."""
        return Tool(
            name=name,
            description=self.description,
            language=self.language,
            source=self.source,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            limits=Limits(**dict(self.limits)),
            egress=tuple(map(EgressRule.parse, self.egress)),
            credentials=self.credentials,
            trust=self.trust,
            tier=None if self.tier == "auto" else self.tier,
            needs=self.needs,
            examples=tuple(Example(each.input, each.output) for each in self.examples),
        )

    @classmethod
    def of(cls, tool: Tool) -> Self:
        """The message for a tool."""
        data = tool.as_data()
        del data["name"]
        return cls.model_validate({**data, "tier": data["tier"] or "auto"})


class ToolMessage(Answer):
    """A version of a tool, as it is kept."""

    name: str
    version: int
    digest: str
    """Of all that it is."""
    live: bool
    """Whether it is the one that is called."""
    disabled: bool
    """The tool is, with all of its versions."""
    created: datetime
    tested: int
    """How many examples it passed before it was stored."""
    chosen_tier: Tier
    """Where it is called."""
    reason: str
    """Why there."""
    description: str
    language: Language
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | bool
    definition: ToolBody | None = None
    """All of it, where one version was asked for."""


class ToolList(Answer):
    """A page of tools, each by the version that is called; the one that was made last first."""

    tools: tuple[ToolMessage, ...]
    next: str | None = None


class ToolVersionList(Answer):
    """All versions of a tool that are kept, the latest first."""

    versions: tuple[ToolMessage, ...]


class LiveVersionMessage(Message):
    """The version that is to be called."""

    version: VersionNumber


class ToolTestMessage(Message):
    """Which version is to be tested; by default the one that is called."""

    version: VersionNumber | None = None


class TriedMessage(Answer):
    """One example, as it came out."""

    example: int
    execution: str | None = None
    failure: str | None = None
    """None: it passed."""


class ToolTestAnswer(Answer):
    """What came of a test."""

    version: int
    passed: bool
    examples: tuple[TriedMessage, ...]


class ToolCallMessage(Message):
    """A call of a tool."""

    input: Any
    version: VersionNumber | None = None
    """By default the one that is live."""


class ToolCallAnswer(Answer):
    """What it returned."""

    tool: str
    version: int
    execution: str
    """Its record has what it used, and what it printed."""
    tier: Tier
    reason: str
    """Why it ran there."""
    output: Any
