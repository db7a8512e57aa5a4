"""What a program may reach, on every tier: through the proxy, and by no other way."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from stockade.port import (
    EgressEvent,
    EgressPolicy,
    EgressRule,
    Execution,
    ExecutionEnvironment,
    InvalidRequest,
    Limits,
    Outcome,
    Refused,
    SandboxRequest,
)

from .fixtures import ORIGIN
from .kit import explain, source, stdout_of

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]

PATTERN = hashlib.shake_256(b"egress").digest(8_000_000)
DIGEST = hashlib.sha256(PATTERN).hexdigest()
PRELUDE = """
import hashlib, os, socket, struct, sys, threading
def connect():
    return socket.create_connection(("127.0.0.1", 3128), timeout=60)
def head(s):
    got = b""
    while not got.endswith(b"\\r\\n\\r\\n"):
        piece = s.recv(1)
        if not piece: break
        got += piece
    return got
def tunnel(host, port):
    s = connect()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
    answer = head(s)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return s
def rest(s):
    got = b""
    while piece := s.recv(65536): got += piece
    return got
"""


class Origin:
    """A server on the host's loopback, which the tests' policies name by its address."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line.startswith(b"GET "):
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        elif line == b"download\n":
            writer.write(PATTERN)
        elif line == b"upload\n":
            content = await reader.read(-1)
            writer.write(hashlib.sha256(content).hexdigest().encode())
        elif line == b"hang\n":
            await reader.read(-1)
        else:
            writer.write(line)
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        await writer.drain()


@pytest_asyncio.fixture(loop_scope="module")
async def origin() -> AsyncIterator[Origin]:
    served = Origin()
    served.port = ORIGIN.getsockname()[1]
    server = await asyncio.start_server(served.serve, sock=ORIGIN.dup())
    async with server:
        yield served
        server.close()


def allowing(*rules: str, **more: object) -> SandboxRequest:
    policy = EgressPolicy(tuple(map(EgressRule.parse, rules)), **more)  # type: ignore[arg-type]
    return SandboxRequest(egress=policy, limits=Limits(open_files=1024, wall_seconds=60))


def tcp(origin: Origin) -> SandboxRequest:
    return allowing(f"tcp://127.0.0.1:{origin.port}", connections=256)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not come to be so")


async def test_an_allowed_destination_is_reached_by_connect(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"s = tunnel('127.0.0.1', {origin.port}); s.sendall(b'echo\\n')\n"
    program += "s.shutdown(socket.SHUT_WR); print(rest(s))"
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    assert stdout_of(ran) == "b'echo\\n'\n"
    assert ran.egress is not None
    assert (ran.egress.connections, ran.egress.denials) == (1, 0)
    assert ran.egress.sent_bytes == 5
    assert ran.egress.received_bytes == 5


async def test_an_allowed_destination_is_reached_by_plain_http(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = "import urllib.request\n"
    program += "import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
    program += f"print(urllib.request.urlopen('http://127.0.0.1:{origin.port}/x').read())"
    ran = await real.run(source(program), allowing(f"http://127.0.0.1:{origin.port}"))
    assert stdout_of(ran) == "b'hello'\n"


async def test_an_allowed_destination_is_reached_by_socks(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"""
s = connect(); s.sendall(b"\\5\\1\\0"); assert s.recv(2) == b"\\5\\0"
s.sendall(b"\\5\\1\\0\\1" + socket.inet_aton("127.0.0.1") + struct.pack("!H", {origin.port}))
assert s.recv(10)[:2] == b"\\5\\0"
s.sendall(b"echo\\n"); s.shutdown(socket.SHUT_WR); print(rest(s))
"""
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    assert stdout_of(ran) == "b'echo\\n'\n"


async def test_what_no_rule_allows_is_denied_and_told(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = """
for _ in range(3):
    s = connect(); s.sendall(b"CONNECT api.example.com:443 HTTP/1.1\\r\\n\\r\\n")
    print(rest(s).decode())
s = connect(); s.sendall(b"\\5\\1\\0"); assert s.recv(2) == b"\\5\\0"
s.sendall(b"\\5\\1\\0\\3\\x0fapi.example.org" + struct.pack("!H", 443)); print(s.recv(2))
sys.exit(7)
"""
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    assert ran.outcome is Outcome.EGRESS_DENIED, explain(ran)
    assert ran.exit_code == 7
    assert "api.example.com:443" in ran.detail
    answers = ran.stdout.text()
    assert answers.count("HTTP/1.1 403") == 3
    assert "--allow api.example.com:443" in answers
    assert "b'\\x05\\x02'" in answers
    assert ran.egress is not None
    assert {each.destination: each.count for each in ran.egress.denied} == {
        "api.example.com:443": 3,
        "api.example.org:443": 1,
    }
    assert ran.egress.connections == 0
    assert origin.connections == 0


async def test_a_success_with_denials_stays_one(real: ExecutionEnvironment) -> None:
    program = "s = connect(); s.sendall(b'CONNECT a.example:443 HTTP/1.1\\r\\n\\r\\n'); rest(s)"
    ran = await real.run(source(PRELUDE + program), allowing(watched=True))
    assert ran.ok, explain(ran)
    assert ran.egress is not None
    assert [each.destination for each in ran.egress.denied] == ["a.example:443"]


async def test_without_egress_nobody_listens_and_nothing_says_so(
    real: ExecutionEnvironment,
) -> None:
    program = """
print([name for name in os.environ if "proxy" in name.lower() or "JAVA" in name])
try: connect()
except ConnectionRefusedError: print("refused")
"""
    ran = await real.run(source(PRELUDE + program))
    assert stdout_of(ran) == "[]\nrefused\n"
    assert ran.egress is None


async def test_variables_name_the_proxy_and_the_requests_own_come_first(
    real: ExecutionEnvironment,
) -> None:
    program = "import os\nprint(os.environ['https_proxy'], os.environ['ALL_PROXY'])"
    asked = source(program, environment={"ALL_PROXY": "mine"})
    assert stdout_of(await real.run(asked, allowing(watched=True))) == (
        "http://127.0.0.1:3128 mine\n"
    )


async def test_no_other_way_leads_out(real: ExecutionEnvironment, origin: Origin) -> None:
    program = f"""
def attempt(name, do):
    try: print(name, do())
    except OSError: print(name, "refused")
def udp(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.5)
    s.sendto(b"x", address); return s.recv(10)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", {origin.port}), 2))
attempt("public", lambda: socket.create_connection(("8.8.8.8", 53), 2))
attempt("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 2))
attempt("dns", lambda: udp(("8.8.8.8", 53)))
attempt("own dns", lambda: udp(("127.0.0.1", 53)))
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
attempt("icmp", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("ping", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))
attempt("bind", lambda: socket.create_server(("127.0.0.1", 3128), reuse_port=True))
"""
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    names = ("tcp", "public", "metadata", "dns", "own dns", "name", "icmp", "ping", "bind")
    assert stdout_of(ran) == "".join(f"{name} refused\n" for name in names)
    assert origin.connections == 0


async def test_much_goes_both_ways_whole(real: ExecutionEnvironment, origin: Origin) -> None:
    program = f"""
s = tunnel("127.0.0.1", {origin.port}); s.sendall(b"download\\n"); s.shutdown(socket.SHUT_WR)
content = rest(s); print(hashlib.sha256(content).hexdigest())
s = tunnel("127.0.0.1", {origin.port}); s.sendall(b"upload\\n" + content); s.shutdown(socket.SHUT_WR)
print(rest(s).decode())
"""
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    assert stdout_of(ran) == f"{DIGEST}\n{DIGEST}\n"
    assert ran.egress is not None
    assert ran.egress.sent_bytes >= len(PATTERN)
    assert ran.egress.received_bytes >= len(PATTERN)


async def test_two_hundred_connections_at_once(real: ExecutionEnvironment, origin: Origin) -> None:
    program = f"""
all = [tunnel("127.0.0.1", {origin.port}) for _ in range(200)]
for number, s in enumerate(all): s.sendall(b"%d\\n" % number)
for number, s in enumerate(all): assert s.recv(10) == b"%d\\n" % number
print("all")
"""
    ran = await real.run(source(PRELUDE + program), tcp(origin))
    assert stdout_of(ran) == "all\n"
    assert ran.egress is not None
    assert ran.egress.connections == 200
    await until(lambda: origin.open == 0)


async def test_more_than_the_ceiling_wait_for_their_turn(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"""
def one():
    s = tunnel("127.0.0.1", {origin.port}); s.sendall(b"x\\n"); s.shutdown(socket.SHUT_WR); rest(s)
    s.close()
threads = [threading.Thread(target=one) for _ in range(20)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""
    few = allowing(f"tcp://127.0.0.1:{origin.port}", connections=2)
    ran = await real.run(source(PRELUDE + program), few)
    assert stdout_of(ran) == "done\n"
    assert ran.egress is not None
    assert ran.egress.connections == 20


async def test_the_end_of_an_execution_is_that_of_its_connections(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"""
all = [tunnel("127.0.0.1", {origin.port}) for _ in range(5)]
for s in all: s.sendall(b"hang\\n")
print("up", flush=True)
import time; time.sleep(60)
"""
    heard = asyncio.Event()

    async def hear(_stream: object, _data: bytes) -> None:
        heard.set()

    running = await real.start(source(PRELUDE + program), tcp(origin), on_output=hear)
    await heard.wait()
    await running.cancel()
    ran = await running.wait()
    assert ran.outcome is Outcome.CANCELLED, explain(ran)
    await until(lambda: origin.open == 0)
    # One that ends by itself does not wait for what hangs either.
    ran = await real.run(source(PRELUDE + program.replace("time.sleep(60)", "")), tcp(origin))
    assert stdout_of(ran) == "up\n"
    await until(lambda: origin.open == 0)


async def test_programs_of_a_session_are_counted_apart(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"""
for _ in range(int(sys.argv[1])):
    s = tunnel("127.0.0.1", {origin.port}); s.sendall(b"hello\\n"); s.shutdown(socket.SHUT_WR)
    rest(s)
s = connect(); s.sendall(b"CONNECT %s:443 HTTP/1.1\\r\\n\\r\\n" % sys.argv[2].encode()); rest(s)
"""
    async with await real.open_session(tcp(origin)) as session:
        records: list[Execution] = [
            await session.run(source(PRELUDE + program, count, name))
            for count, name in (("2", "a.example"), ("3", "b.example"))
        ]
    assert all(record.ok for record in records), list(map(explain, records))
    uses = [record.egress for record in records]
    assert [use and (use.connections, use.received_bytes) for use in uses] == [(2, 12), (3, 18)]
    assert [use and [each.destination for each in use.denied] for use in uses] == [
        ["a.example:443"],
        ["b.example:443"],
    ]


async def test_what_becomes_of_connections_is_told_as_it_happens(
    real: ExecutionEnvironment, origin: Origin
) -> None:
    program = f"""
s = tunnel("127.0.0.1", {origin.port}); s.sendall(b"x\\n"); s.shutdown(socket.SHUT_WR); rest(s)
s.close()
s = connect(); s.sendall(b"CONNECT a.example:443 HTTP/1.1\\r\\n\\r\\n"); rest(s)
"""
    told: list[EgressEvent] = []

    async def hear(event: EgressEvent) -> None:
        told.append(event)

    ran = await real.run(source(PRELUDE + program), tcp(origin), on_egress=hear)
    assert ran.ok, explain(ran)
    verdicts = [(event.verdict, event.destination) for event in told]
    assert ("allowed", f"127.0.0.1:{origin.port}") in verdicts
    assert ("denied", "a.example:443") in verdicts


async def test_what_takes_a_broker_is_refused_without_one(real: ExecutionEnvironment) -> None:
    with pytest.raises((InvalidRequest, Refused), match="broker"):
        await real.run(source("1"), allowing("GET https://api.example.com/v1/"))
