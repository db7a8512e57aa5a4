"""What the tier cannot do, said before anything runs."""

from stockade.port import NO_EGRESS, ExecutionRequest, InvalidRequest, SandboxRequest, Tier
from stockade.port.program import check_language


def check(request: ExecutionRequest, sandbox: SandboxRequest) -> None:
    """Raises :class:`InvalidRequest` for a request with what WebAssembly has not here."""
    check_language(request.program, Tier.WASM)  # where its executor has no other tier
    if sandbox.egress != NO_EGRESS:
        raise InvalidRequest(
            "egress", "a program in WebAssembly has no sockets; leave it out, or name another tier"
        )
    if request.terminal is not None:
        raise InvalidRequest(
            "terminal",
            "a program in WebAssembly has no terminal; leave it out, or name another tier",
        )


def check_session() -> None:
    """Raises :class:`InvalidRequest`: an instance serves one program."""
    raise InvalidRequest(
        "tier",
        "a program in WebAssembly has an instance of its own, and there are no sessions; use run",
    )
