"""Executor and gateway as processes of their own, for what measures them. Loopback only."""

import asyncio
import contextlib
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from stockade.client import RemoteEnvironment, open_remote
from stockade.port import Tier

STOCKADE = str(Path(sys.executable).with_name("stockade"))
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


class Service:
    """One of them. It can be killed and started again."""

    def __init__(self, name: str, words: tuple[str, ...], log: Path) -> None:
        self.name = name
        self._words = words
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; who needs it ready waits for that."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [STOCKADE, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As the worst host would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """As systemd does; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} did not stop: {self.words}") from None

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def words(self) -> str:
        """The last that it said."""
        return self._log.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running:
            self.stop()


class Services:
    """A configuration in a folder, and the two processes that it is for."""

    def __init__(
        self, folder: Path, tiers: tuple[Tier, ...] = (Tier.NAMESPACE,), port: int | None = None
    ) -> None:
        """``port``: of 127.0.0.1, for what speaks to no unix socket."""
        self.folder = folder
        self.tiers = tiers
        self.executor_url = f"unix:{folder}/executor.sock"
        self._port = port
        listen = f'unix = "{folder}/gateway.sock"'
        self.gateway_url = f"unix:{folder}/gateway.sock"
        if port is not None:
            listen = f'host = "127.0.0.1", port = {port}'
            self.gateway_url = f"http://127.0.0.1:{port}"
        self.token = secrets.token_hex(32)
        token_file = folder / "token"
        token_file.touch(0o600)
        token_file.write_text(self.token)
        self.configuration = folder / "stockade.toml"
        names = ", ".join(f'"{tier}"' for tier in tiers)
        self.configuration.write_text(
            f"""
[executor]
auth_mode = "dev"
listen = "unix:{folder}/executor.sock"
token_file = "{token_file}"
tiers = [{names}]

[gateway]
database_url = "sqlite:///{folder}/gateway.db"
listen = {{ {listen} }}
executors = [
    {{ name = "one", url = "unix://{folder}/executor.sock", token_file = "{token_file}" }},
]
[gateway.artefacts.store]
where = "{folder}/artefacts"
"""
        )
        self.configuration.chmod(0o600)
        config = ("--config", str(self.configuration))
        self.executor = Service("executor", ("executor", *config), folder / "executor.log")
        self.gateway = Service("gateway", ("gateway", *config), folder / "gateway.log")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Both, from ready to stopped: the gateway stops first."""
        self._call("gateway", "--config", str(self.configuration), "--migrate")
        with self.executor, self.gateway:
            await self.wait_until_ready()
            yield self

    async def wait_until_ready(self) -> None:
        """The gateway is ready when it has an executor that is."""
        deadline = time.monotonic() + _START_SECONDS
        async with self.raw_gateway("") as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with http.get("/readyz") as answer:
                        if answer.status == 200:
                            return
                for service in (self.executor, self.gateway):
                    if not service.running:
                        raise RuntimeError(f"the {service.name} ended: {service.words}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not ready: {self.executor.words}; {self.gateway.words}")
                await asyncio.sleep(0.05)

    def add_tenant(self, name: str) -> str:
        """A tenant that may use the tiers without a bound that matters; a key of it."""
        tiers = [word for tier in self.tiers for word in ("--tier", tier)]
        budgets = [
            word
            for budget in (
                "concurrency=1000",
                "sandboxes=1000",
                "executions_per_minute=1000000",
                "cpu_seconds_per_day=1000000",
                "memory_seconds_per_day=1000000000",
            )
            for word in ("--budget", budget)
        ]
        self.command("tenant", "add", name, *tiers, *budgets)
        return str(json.loads(self.command("key", "add", name, "--json"))["key"])

    def command(self, *words: str) -> str:
        """What such a command of administration prints."""
        return self._call(*words, "--database", f"sqlite:///{self.folder}/gateway.db")

    def _call(self, *words: str) -> str:
        done = subprocess.run([STOCKADE, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"stockade {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def open_gateway(self, key: str) -> AbstractAsyncContextManager[RemoteEnvironment]:
        """As a platform does."""
        return open_remote(self.gateway_url, key=key)

    def open_executor(self, tenant: str) -> AbstractAsyncContextManager[RemoteEnvironment]:
        """As a gateway does."""
        return open_remote(self.executor_url, key=self.token, tenant=tenant)

    def raw_gateway(self, key: str) -> aiohttp.ClientSession:
        """Requests that no client of ours makes."""
        unix = self._port is None
        return aiohttp.ClientSession(
            "http://gateway" if unix else self.gateway_url,
            connector=aiohttp.UnixConnector(f"{self.folder}/gateway.sock") if unix else None,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
