"""Which tier a program goes to by its language."""

import pytest

from stockade.port import (
    Command,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    JavaScriptSource,
    Program,
    PythonScript,
    PythonSource,
    SandboxRequest,
    Tier,
    TrustLevel,
    Unavailable,
    WasmModule,
    placed,
)
from stockade.port.fake import FakeEnvironment
from stockade.port.policy import OF_LANGUAGES, candidates

PYTHON = PythonSource("1")
EXPRESSION = ExpressionSource("1")
JAVASCRIPT = JavaScriptSource("1")
MODULE = WasmModule(b"\0asm")
COMMAND = Command(("true",))


@pytest.mark.parametrize(
    ("program", "tier"),
    [(EXPRESSION, Tier.EXPRESSION), (JAVASCRIPT, Tier.WASM), (MODULE, Tier.WASM)],
)
def test_a_language_of_one_tier_names_it(program: Program, tier: Tier) -> None:
    asked = SandboxRequest(tenant="a", trust=TrustLevel.HOSTILE)
    found = placed(program, asked)
    assert (found.tier, found.tenant, found.trust) == (tier, "a", TrustLevel.HOSTILE)


@pytest.mark.parametrize("program", [PYTHON, PythonScript("a.py", b""), COMMAND])
def test_a_program_of_an_image_stays_where_it_was_asked_for(program: Program) -> None:
    assert placed(program, SandboxRequest()).tier is None
    assert placed(program, SandboxRequest(tier=Tier.GVISOR)).tier is Tier.GVISOR


@pytest.mark.parametrize(
    ("program", "tier"),
    [
        (EXPRESSION, Tier.NAMESPACE),
        (EXPRESSION, Tier.WASM),
        (JAVASCRIPT, Tier.GVISOR),
        (MODULE, Tier.EXPRESSION),
        (PYTHON, Tier.EXPRESSION),
        (COMMAND, Tier.EXPRESSION),
        (COMMAND, Tier.WASM),
    ],
)
def test_a_tier_that_does_not_run_it_is_refused(program: Program, tier: Tier) -> None:
    with pytest.raises(InvalidRequest, match=type(program).__name__) as caught:
        placed(program, SandboxRequest(tier=tier))
    assert caught.value.field == "tier"


def test_no_level_is_served_by_a_language_unless_it_is_named() -> None:
    for level in TrustLevel:
        assert not set(candidates(level)) & OF_LANGUAGES


@pytest.mark.parametrize("tier", sorted(OF_LANGUAGES))
def test_regulated_code_has_a_machine_of_its_own(tier: Tier) -> None:
    with pytest.raises(InvalidRequest, match="regulated needs vm"):
        SandboxRequest(trust=TrustLevel.REGULATED, tier=tier)


async def test_the_fake_places_too() -> None:
    async with FakeEnvironment(tiers=[Tier.NAMESPACE]) as environment:
        with pytest.raises(Unavailable, match="tier expression"):
            await environment.run(ExecutionRequest(EXPRESSION))
