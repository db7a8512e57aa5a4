"""The host's side of Java tools: what is kept, what waits for whom, and what a guest may say."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from stockade.port import (
    NO_EGRESS,
    EgressPolicy,
    EgressRule,
    InvalidRequest,
    Limits,
    Outcome,
    SandboxLost,
    SandboxRequest,
    Stream,
    TrustLevel,
    Unavailable,
)
from stockade.port.fake import Call, FakeEnvironment, Scripted
from stockade.tools.java import (
    Compiled,
    Finding,
    FolderStore,
    JavaTools,
    MemoryStore,
    ParkingPolicy,
    SourceRefused,
    check_rules,
)
from stockade.tools.java.compiling import COMPILE_LIMITS

ONE = SandboxRequest(tenant="one")
CLEAN = b'{"findings": []}'
GOOD = {"line": 3, "column": 5, "rule": "class", "sentence": "a", "suggestion": "b"}


def program(call: Call) -> str:
    """What was started: the toolchain's script, or a class of the harness."""
    argv = call.request.program.argv  # type: ignore[union-attr]
    return next(
        (word.rpartition(".")[2] for word in argv if word.startswith("stockade.tool.")), "sh"
    )


def jdk(
    compiled: Scripted | None = None,
    verified: Scripted | None = None,
    ran: Callable[[Call], Awaitable[Scripted]] | None = None,
    built: Scripted | None = None,
) -> FakeEnvironment:
    """An environment whose image pretends to have one."""

    async def run(call: Call) -> Scripted:
        if "wait" in call.request.program.argv:  # type: ignore[union-attr]
            await call.write(Stream.STDOUT, b".")
        content = b"".join([piece async for piece in call.stdin])
        return Scripted(result=b'{"output":' + content + b"}", stdout=b"said")

    async def play(call: Call) -> Scripted:
        match program(call):
            case "sh":
                return built or Scripted(artefacts={"harness.jar": b"h", "run.jsa": b"r"})
            case "Compile":
                return compiled or Scripted(result=CLEAN, artefacts={"tool.jar": b"jar"})
            case "Verify":
                return verified or Scripted(result=CLEAN)
        return await (ran or run)(call)

    return FakeEnvironment(play)


def programs(environment: FakeEnvironment) -> list[str]:
    return [program(call) for call in environment.calls]


# --- compiling ----------------------------------------------------------------------------------


async def test_a_source_is_compiled_once_for_each_tenant() -> None:
    fake = jdk()
    async with JavaTools(fake) as java:
        first = await java.compile("x", None, ONE)
        assert await java.compile("x", None, ONE) == first
        assert programs(fake) == ["sh", "Compile", "Verify"]
        await java.compile("y", None, ONE)
        await java.compile("x", {"refused": ["java.lang.Math"]}, ONE)
        assert programs(fake)[3:] == ["Compile", "Verify"] * 2
        await java.compile("x", None, SandboxRequest(tenant="two"))
        assert programs(fake)[7:] == ["sh", "Compile", "Verify"]
    assert [call.sandbox.tenant for call in fake.calls] == ["one"] * 7 + ["two"] * 3


async def test_what_compiles_reaches_nothing_and_has_limits_of_its_own() -> None:
    fake = jdk()
    asked = SandboxRequest(
        tenant="one",
        trust=TrustLevel.HOSTILE,
        egress=EgressPolicy((EgressRule("example.com"),)),
        limits=Limits(wall_seconds=9999),
        ticket="ticket",
    )
    async with JavaTools(fake) as java:
        await java.compile("é", None, asked)
    for call in fake.calls:
        assert call.sandbox.trust is TrustLevel.HOSTILE
        assert call.sandbox.egress == NO_EGRESS
        assert call.sandbox.ticket is None
    assert [call.sandbox.limits for call in fake.calls[1:]] == [COMPILE_LIMITS] * 2
    # The verifier has the classes and the rules, and not the source.
    assert fake.calls[2].request.files == {"harness.jar": b"h", "tool.jar": b"jar"}


async def test_findings_are_raised_and_nothing_is_kept() -> None:
    fake = jdk(verified=Scripted(result=json.dumps({"findings": [GOOD]}).encode()))
    async with JavaTools(fake) as java:
        for _ in range(2):
            with pytest.raises(SourceRefused, match=r"line 3: a \(class\)") as refused:
                await java.compile("x", None, ONE)
            assert refused.value.findings == [Finding(3, 5, "class", "a", "b")]
    assert programs(fake) == ["sh"] + ["Compile", "Verify"] * 2


@pytest.mark.parametrize(
    "result",
    [
        None, b"", b"null", b"[]", b"{}", b'{"findings": null}', b'{"findings": [1]}',
        b'{"findings": [], "more": 1}', b'{"findings": [' + b"[" * 10_000,
        b'{"findings": []}' + b" " * 300_000,
        json.dumps({"findings": [{**GOOD, "line": 0}]}).encode(),
        json.dumps({"findings": [{**GOOD, "line": True}]}).encode(),
        json.dumps({"findings": [{**GOOD, "rule": "A\n"}]}).encode(),
        json.dumps({"findings": [{**GOOD, "sentence": "x" * 5_000}]}).encode(),
        json.dumps({"findings": [GOOD] * 101}).encode(),
    ],
)  # fmt: skip
async def test_a_forged_answer_is_a_finding_and_never_a_pass(result: bytes | None) -> None:
    for part in ("compiled", "verified"):
        forged = Scripted(result=result, artefacts={"tool.jar": b"jar"})
        fake = jdk(forged) if part == "compiled" else jdk(verified=forged)
        async with JavaTools(fake) as java:
            with pytest.raises(SourceRefused) as refused:
                await java.compile("x", None, ONE)
            assert [each.rule for each in refused.value.findings] == ["checker"]


@pytest.mark.parametrize("outcome", [Outcome.MEMORY, Outcome.WALL_CLOCK, Outcome.NONZERO_EXIT])
async def test_a_compiler_or_verifier_that_does_not_end_is_a_finding(outcome: Outcome) -> None:
    for part in ("compiled", "verified"):
        ended = Scripted(outcome, result=CLEAN)
        fake = jdk(ended) if part == "compiled" else jdk(verified=ended)
        async with JavaTools(fake) as java:
            with pytest.raises(SourceRefused, match="did not come to an end"):
                await java.compile("x", None, ONE)


async def test_a_lost_sandbox_is_no_fault_of_the_source() -> None:
    async with JavaTools(jdk(compiled=Scripted(Outcome.LOST))) as java:
        with pytest.raises(SandboxLost):
            await java.compile("x", None, ONE)


@pytest.mark.parametrize(
    "built",
    [
        Scripted(Outcome.INVALID, detail="no such program in the image: java"),
        Scripted(exit_code=69, stderr=b"Java 25 has no compiler\n"),
        Scripted(),
    ],
)
async def test_an_image_without_a_jdk_is_told_with_what_to_install(built: Scripted) -> None:
    async with JavaTools(jdk(built=built)) as java:
        with pytest.raises(Unavailable, match="apt-get install openjdk-17-jdk-headless"):
            await java.compile("x", None, ONE)


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"class": []}, "rules"),
        ({"classes": "java.io.File"}, "rules.classes"),
        ({"classes": ["java/io/File"]}, "rules.classes"),
        ({"classes": ["java.io.File\n"]}, "rules.classes"),
        ({"classes": [1]}, "rules.classes"),
        ({"packages": ["x"] * 1001}, "rules.packages"),
        ({"members": []}, "rules.members"),
        ({"members": {"java.lang.Thread": ["start()"]}}, "rules.members.java.lang.Thread"),
        ({"members": {"": ["start"]}}, "rules.members"),
        ({"classes": ["a" * 900 + str(i) for i in range(100)]}, "rules"),
    ],
)
def test_wrong_rules_are_refused(rules: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_rules(rules)
    assert refused.value.field == field


def test_rules_are_put_over_the_default_ones() -> None:
    plain = json.loads(check_rules(None))
    assert "java.util.Formatter" in plain["refused"]
    changed = json.loads(
        check_rules(
            {
                "packages": ["java.util"],
                "classes": ["java.util.Formatter", "java.lang.Thread"],
                "members": {"java.lang.System": ["getenv"], "java.lang.Boolean": ["getBoolean"]},
                "refused": ["java.util.Random"],
            }
        )
    )
    assert changed["packages"] == ["java.util"]
    assert {"java.util.Formatter", "java.lang.Math"} <= set(changed["classes"])
    assert "java.util.Formatter" not in changed["refused"]
    assert "java.util.Random" in changed["refused"]
    assert "java.lang.Thread" not in changed["members"]
    assert {"getenv", "nanoTime"} <= set(changed["members"]["java.lang.System"])


# --- calls --------------------------------------------------------------------------------------


def tool(digest: str = "d", tenant: str = "one") -> Compiled:
    return Compiled(tenant, digest, b"jar")


async def test_a_call_is_given_a_jvm_that_waits_and_another_one_is_started() -> None:
    fake = jdk()
    async with JavaTools(fake) as java:
        first = await java.call(tool(), b"{}", ONE)
        assert (first.parked, first.output) == (False, b"{}")
        await java.park(tool(), ONE)
        heard: list[bytes] = []

        async def listen(stream: Stream, data: bytes) -> None:
            heard.append(data)

        second = await java.call(tool(), b'{"a":1}', ONE, on_output=listen)
        assert (second.parked, second.output) == (True, b'{"a":1}')
        # The byte that says that it waits is nobody's.
        assert (second.execution.stdout.content, heard) == (b"said", [b"said"])
        await java.park(tool(), ONE)
        assert repr(java).endswith("<Parking 1 waiting, 0 booting>>")
    assert programs(fake) == ["sh", "Run", "Run", "Run"]
    assert all(call.execution is not None for call in fake.calls)  # none is left


@pytest.mark.parametrize(
    "other",
    [
        SandboxRequest(tenant="one", limits=Limits(wall_seconds=1)),
        SandboxRequest(tenant="one", trust=TrustLevel.HOSTILE),
        SandboxRequest(tenant="one", egress=EgressPolicy((EgressRule("example.com"),))),
    ],
)
async def test_a_jvm_serves_what_it_was_started_for_and_nothing_else(
    other: SandboxRequest,
) -> None:
    async with JavaTools(jdk()) as java:
        await java.park(tool(), ONE)
        assert not (await java.call(tool(), b"{}", other)).parked
        assert not (await java.call(tool("another"), b"{}", ONE)).parked
        assert (await java.call(tool(), b"{}", ONE)).parked


async def test_no_tenant_is_given_anothers() -> None:
    async with JavaTools(jdk()) as java:
        await java.park(tool(), ONE)
        two = SandboxRequest(tenant="two")
        with pytest.raises(InvalidRequest, match="another tenant's"):
            await java.call(tool(), b"{}", two)
        assert not (await java.call(tool(tenant="two"), b"{}", two)).parked


async def test_credentials_are_never_parked() -> None:
    fake = jdk()
    async with JavaTools(fake) as java:
        granted = SandboxRequest(tenant="one", ticket="once")
        await java.park(tool(), granted)
        assert not (await java.call(tool(), b"{}", granted)).parked
        assert repr(java).endswith("<Parking 0 waiting, 0 booting>>")


async def test_how_many_wait_is_bounded_and_one_tenant_takes_no_others_place() -> None:
    policy = ParkingPolicy(most=4, most_of_tenant=4)
    fake = jdk()
    async with JavaTools(fake, policy) as java:
        for index in range(6):  # more than there is room for: the oldest go
            await java.park(tool(str(index)), ONE)
        assert repr(java).endswith("<Parking 4 waiting, 0 booting>>")
        assert not (await java.call(tool("0"), b"{}", ONE)).parked
        two = SandboxRequest(tenant="two")
        for index in range(4):
            await java.park(tool(str(index), "two"), two)
        assert repr(java).endswith("<Parking 4 waiting, 0 booting>>")
        # Half of it each.
        alive = [c.sandbox.tenant for c in fake.calls if program(c) == "Run" and not c.execution]
        assert sorted(alive) == ["one", "one", "two", "two"]
    async with JavaTools(jdk(), ParkingPolicy(most=0)) as java:
        await java.park(tool(), ONE)
        assert repr(java).endswith("<Parking 0 waiting, 0 booting>>")


async def test_one_that_nobody_calls_for_is_given_up() -> None:
    fake = jdk()
    async with JavaTools(fake, ParkingPolicy(idle_seconds=0.05)) as java:
        await java.park(tool(), ONE)
        while not repr(java).endswith("<Parking 0 waiting, 0 booting>>"):
            await asyncio.sleep(0.01)
    assert fake.calls[-1].cancelled


async def test_a_jvm_that_does_not_come_up_fails_no_call() -> None:
    async def run(call: Call) -> Scripted:
        if "wait" in call.request.program.argv:  # type: ignore[union-attr]
            return Scripted(exit_code=1)
        return Scripted(result=b'{"output":1}')

    async with JavaTools(jdk(ran=run)) as java:
        await java.park(tool(), ONE)
        assert (await java.call(tool(), b"{}", ONE)).output == b"1"


async def test_what_boots_is_not_waited_for_at_the_end() -> None:
    booting = asyncio.Event()

    async def run(call: Call) -> Scripted:
        booting.set()
        return Scripted(delay=float("inf"))

    fake = jdk(ran=run)
    async with JavaTools(fake) as java:
        parking = asyncio.create_task(java.park(tool(), ONE))
        await booting.wait()
    await parking
    assert fake.calls[-1].cancelled


async def test_a_call_that_is_cancelled_leaves_nothing() -> None:
    waiting = asyncio.Event()

    async def run(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b".")
        async for _ in call.stdin:
            waiting.set()
        await asyncio.Event().wait()
        return Scripted()

    fake = jdk(ran=run)
    async with JavaTools(fake) as java:
        await java.park(tool(), ONE)
        calling = asyncio.create_task(java.call(tool(), b"{}", ONE))
        await waiting.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert fake.calls[-1].cancelled


async def test_the_limit_on_time_is_the_calls_and_not_the_jvms() -> None:
    async def run(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b".")
        async for _ in call.stdin:
            pass
        return Scripted(delay=float("inf"))

    fake = jdk(ran=run)
    hurried = SandboxRequest(tenant="one", limits=Limits(wall_seconds=0.2))
    async with JavaTools(fake) as java:
        await java.park(tool(), hurried)
        assert fake.calls[-1].sandbox.limits.wall_seconds > 300
        call = await java.call(tool(), b"{}", hurried)
    assert call.parked
    assert call.execution.outcome is Outcome.WALL_CLOCK
    assert call.execution.limit is not None
    assert (call.execution.limit.name, call.execution.limit.ceiling) == ("wall_seconds", 0.2)


@pytest.mark.parametrize(
    ("scripted", "kind"),
    [
        (Scripted(result=None), "no_result"),
        (Scripted(result=b'{"x":1}'), "no_result"),
        (Scripted(result=b'{"error":{"kind":"raised"}}', exit_code=1), "no_result"),
        (Scripted(result=b'{"output":1}', exit_code=1), "outcome"),
        (Scripted(Outcome.MEMORY, result=b'{"output":1}'), "outcome"),
        (
            Scripted(
                result=b'{"error":{"kind":"raised","message":"m\\u001b[2J","place":null,'
                b'"class":"C","line":3,"trace":["t"],"causes":[]}}',
                exit_code=1,
            ),
            "raised",
        ),
    ],
)
async def test_what_a_guest_says_of_its_end_is_not_believed(scripted: Scripted, kind: str) -> None:
    async def run(call: Call) -> Scripted:
        return scripted

    async with JavaTools(jdk(ran=run), ParkingPolicy(most=0)) as java:
        call = await java.call(tool(), b"{}", ONE)
    assert call.output is None
    assert call.failure is not None
    assert call.failure.kind == kind
    assert call.failure.message.isprintable()


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(memory_bytes=128 * 1024 * 1024), "limits.memory_bytes"),
        (Limits(processes=8), "limits.processes"),
        (Limits(disk_bytes=65_536), "limits.disk_bytes"),
    ],
)
async def test_limits_that_no_jvm_lives_in_are_refused(limits: Limits, field: str) -> None:
    fake = jdk()
    async with JavaTools(fake) as java:
        with pytest.raises(InvalidRequest) as refused:
            await java.call(tool(), b"{}", SandboxRequest(tenant="one", limits=limits))
    assert refused.value.field == field
    assert not fake.calls


# --- the store ----------------------------------------------------------------------------------


async def test_a_store_outlives_the_tools(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "java")
    fake = jdk()
    for _ in range(2):
        async with JavaTools(fake, store=store) as java:
            assert (await java.compile("x", None, ONE)).jar == b"jar"
    assert programs(fake) == ["sh", "Compile", "Verify"]


async def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    await store.put("one", "key", b"content")
    assert await store.get("one", "key") == b"content"
    assert await store.get("two", "key") is None
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    for damaged in (file.read_bytes()[:-1], b"", b"x" * 100):
        file.write_bytes(damaged)
        assert await store.get("one", "key") is None
    assert file.parent.stat().st_mode & 0o77 == 0


async def test_stores_are_bounded(tmp_path: Path) -> None:
    kept: Sequence[MemoryStore | FolderStore] = (
        MemoryStore(100),
        FolderStore(tmp_path, most_bytes=100 + 2 * 32),
    )
    for store in kept:
        for key in ("a", "b", "c"):
            await store.put("one", key, b"x" * 50)
        assert await store.get("one", "a") is None
        assert await store.get("one", "c") == b"x" * 50
