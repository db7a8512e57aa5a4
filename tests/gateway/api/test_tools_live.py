"""Tools of each language in real sandboxes, through a gateway."""

import shutil
from typing import Any

import pytest

from stockade.executor.local import open_local
from stockade.port import Tier

from .conftest import OpenGateway

INPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SOURCES = {
    "python": 'def main(input):\n    return {"n": input["n"] * 2}\n',
    "expression": "{'n': input.n * 2}",
    "java": (
        "import java.util.Map;\n"
        "public class Tool {\n"
        "    public static Object main(Map<String, Object> input) {\n"
        '        return Map.of("n", ((Number) input.get("n")).longValue() * 2);\n'
        "    }\n"
        "}\n"
    ),
}
REFUSED = {
    "python": "import os\ndef main(input):\n    return 1\n",
    "expression": "input.n *",
    "java": "public class Tool { public static Object main() { return 1 } }",
}


def tool(language: str, source: str, **changes: Any) -> dict[str, Any]:
    return {
        "language": language,
        "source": source,
        "input_schema": INPUT,
        "output_schema": INPUT,
        "examples": [{"input": {"n": 2}, "output": {"n": 4}}],
        **changes,
    }


@pytest.mark.tier("namespace")
@pytest.mark.timeout(240)
async def test_each_language_from_its_source_to_a_call(open_fake: OpenGateway) -> None:
    async with (
        open_local(tiers={Tier.NAMESPACE, Tier.EXPRESSION}) as environment,
        open_fake(environment=environment) as gateway,
    ):
        for language, source in SOURCES.items():
            if language == "java" and not shutil.which("javac"):
                continue
            path = f"/v1/tools/{language}"
            refused = await gateway.ask(
                "POST", f"{path}/versions", tool(language, REFUSED[language])
            )
            assert refused.status == 422, (language, refused.body)
            assert refused.json["errors"][0]["field"] in ("source", "examples/0"), refused.body
            made = await gateway.ask("POST", f"{path}/versions", tool(language, source))
            assert made.status == 201, (language, made.body)
            assert made.json["chosen_tier"] in ("namespace", "expression")
            key = {"Idempotency-Key": language}
            called = await gateway.ask("POST", f"{path}/call", {"input": {"n": 21}}, headers=key)
            assert called.status == 200, (language, called.body)
            assert called.json["output"] == {"n": 42}
            again = await gateway.ask("POST", f"{path}/call", {"input": {"n": 21}}, headers=key)
            assert again.json == called.json
            logs = (await gateway.ask("GET", f"/v1/executions?tool={language}")).json["executions"]
            assert [each["purpose"] for each in logs][:2] == ["call", "example"]
            assert sum(each["purpose"] == "call" for each in logs) == 1
        # Nothing that was made on the way is left as an artefact of the tenant's.
        assert (await gateway.ask("GET", "/v1/artefacts")).json["artefacts"] == []
