"""What the egress proxy adds to a connection, and the broker to a request."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import trustme

from bench.brokering import CREDENTIAL, TENANT, Broker, broker_running
from bench.report import Promise, Report, Summary, Table, milliseconds, ratio
from stockade.executor.local import open_local
from stockade.port import (
    GIB,
    EgressPolicy,
    EgressRule,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    PythonSource,
    SandboxRequest,
    Session,
    Tier,
)

PROGRAMS = Path(__file__).parent / "programs"
CLIENT = (PROGRAMS / "web_client.py").read_text()
ADDED_TARGET = 0.003
BROKERED_TARGET = 0.008
BROKERED = f"by the broker, {Tier.NAMESPACE}"
DOWNLOAD_TARGET = 1 / 3
LARGE_BYTES = 200 * 1_000_000
AT_ONCE = 200
_REQUESTS = 15
_LIMITS = Limits(wall_seconds=300, cpu_seconds=300, memory_bytes=GIB, processes=512)
_TIERS = (Tier.NAMESPACE, Tier.GVISOR)
_KINDS = (("TCP", False), ("TLS", True))  # of a broker's business only the second


class Ways:
    """The same client, on the host and in sandboxes."""

    def __init__(self, port: int, tls_port: int, authority: str) -> None:
        self._port = port
        self._tls_port = tls_port
        self._authority = authority
        self._sessions: dict[str, Session] = {}

    async def open(
        self, environment: ExecutionEnvironment, stack: contextlib.AsyncExitStack
    ) -> None:
        """A session of each tier, which may reach the two servers."""
        rules = tuple(
            EgressRule.parse(f"{scheme}://localhost:{port} in 127.0.0.0/8")
            for scheme, port in (("tcp", self._port), ("https", self._tls_port))
        )
        policy = EgressPolicy(rules=rules, connections=256)
        for tier in _TIERS:
            request = SandboxRequest(tier=tier, limits=_LIMITS, egress=policy)
            session = await environment.open_session(request)
            self._sessions[f"through the proxy, {tier}"] = await stack.enter_async_context(session)

    async def open_brokered(
        self, environment: ExecutionEnvironment, broker: Broker, stack: contextlib.AsyncExitStack
    ) -> None:
        """A session whose requests to the server with TLS get a credential."""
        await broker.grant(f"https://localhost:{self._tls_port} in 127.0.0.0/8")
        request = SandboxRequest(
            tenant=TENANT,
            tier=Tier.NAMESPACE,
            limits=_LIMITS,
            egress=EgressPolicy(credentials=(CREDENTIAL,), connections=256),
            ticket=await broker.ticket("bench"),
        )
        session = await environment.open_session(request)
        self._sessions[BROKERED] = await stack.enter_async_context(session)
        # The sandbox's certificate for the server is made by the first request.
        await self.time(BROKERED, "connect", tls=True, count=1)

    @property
    def names(self) -> tuple[str, ...]:
        """``direct`` first."""
        return ("direct", *self._sessions)

    async def time(
        self, way: str, what: str, *, tls: bool, count: int, size: int = 0
    ) -> list[float]:
        """What the client measured, in seconds."""
        arguments = [
            what,
            "localhost",
            str(self._tls_port if tls else self._port),
            str(count),
            str(size),
        ]
        if way == "direct":
            return await _bare([*arguments, self._authority] if tls else arguments)
        session = self._sessions[way]
        environment = {}
        if way != BROKERED:  # where the variables name what the sandbox is to trust
            # The server's own certificate has to be known inside as well.
            await session.write_file("authority.pem", Path(self._authority).read_bytes())
            environment["SSL_CERT_FILE"] = "/workspace/authority.pem"
        program = PythonSource(CLIENT, tuple([*arguments, "ca"] if tls else arguments))
        execution = await session.run(ExecutionRequest(program, environment=environment))
        if not execution.ok:
            raise RuntimeError(f"{execution.detail}: {execution.stderr.text()}")
        times: list[float] = json.loads(execution.stdout.content)
        return times


async def _bare(arguments: list[str]) -> list[float]:
    running = await asyncio.create_subprocess_exec(
        *("/usr/bin/python3", "-I", str(PROGRAMS / "web_client.py"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={},
    )
    said, _ = await running.communicate()
    if running.returncode:
        raise RuntimeError("the client failed on the host")
    times: list[float] = json.loads(said)
    return times


async def measure(rounds: int) -> Report:
    """In turns: a few requests of each way, then the next."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-")))
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(folder / "authority.pem")
        certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        plain = await stack.enter_async_context(_server())
        tls = await stack.enter_async_context(
            _server(str(folder / "server.pem"), str(folder / "server.pem"))
        )
        broker = await stack.enter_async_context(broker_running(folder, folder / "authority.pem"))
        environment = await stack.enter_async_context(
            open_local(tiers=set(_TIERS), open_lease=broker.leases)
        )
        ways = Ways(plain, tls, str(folder / "authority.pem"))
        await ways.open(environment, stack)
        await ways.open_brokered(environment, broker, stack)
        small: dict[tuple[str, str], list[float]] = {}
        large: dict[tuple[str, str], list[float]] = {}
        many: dict[str, list[float]] = {}
        for _ in range(max(1, rounds // 5)):
            for way in ways.names:
                for kind, tls_too in _KINDS[way == BROKERED :]:
                    for what in ("connect", "keep"):
                        times = await ways.time(way, what, tls=tls_too, count=_REQUESTS)
                        small.setdefault((way, f"{kind}, {what}"), []).extend(times)
        for _ in range(max(1, rounds // 10)):
            for way in ways.names:
                for kind, tls_too in _KINDS[way == BROKERED :]:
                    times = await ways.time(way, "large", tls=tls_too, count=1, size=LARGE_BYTES)
                    large.setdefault((way, kind), []).extend(times)
                if way != BROKERED:
                    many.setdefault(way, []).extend(
                        await ways.time(way, "many", tls=False, count=AT_ONCE)
                    )
    return _report(ways.names, small, large, many)


def _report(
    names: tuple[str, ...],
    small: dict[tuple[str, str], list[float]],
    large: dict[tuple[str, str], list[float]],
    many: dict[str, list[float]],
) -> Report:
    summaries = {key: Summary.of(times) for key, times in small.items()}
    words = {"connect": "a connection each", "keep": "one connection"}
    rows = []
    for (way, what), summary in summaries.items():
        direct = summaries["direct", what]
        kind, _, how = what.partition(", ")
        rows.append(
            (
                f"{kind}, {words[how]}: {way}",
                milliseconds(summary.median),
                milliseconds(summary.p99),
                milliseconds(summary.median - direct.median),
                ratio(summary.median, direct.median),
            )
        )
    rates = {key: LARGE_BYTES / Summary.of(times).median for key, times in large.items()}
    proxied = names[1]
    added = summaries[proxied, "TCP, connect"].median - summaries["direct", "TCP, connect"].median
    brokered = max(
        summaries[BROKERED, what].median - summaries["direct", what].median
        for what in ("TLS, connect", "TLS, keep")
    )
    share = rates[proxied, "TLS"] / rates["direct", "TLS"]
    plain_share = rates[proxied, "TCP"] / rates["direct", "TCP"]
    return Report(
        "egress",
        (
            Table(
                "Egress: a small request to a server on the same machine",
                ("what", "median ms", "p99 ms", "more than direct, ms", "median / direct"),
                tuple(rows),
                (
                    "By CONNECT, from a Python client in the sandbox; direct: the same on the host.",
                    "By the broker: TLS ended, a credential put in, TLS to the server anew; the "
                    "sandbox's certificate is there. Of a connection each and one connection the "
                    "promise is for the slower.",
                ),
            ),
            Table(
                f"Egress: {LARGE_BYTES // 1_000_000} MB down, and {AT_ONCE} connections at once",
                ("what", "MB/s", "of direct"),
                (
                    *(
                        (
                            f"{kind}: {way}",
                            f"{rate / 1e6:.0f}",
                            ratio(rate, rates["direct", kind]),
                        )
                        for (way, kind), rate in rates.items()
                    ),
                    *(
                        (
                            f"{AT_ONCE} connections opened, asked and answered: {way}",
                            f"{milliseconds(Summary.of(times).median)} ms",
                            ratio(Summary.of(many["direct"]).median, Summary.of(times).median),
                        )
                        for way, times in many.items()
                    ),
                ),
            ),
        ),
        (
            Promise(
                "connect and a small request, more than direct, median, namespace",
                f"<= {milliseconds(ADDED_TARGET)} ms",
                f"{milliseconds(added)} ms",
                added <= ADDED_TARGET,
            ),
            Promise(
                "a brokered request, more than direct, median, namespace",
                f"<= {milliseconds(BROKERED_TARGET)} ms",
                f"{milliseconds(brokered)} ms",
                brokered <= BROKERED_TARGET,
            ),
            Promise(
                "200 MB down over TLS, of direct, namespace",
                f">= {DOWNLOAD_TARGET:.2f}",
                f"{share:.2f}",
                share >= DOWNLOAD_TARGET,
            ),
            Promise(
                "200 MB down without TLS, of direct, namespace",
                f">= {DOWNLOAD_TARGET:.2f}",
                f"{plain_share:.2f}",
                plain_share >= DOWNLOAD_TARGET,
            ),
        ),
        {f"{way}, {what}": {"samples": times} for (way, what), times in small.items()}
        | {f"{way}, {kind}, large": {"samples": times} for (way, kind), times in large.items()},
    )


@contextlib.asynccontextmanager
async def _server(*arguments: str) -> AsyncIterator[int]:
    running = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAMS / "web_server.py"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert running.stdout is not None
    try:
        yield int(await running.stdout.readline())
    finally:
        running.kill()
        await running.wait()
