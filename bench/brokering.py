"""A broker in a process of its own, with one credential, and tickets for it."""

import asyncio
import base64
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from stockade.executor.egress.broker_lease import Leases
from stockade.executor.egress.broker_link import BrokerAddress

TENANT = "bench"
CREDENTIAL = "key"
_STARTED_SECONDS = 20.0


class Broker:
    """One that runs."""

    def __init__(self, leases: Leases, control: aiohttp.ClientSession) -> None:
        self.leases = leases
        """For executors."""
        self._control = control

    async def grant(self, rule: str) -> None:
        """The credential goes into each request that the rule is for."""
        body = {
            "secret": secrets.token_urlsafe(32),
            "grants": [{"rule": rule, "way": {"kind": "bearer"}}],
        }
        path = f"http://broker/v1/tenants/{TENANT}/credentials/{CREDENTIAL}"
        async with self._control.put(path, json=body) as answer:
            answer.raise_for_status()

    async def ticket(self, execution: str) -> str:
        """As a sandbox's request has it."""
        body = {"tenant": TENANT, "execution": execution, "credentials": [CREDENTIAL]}
        async with self._control.post("http://broker/v1/tickets", json=body) as answer:
            answer.raise_for_status()
            ticket = str((await answer.json())["ticket"])
        return f"{execution}:{ticket.rpartition(':')[2]}"


@contextlib.asynccontextmanager
async def broker_running(folder: Path, authority: Path) -> AsyncIterator[Broker]:
    """``authority``: signs the destinations' certificates."""
    control_token, data_token = secrets.token_hex(32), secrets.token_hex(32)
    settings = {
        "STOCKADE_BROKER__CONTROL__TOKEN": control_token,
        "STOCKADE_BROKER__DATA__TOKEN": data_token,
        "STOCKADE_BROKER__KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "STOCKADE_BROKER__CONTROL__LISTEN": f"unix:{folder}/control.sock",
        "STOCKADE_BROKER__DATA__LISTEN": f"unix:{folder}/data.sock",
        "STOCKADE_BROKER__DATABASE": f"{folder}/broker.db",
        "STOCKADE_BROKER__EXTRA_CA": str(authority),
    }
    program = Path(sys.executable).with_name("stockade")
    running = await asyncio.create_subprocess_exec(
        *(str(program), "broker"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **settings},
    )
    assert running.stderr is not None
    draining: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(_STARTED_SECONDS):
            while b"listening" not in (line := await running.stderr.readline()):
                if not line:
                    raise RuntimeError("the broker did not start")
        draining = asyncio.create_task(running.stderr.read())
        async with aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=f"{folder}/control.sock"),
            headers={"Authorization": f"Bearer {control_token}"},
        ) as control:
            leases = Leases(BrokerAddress(path=folder / "data.sock"), data_token)
            yield Broker(leases, control)
    finally:
        if running.returncode is None:
            running.terminate()
        await running.wait()
        if draining is not None:
            await draining
