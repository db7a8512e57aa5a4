"""Artefacts and workspaces: whose they are, how much there may be, and what a crash leaves."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from tests.gateway.conftest import MakeCaller, SetClock, rows

from stockade.gateway import schema
from stockade.gateway.artefacts import ArtefactStore
from stockade.gateway.blobs import Blobs
from stockade.gateway.database import Database
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.listing import SandboxEntry
from stockade.gateway.tenants import Tenants
from stockade.gateway.workspaces import Workspaces
from stockade.port import Artefact, Execution, InvalidRequest, Outcome, Refused, SandboxRequest


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def artefacts(database: Database, ledger: Ledger, folder: Path) -> ArtefactStore:
    blobs = Blobs.open(str(folder), "artefacts")
    return ArtefactStore(database, ledger, blobs, ttl_seconds=3600, most_bytes=10_000_000)


@pytest.fixture
def workspaces(database: Database, ledger: Ledger, folder: Path) -> Workspaces:
    blobs = Blobs.open(str(folder), "workspaces")
    return Workspaces(database, ledger, blobs, ttl_seconds=3600, most_bytes=5_000_000)


# --- artefacts -----------------------------------------------------------------------------------


async def test_the_same_content_is_stored_once_for_each_tenant(
    artefacts: ArtefactStore, folder: Path, tenant: MakeCaller
) -> None:
    tenant("acme"), tenant("globex")
    data = os.urandom(3_000_000)
    entries = await asyncio.gather(*(artefacts.put("acme", digest(data), data) for _ in range(8)))
    assert {entry.created_at for entry in entries} == {entries[0].created_at}
    assert len(files(folder)) == 1
    with pytest.raises(Refused, match="no such artefact"):
        await artefacts.find("globex", digest(data))
    await artefacts.put("globex", digest(data), data)
    assert len(files(folder)) == 2
    await artefacts.delete(Caller("acme", "k"), digest(data))
    assert await whole(artefacts.read("globex", digest(data))) == data
    assert len(files(folder)) == 1


async def test_ranges_are_exact(artefacts: ArtefactStore, tenant: MakeCaller) -> None:
    tenant()
    data = os.urandom(2_500_000)
    await artefacts.put("acme", digest(data), data)
    for start, end in ((0, 1), (0, 0), (5, 2_000_000), (1_048_576, 2_097_152), (2_499_999, None)):
        assert await whole(artefacts.read("acme", digest(data), start, end)) == data[start:end]
    for start, end in ((-1, 5), (5, 4), (0, 2_500_001), (2_500_001, None)):
        with pytest.raises(InvalidRequest, match="range"):
            await whole(artefacts.read("acme", digest(data), start, end))


async def test_an_empty_artefact_is_one(artefacts: ArtefactStore, tenant: MakeCaller) -> None:
    tenant()
    await artefacts.put("acme", digest(b""), b"")
    assert await whole(artefacts.read("acme", digest(b""))) == b""


async def test_the_budget_of_bytes_is_kept_when_many_come_at_once(
    artefacts: ArtefactStore, folder: Path, tenant: MakeCaller
) -> None:
    tenant(artefact_bytes=10 * 5000)
    datas = [os.urandom(5000) for _ in range(40)]
    results = await asyncio.gather(
        *(artefacts.put("acme", digest(data), data) for data in datas), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, Refused)]
    assert len(refused) == 30
    assert {each.code for each in refused} == {"budget_exhausted"}
    assert len(files(folder)) == 10


async def test_what_is_counted_is_what_is_kept(
    artefacts: ArtefactStore, database: Database, tenant: MakeCaller, clock: SetClock
) -> None:
    """Through every way in and out; a mass of tiny ones counts too."""
    acme, globex = tenant("acme"), tenant("globex")

    def held() -> list[tuple[object, object]]:
        return sorted(
            (str(row["tenant"]), row["artefacts"]) for row in rows(database, schema.holdings)
        )

    for caller in (acme, globex):
        for data in (b"", b"x", b"y" * 5000):
            await artefacts.put(caller.tenant, digest(data), data)
            await artefacts.put(caller.tenant, digest(data), data)
    assert held() == [("acme", 2 * 4096 + 5000), ("globex", 2 * 4096 + 5000)]
    await artefacts.delete(acme, digest(b"x"))
    with pytest.raises(Refused):
        await artefacts.delete(acme, digest(b"x"))
    assert held()[0] == ("acme", 4096 + 5000)
    clock.add(3601)
    await artefacts.put("acme", digest(b""), b"")  # in the place of one that has expired
    assert held()[0] == ("acme", 4096 + 5000)
    assert await artefacts.sweep() == 4
    assert held() == [("acme", 4096), ("globex", 0)]


async def test_what_is_not_kept_is_missing_in_the_record_with_the_reason(
    artefacts: ArtefactStore, tenant: MakeCaller
) -> None:
    acme = tenant(artefact_bytes=4100)
    made = tuple(
        Artefact(name, data, digest(data)) for name, data in (("a", b"12345"), ("b", b"6"))
    )
    record, kept = await artefacts.keep(acme, Execution(Outcome.OK, "", artefacts=made))
    assert [artefact.name for artefact in record.artefacts] == ["a"]
    assert kept == [digest(b"12345")]
    assert "4096 bytes of artefacts are kept, of 4100" in record.missing_artefacts[0].reason


async def test_what_has_expired_is_gone_at_once_and_swept_later(
    artefacts: ArtefactStore, folder: Path, tenant: MakeCaller, clock: SetClock
) -> None:
    tenant()
    await artefacts.put("acme", digest(b"a"), b"a")
    clock.add(3000)
    await artefacts.put("acme", digest(b"a"), b"a")  # kept longer
    clock.add(3000)
    assert await whole(artefacts.read("acme", digest(b"a"))) == b"a"
    clock.add(601)
    with pytest.raises(Refused, match="no such artefact"):
        await artefacts.find("acme", digest(b"a"))
    assert (await artefacts.list("acme")).artefacts == ()
    await artefacts.put("acme", digest(b"a"), b"a")  # anew, before the sweep
    assert await artefacts.sweep() == 0
    assert await whole(artefacts.read("acme", digest(b"a"))) == b"a"
    clock.add(3601)
    assert await artefacts.sweep() == 1


@pytest.mark.parametrize("moment", ["put", "enter"])
async def test_killed_between_the_store_and_the_row_a_sweep_finds_the_rest(
    tmp_path: Path, moment: str
) -> None:
    """``kill -9`` after the bytes are stored, before and after they are in the database."""
    url, folder = f"sqlite:///{tmp_path}/gateway.db", tmp_path / "blobs"
    database = Database.open(url)
    database.migrate()
    Tenants(database).create("acme")
    program = """if True:
        import asyncio, os, sys
        from stockade.gateway.artefacts import ArtefactStore
        from stockade.gateway.blobs import Blobs
        from stockade.gateway.database import Database
        from stockade.gateway.ledger import Ledger
        import hashlib

        async def main():
            database = Database.open(sys.argv[1])
            async with Ledger(database) as ledger:
                blobs = Blobs.open(sys.argv[2], "artefacts")
                if sys.argv[3] == "put":
                    ledger_write = ledger.write
                    put = blobs.put
                    async def killing(place, data):
                        await put(place, data)
                        os.kill(os.getpid(), 9)
                    blobs.put = killing
                else:
                    enter = ArtefactStore._enter
                    def killing(self, turn, *rest):
                        result = enter(self, turn, *rest)
                        turn.journal.finish()
                        os.kill(os.getpid(), 9)
                    ArtefactStore._enter = killing
                store = ArtefactStore(database, ledger, blobs, 3600, 1000)
                await store.put("acme", "sha256:" + hashlib.sha256(b"x").hexdigest(), b"x")

        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", program, url, str(folder), moment], check=False)
    assert done.returncode == -9
    assert len(files(folder)) == 1
    async with Ledger(database) as ledger:
        blobs = Blobs.open(str(folder), "artefacts")
        store = ArtefactStore(database, ledger, blobs, 3600, 1000)
        with pytest.raises(Refused, match="no such artefact"):
            await store.find("acme", digest(b"x"))
        assert await store.sweep() == 0  # young: it may be on its way
        await store.put("acme", digest(b"x"), b"x")
        assert await blobs.sweep(store._known, grace_seconds=-60) == 1
        assert await whole(store.read("acme", digest(b"x"))) == b"x"
    database.close()


async def test_bytes_that_were_changed_or_lost_are_not_handed_out_as_whole(
    artefacts: ArtefactStore, folder: Path, tenant: MakeCaller
) -> None:
    tenant()
    await artefacts.put("acme", digest(b"abcd"), b"abcd")
    file = files(folder)[0]
    for data, said in ((b"abcX", "damaged"), (b"abc", "lost"), (None, "lost")):
        file.write_bytes(data) if data is not None else file.unlink()
        with pytest.raises(Refused, match=said):
            await whole(artefacts.read("acme", digest(b"abcd")))


@pytest.mark.parametrize(
    "name", ["", "sha256:", "sha256:" + "0" * 64, "../" * 20, "\0" * 71, "\udc80" * 71, "x" * 10**6]
)
async def test_what_is_no_digest_is_as_one_that_never_was(
    artefacts: ArtefactStore, tenant: MakeCaller, name: str
) -> None:
    for call in (artefacts.find("acme", name), artefacts.delete(tenant(), name)):
        with pytest.raises(Refused, match="no such artefact"):
            await call


async def test_what_a_killed_process_was_writing_is_swept(tmp_path: Path) -> None:
    program = """if True:
        import asyncio, os, sys
        from stockade.gateway.blobs import Blobs

        async def pieces():
            for _ in range(20):
                yield b"x" * 1_000_000
            os.kill(os.getpid(), 9)

        blobs = Blobs.open(sys.argv[1], "workspaces")
        asyncio.run(blobs.put_stream(blobs.new_place("acme"), pieces(), 10**9, "it"))
    """
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(files(tmp_path)) == 1

    async def known(places: Collection[str]) -> list[str]:
        return []

    blobs = Blobs.open(str(tmp_path), "workspaces")
    assert await blobs.sweep(known) == 0
    assert await blobs.sweep(known, grace_seconds=-60) == 1
    assert files(tmp_path) == []


# --- workspaces ----------------------------------------------------------------------------------


async def opened(ledger: Ledger, caller: Caller, this: str, name: str = "w") -> SandboxEntry:
    return await ledger.begin_sandbox(caller, this, SandboxRequest(), 60, name)


async def test_what_a_session_saved_is_there_for_the_next_one(
    ledger: Ledger, workspaces: Workspaces, folder: Path, tenant: MakeCaller
) -> None:
    acme = tenant()
    first = await opened(ledger, acme, "s1")
    assert await whole(workspaces.read(first)) == b""
    assert (await workspaces.list("acme")).workspaces == ()
    await workspaces.save(first, in_pieces(b"one", b"two"))
    kept = await workspaces.save(first, in_pieces(b"one", b"two", b"three"))
    assert (kept.generation, kept.size) == (2, 11)
    assert len(files(folder)) == 1
    await ledger.end_sandbox("s1", "closed")
    second = await opened(ledger, acme, "s2")
    assert await whole(workspaces.read(second)) == b"onetwothree"


async def test_one_session_at_a_time_has_a_workspace(
    ledger: Ledger, workspaces: Workspaces, tenant: MakeCaller
) -> None:
    acme, globex = tenant("acme"), tenant("globex")
    results = await asyncio.gather(
        *(opened(ledger, acme, f"s{i}") for i in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, SandboxEntry) for result in results) == 1
    codes = {result.code for result in results if isinstance(result, Refused)}
    assert codes == {"conflict"}
    await opened(ledger, globex, "g1")  # of the same name, and nobody else's


async def test_a_stale_session_cannot_overwrite_a_newer_save(
    ledger: Ledger, workspaces: Workspaces, folder: Path, tenant: MakeCaller
) -> None:
    acme = tenant()
    stale = await opened(ledger, acme, "s1")
    await workspaces.save(stale, in_pieces(b"old"))
    await ledger.end_sandbox("s1", "lost")
    newer = await opened(ledger, acme, "s2")
    await workspaces.save(newer, in_pieces(b"new"))
    for late in (stale, SandboxEntry("s2", "globex", "k", 0, 0, None, None, "w", 2)):
        with pytest.raises(Refused) as refused:
            await workspaces.save(late, in_pieces(b"late"))
        assert refused.value.code == "conflict"
        with pytest.raises(Refused):
            await whole(workspaces.read(late))
    assert await whole(workspaces.read(newer)) == b"new"
    assert len(files(folder)) == 1


async def test_a_save_that_breaks_off_or_is_too_large_leaves_the_one_before(
    ledger: Ledger, workspaces: Workspaces, folder: Path, tenant: MakeCaller
) -> None:
    acme = tenant(workspace_bytes=6_000_000)
    session = await opened(ledger, acme, "s1")
    await workspaces.save(session, in_pieces(b"good"))

    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await workspaces.save(session, breaking())
    with pytest.raises(Refused, match="a workspace of more than 5000000 bytes"):
        await workspaces.save(session, in_pieces(*[b"x" * 1_000_000] * 6))
    assert await whole(workspaces.read(session)) == b"good"
    assert [path.read_bytes() for path in files(folder)] == [b"good"]
    other = await opened(ledger, acme, "s2", "other")
    await workspaces.save(other, in_pieces(b"x" * 4_000_000))
    with pytest.raises(Refused, match="4000000 bytes of other workspaces are kept, of 6000000"):
        await workspaces.save(session, in_pieces(b"x" * 2_000_001))
    await workspaces.save(session, in_pieces(b"x" * 2_000_000))


async def test_a_workspace_is_deleted_when_no_session_has_it(
    database: Database,
    ledger: Ledger,
    workspaces: Workspaces,
    folder: Path,
    tenant: MakeCaller,
    clock: SetClock,
) -> None:
    acme, globex = tenant("acme"), tenant("globex")
    session = await opened(ledger, acme, "s1")
    await workspaces.save(session, in_pieces(b"x"))
    with pytest.raises(Refused, match="close that one first"):
        await workspaces.delete(acme, "w")
    clock.add(3601)
    assert await workspaces.sweep() == 0  # it has expired, and is in use
    await ledger.end_sandbox("s1", "closed")
    for name in ("w", "x", "", "../w", "\0"):
        with pytest.raises(Refused, match="no such workspace"):
            await workspaces.delete(globex, name)
    assert await workspaces.sweep() == 1
    assert files(folder) == []
    with pytest.raises(Refused, match="no such workspace"):
        await workspaces.delete(acme, "w")
    assert [row["workspaces"] for row in rows(database, schema.holdings)] == [0]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-a", "a.", "x" * 129, "é", "a\n"])
async def test_a_workspaces_name_is_plain(ledger: Ledger, tenant: MakeCaller, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name"):
        await opened(ledger, tenant(), "s1", name)


def test_a_folder_that_everybody_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ValueError, match="every user may look into"):
        Blobs.open(str(tmp_path / "open"), "artefacts")
    with pytest.raises(ValueError, match="neither an absolute folder"):
        Blobs.open("relative", "artefacts")


def test_an_s3_store_is_one_setting() -> None:
    Blobs.open(
        "s3://bucket/prefix",
        "artefacts",
        {"endpoint": "https://s3.example", "region": "eu", "access_key_id": "a",
         "secret_access_key": "b"},
    )  # fmt: skip
