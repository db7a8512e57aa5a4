"""Java tools at the gateway: which of the executions that one call takes is the call."""

from stockade.gateway.tools_java import Java
from stockade.port import Artefact, Execution, ExecutionRequest, Outcome, SandboxRequest
from stockade.tools.definition import Language, Tool
from stockade.tools.java.compiling import CLASSES
from stockade.tools.java.toolchain import HARNESS

TOOL = Tool("t", Language.JAVA, "public class Tool {}", {"type": "object"}, output_schema=True)


async def test_what_is_made_anew_within_a_call_is_not_the_call() -> None:
    """Else it has the call's idempotency key, and is what a repetition answers with."""
    java = Java()
    seen: list[tuple[tuple[str, ...], bool]] = []

    async def run(
        request: ExecutionRequest, sandbox: SandboxRequest, stdin: bytes, is_call: bool
    ) -> Execution:
        seen.append((tuple(request.artefacts), is_call))
        made = tuple(Artefact(name, b"made", "") for name in request.artefacts)
        if CLASSES in request.artefacts:
            # Meanwhile others needed the room.
            java._tools._toolchains.clear()
            await java._tools._forget(sandbox)
            return Execution(Outcome.OK, "", exit_code=0, result=b'{"findings":[]}', artefacts=made)
        result = b'{"findings":[]}' if stdin != b"{}" else b'{"output":1}'
        return Execution(Outcome.OK, "", exit_code=0, result=result, artefacts=made)

    execution = await java.call(TOOL, b"{}", SandboxRequest(tenant="a"), run)
    assert execution.result == b'{"output":1}'
    built = [is_call for names, is_call in seen if HARNESS in names]
    assert built == [False, False]
    assert [is_call for _, is_call in seen] == [False] * (len(seen) - 1) + [True]
