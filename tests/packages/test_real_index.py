"""pip, in a sandbox, from the real index, where this machine reaches it without a proxy."""

import asyncio
import socket
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from stockade.executor.local import open_local
from stockade.packages import Indexes, Recipe
from stockade.port import (
    Command,
    EgressPolicy,
    ExecutionRequest,
    SandboxRequest,
    Tier,
)


@pytest.mark.skipif(
    not Path("/usr/lib/python3/dist-packages/pip").is_dir(), reason="the image has no pip"
)
@pytest.mark.tier("namespace")
async def test_pip_of_the_real_index() -> None:
    index = Indexes()
    addresses = await asyncio.to_thread(reach, f"{index.python}/six/")
    rules = index.rules(Recipe(python=b"six"))
    wanted = SandboxRequest(tier=Tier.NAMESPACE, egress=EgressPolicy(rules))
    # An operator's mirror may stand at an address that is not public elsewhere.
    async with open_local(
        warm=False, tiers={Tier.NAMESPACE}, egress_public_networks=addresses
    ) as environment:
        pip = ("python3", "-m", "pip", "install", "--no-cache-dir", "--target", "new", "six")
        execution = await environment.run(ExecutionRequest(Command(pip)), wanted)
    assert execution.ok, execution
    assert "Successfully installed six" in execution.stdout.text()
    assert execution.egress is not None
    assert execution.egress.connections >= 1


def reach(url: str) -> list[str]:
    """Addresses of the real index, if this machine reaches it without a proxy."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=10) as answer:
            answer.read(1)
        found = socket.getaddrinfo(
            urllib.parse.urlsplit(url).hostname, 443, proto=socket.IPPROTO_TCP
        )
    except OSError as error:
        pytest.skip(f"the real package index cannot be reached: {error}")
    return sorted({str(address[0]) for *_, address in found})
