"""The tier behind a service, and behind a gateway."""

import pytest
from tests.contract.fixtures import Reached, open_kind

from stockade.port import (
    ExecutionRequest,
    InvalidRequest,
    JavaScriptSource,
    PythonSource,
    SandboxRequest,
    Tier,
)

WASM = SandboxRequest(tier=Tier.WASM)


@pytest.mark.parametrize("by_gateway", [False, True], ids=["service", "gateway"])
async def test_it_is_the_same_over_http(by_gateway: bool) -> None:
    async with open_kind(Reached(Tier.WASM, by_gateway=by_gateway), 0) as environment:
        javascript = await environment.run(ExecutionRequest(JavaScriptSource("console.log(6 * 7)")))
        python = await environment.run(ExecutionRequest(PythonSource("print(6 * 7)")), WASM)
        with pytest.raises(InvalidRequest):
            await environment.open_session(WASM)
    for execution in (javascript, python):
        assert (execution.stdout.text(), execution.tier) == ("42\n", Tier.WASM), execution.detail
