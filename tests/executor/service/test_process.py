"""The service as a process of its own: it starts, drains, stops, dies, and starts again."""

import asyncio
import contextlib
import glob
import gzip
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.fixtures import REAL
from tests.contract.kit import descendants, living, marker, until
from tests.contract.traits import TRAITS

from stockade.api.frames import FrameType
from stockade.port import Tier
from stockade.port.policy import OWN_KERNEL

from .kit import TOKEN, Caller, Wire

NAMESPACE = pytest.mark.tier("namespace")
SERVED = [each for each in REAL if each.values[0] in (Tier.NAMESPACE, Tier.GVISOR)]
UP = "import os, sys; os.write(1, b'up'); os.execvp('sleep', ['sleep', sys.argv[1]])"


def command(folder: Path, *options: str, tier: Tier = Tier.NAMESPACE) -> list[str]:
    auth = "api_key" if tier in OWN_KERNEL else "dev"
    return [
        *(sys.executable, "-m", "stockade.cli.main", "executor"),
        *("--tier", tier.value, "--auth-mode", auth, "--listen", f"unix:{folder}/s", *options),
    ]


def variables(**more: str) -> dict[str, str]:
    return {**os.environ, "STOCKADE_EXECUTOR_TOKEN": TOKEN, **more}


@asynccontextmanager
async def process(
    folder: Path,
    *options: str,
    tier: Tier = Tier.NAMESPACE,
    under: Sequence[str] = (),
    **more: str,
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", Caller]]:
    """One that listens."""
    log = folder / "log"
    with log.open("ab") as file:
        start = log.stat().st_size
        executor = subprocess.Popen(
            [*under, *command(folder, *options, tier=tier)], stderr=file, env=variables(**more)
        )
        try:
            await until(
                lambda: b'"listening"' in log.read_bytes()[start:] or executor.poll() is not None,
                60,
            )
            assert executor.poll() is None, log.read_text()
            yield executor, Caller(folder / "s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                executor.kill()
            executor.wait()


@NAMESPACE
@pytest.mark.plain_user
async def test_it_runs_programs_and_its_socket_is_not_everybodys(tmp_path: Path) -> None:
    async with process(tmp_path) as (executor, caller):
        mode = (tmp_path / "s").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
        assert (await caller.run("print(6 * 7)")).record.stdout.content == b"42\n"
        assert (await Caller(caller.path, token="").run()).code == "unauthenticated"
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(10) == 0
    assert not (tmp_path / "s").exists()


@NAMESPACE
async def test_what_runs_is_finished_and_new_calls_are_refused(tmp_path: Path) -> None:
    async with process(tmp_path) as (executor, caller):
        body = "import time; print('up', flush=True); time.sleep(1); print('done')"
        async with caller.running(source=body) as (_, _, frames):
            assert (await anext(frames)).payload == b"up\n"
            session = await caller.open(60)
            executor.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in (tmp_path / "log").read_text())
            assert (await caller.call("GET", "/readyz")).status == 503
            assert (await caller.call("GET", "/healthz")).status == 200
            assert (await caller.run()).code == "unavailable"
            assert (await caller.call("POST", "/v1/sandboxes", {})).code == "unavailable"
            path = f"/v1/sandboxes/{session}"
            refused = await caller.call(
                "POST", f"{path}/executions", {"program": {"kind": "python", "source": ""}}
            )
            assert refused.code == "unavailable"
            # What is open can be brought to safety.
            assert (await caller.call("GET", f"{path}/workspace")).status == 200
            assert (await caller.call("DELETE", path)).status == 204
            rest = [frame async for frame in frames]
        assert b"done\n" in [frame.payload for frame in rest]
        assert rest[-1].type is FrameType.END
        assert executor.wait(10) == 0


@NAMESPACE
async def test_the_deadline_cancels_what_runs(tmp_path: Path) -> None:
    async with process(tmp_path, STOCKADE_EXECUTOR__DRAIN_SECONDS="0.5") as (executor, caller):
        await caller.open(60)
        async with caller.running(source="import time; time.sleep(60)") as (_, _, frames):
            began = time.monotonic()
            executor.send_signal(signal.SIGTERM)
            rest = [frame async for frame in frames]
        assert rest[-1].type is FrameType.END
        assert b'"cancelled"' in rest[-2].payload
        assert executor.wait(10) == 0
        assert 0.4 < time.monotonic() - began < 30


@NAMESPACE
async def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    async with process(tmp_path) as (executor, caller):
        async with caller.running(source="import time; time.sleep(60)") as (_, _, frames):
            executor.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in (tmp_path / "log").read_text())
            executor.send_signal(signal.SIGTERM)
            rest = [frame async for frame in frames]
        assert b'"cancelled"' in rest[-2].payload
        assert executor.wait(8) == 0


@NAMESPACE
async def test_a_signal_ends_a_start(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        executor = subprocess.Popen(command(tmp_path), stderr=log, env=variables())
    await until(lambda: "starting" in (tmp_path / "log").read_text())
    executor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(executor.wait, 10) == 0
    assert "listening" not in (tmp_path / "log").read_text()
    assert not (tmp_path / "s").exists()


@NAMESPACE
async def test_draining_by_a_call(tmp_path: Path) -> None:
    async with process(tmp_path) as (_, caller):
        assert (await caller.call("POST", "/v1/drain", b"", {"Authorization": None})).status == 401
        answer = await caller.call("POST", "/v1/drain", b"", {"Stockade-Tenant": None})
        assert (answer.status, answer.json) == (202, {"executions": 0, "sandboxes": 0})
        assert (await caller.run()).code == "unavailable"


@pytest.mark.parametrize("tier", SERVED)
async def test_killed_it_leaves_nothing_and_starts_again(tier: Tier, tmp_path: Path) -> None:
    mark = marker()
    mounts = Path("/proc/self/mountinfo").read_text()
    async with process(tmp_path, tier=tier) as (executor, caller):
        body = {"kind": "python", "source": UP, "arguments": [mark]}
        session = f"/v1/sandboxes/{await caller.open(3600)}"
        idle = await caller.open(3600)
        await caller.call("PUT", f"/v1/sandboxes/{idle}/files/f", b"x")
        paused = f"/v1/sandboxes/{await caller.open(3600)}"
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for path in (
                "/v1/executions",
                "/v1/executions",
                f"{session}/executions",
                f"{paused}/executions",
            ):
                _, _, frames = await stack.enter_async_context(caller.running(path, program=body))
                assert (await anext(frames)).payload == b"up"
                streams.append(frames)
            assert (await caller.call("POST", f"{paused}/pause")).status == 204
            if TRAITS[tier].shows_guests:
                await until(lambda: len(living(mark)) >= 4)
            below = set(descendants(executor.pid))
            executor.kill()
            executor.wait(5)
            # Its callers see a cut, never an end.
            for frames in streams:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    [frame async for frame in frames]
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert living(mark) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert (tmp_path / "s").exists(), "what a killed one leaves"
    async with process(tmp_path, tier=tier) as (second, caller):
        assert (await caller.run("print(1)")).record.ok
        assert (await caller.call("GET", f"/v1/sandboxes/{idle}")).code == "not_found"
        assert not glob.glob(f"/sys/fs/cgroup/**/stockade-{executor.pid}-*", recursive=True)  # noqa: PTH207
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0


@NAMESPACE
async def test_one_that_lives_is_not_pushed_aside(tmp_path: Path) -> None:
    async with process(tmp_path) as (_, caller):
        second = await asyncio.to_thread(
            subprocess.run,
            command(tmp_path),
            check=False,
            capture_output=True,
            env=variables(),
            timeout=60,
        )
        assert second.returncode == 74
        assert b"in use" in second.stderr
        assert (await caller.run("print(1)")).record.ok


def refused(folder: Path, *options: str, **more: str) -> str:
    """What it says when it does not start."""
    found = subprocess.run(
        command(folder, *options),
        check=False,
        capture_output=True,
        env=variables(**more),
        timeout=60,
    )
    assert found.returncode not in (0, 70), found
    assert TOKEN.encode() not in found.stderr
    return found.stderr.decode()


def test_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    assert "there is no token" in refused(tmp_path, STOCKADE_EXECUTOR_TOKEN="")
    assert "can be guessed" in refused(tmp_path, STOCKADE_EXECUTOR_TOKEN="changeme")


def test_it_does_not_start_in_the_clear_off_loopback(tmp_path: Path) -> None:
    assert "in the clear" in refused(tmp_path, "--listen", "tcp:0.0.0.0:0")


def test_it_does_not_start_for_strangers_on_the_hosts_kernel(tmp_path: Path) -> None:
    words = refused(tmp_path, "--auth-mode", "api_key")
    assert "do not share this machine's kernel" in words


def test_it_does_not_take_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    assert "in use" in refused(tmp_path)
    assert (tmp_path / "s").read_text() == "precious"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[executor]\nlisten_on = 'x'\n", "listen"),
        ("[executor]\nsocket_group = 'nobody-has-this'\n", "there is no group"),
        ("[executor\n", "line 1"),
    ],
)
def test_a_configuration_that_is_not_understood(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "stockade.toml"
    config.write_text(text)
    assert words in refused(tmp_path, "--config", str(config))


@NAMESPACE
async def test_a_configuration_and_a_token_in_a_file(tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "stockade.toml"
    token.touch(0o600)
    token.write_text(TOKEN)
    config.write_text(f"[executor]\ntoken_file = {json.dumps(str(token))}\nmax_lease_seconds = 7\n")
    async with process(tmp_path, "--config", str(config), STOCKADE_EXECUTOR_TOKEN="") as (
        executor,
        caller,
    ):
        assert TOKEN.encode() not in Path(f"/proc/{executor.pid}/cmdline").read_bytes()
        answer = await caller.call("POST", "/v1/sandboxes", {"lease_seconds": 8})
        assert "7 s are the most" in answer.json["detail"]


def certificates(folder: Path) -> None:
    """An authority, a server and a client of it, and a client of nobody."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl(*new, "-x509", "-keyout", "none.key", "-out", "none.pem", "-subj", "/CN=none")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key")
        openssl(*signing, "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names")


@NAMESPACE
async def test_mutual_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "stockade.toml"
    config.write_text(
        f"[executor.tls]\ncertificate = '{tmp_path}/server.pem'\nkey = '{tmp_path}/server.key'\n"
        f"client_ca = '{tmp_path}/ca.pem'\n"
    )
    address = f"tcp:127.0.0.1:{port}"

    async def health(certificate: str | None, most: ssl.TLSVersion | None = None) -> int:
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        if most is not None:
            context.maximum_version = most
        if certificate is not None:
            context.load_cert_chain(
                tmp_path / f"{certificate}.pem", tmp_path / f"{certificate}.key"
            )
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        async with Wire(reader, writer) as wire:
            await wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            return (await wire.answer()).status

    async with process(
        tmp_path,
        *("--config", str(config), "--listen", address),
        STOCKADE_EXECUTOR__MOST_CONNECTIONS="20",
        STOCKADE_EXECUTOR__HEADER_SECONDS="1",
    ) as (
        executor,
        _,
    ):
        assert await health("client") == 200
        assert await health("client", ssl.TLSVersion.TLSv1_2) == 200
        for certificate in ("none", None):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await health(certificate)
        # Peers that begin no handshake are few at a time, and not for long.
        before = len(os.listdir(f"/proc/{executor.pid}/fd"))  # noqa: PTH208
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        await asyncio.sleep(0.3)
        assert len(os.listdir(f"/proc/{executor.pid}/fd")) - before < 40  # noqa: PTH208
        await asyncio.sleep(1.5)
        assert await health("client") == 200
        for _, writer in silent:
            writer.close()
        closing = (writer.wait_closed() for _, writer in silent)
        await asyncio.gather(*closing, return_exceptions=True)
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(10) == 0


@NAMESPACE
async def test_traces_are_sent_where_they_are_asked_for(tmp_path: Path) -> None:
    """One span, below the caller's own."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await heard.put(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    collector = await asyncio.start_server(collect, "127.0.0.1", 0)
    port = collector.sockets[0].getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}/v1/traces"
    async with process(tmp_path, STOCKADE_EXECUTOR__OTLP_ENDPOINT=endpoint) as (executor, caller):
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        headers: dict[str, str | None] = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        assert (await caller.run("print(1)", headers)).record.ok
        executor.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            sent = await heard.get()
    collector.close()
    sent = gzip.decompress(sent) if sent[:2] == b"\x1f\x8b" else sent
    assert bytes.fromhex(trace) in sent
    assert b"executor.execution" in sent
    assert b"stockade.ran" in sent


UNIT = Path(__file__).parents[3] / "deploy/systemd/stockade-executor.service"


@pytest.mark.parametrize("tier", SERVED)
@pytest.mark.skipif(os.geteuid() != 0, reason="the unit is for root")
async def test_the_units_capabilities_are_enough(tier: Tier, tmp_path: Path) -> None:
    lines = UNIT.read_text().splitlines()
    assert "NoNewPrivileges=yes" in lines
    sets = [line.partition("=")[2] for line in lines if line.startswith("CapabilityBoundingSet=")]
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in " ".join(sets).split()]
    under = [
        "setpriv",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set",
        ",".join(["-all", *kept]),
    ]
    async with process(tmp_path, tier=tier, under=under) as (executor, caller):
        status = Path(f"/proc/{executor.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "CapBnd:\t000001ffffffffff" not in status
        assert (await caller.run("print(1)")).record.ok
        session = f"/v1/sandboxes/{await caller.open()}"
        body = "import time; time.sleep(60)"
        async with caller.running(f"{session}/executions", source=body):
            assert (await caller.call("POST", f"{session}/pause")).status == 204
            assert (await caller.call("DELETE", session)).status == 204
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(20) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_is_one(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/stockade/bin/stockade", "/bin/true")
    unit.write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (0, "")
