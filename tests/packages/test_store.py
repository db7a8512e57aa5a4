"""The store of package sets: whole or not at all, per tenant, never changed."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stockade.packages import PackageSet, PackageStore
from stockade.packages.store import Damaged
from stockade.port import InvalidRequest

KEY = "k" * 64


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def keep(
    store: PackageStore, *parts: bytes, tenant: str = "one", key: str = KEY, most: int = 1 << 20
) -> PackageSet:
    return await store.keep(
        tenant, key, pieces(*parts), most_bytes=most, image="i", disk_bytes=7, inodes=2
    )


async def read(store: PackageStore, found: PackageSet, tenant: str = "one") -> bytes:
    return b"".join([piece async for piece in store.read(tenant, found)])


async def test_what_was_kept_is_found_and_read(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    kept = await keep(store, b"ab", b"", b"c")
    assert store.find("one", KEY) == kept
    assert (kept.size, kept.disk_bytes, kept.inodes) == (3, 7, 2)
    assert await read(store, kept) == b"abc"


async def test_another_tenant_finds_and_reads_nothing(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    kept = await keep(store, b"abc")
    assert store.find("two", KEY) is None
    with pytest.raises(Damaged, match="is gone"):
        await read(store, kept, "two")


@pytest.mark.parametrize("tenant", ["../one", "/", "..", "a\0b", "x" * 5000, "\udcff"])
async def test_a_tenants_name_is_no_path(tmp_path: Path, tenant: str) -> None:
    store = PackageStore(tmp_path / "store")
    kept = await keep(store, b"abc", tenant=tenant)
    assert await read(store, kept, tenant) == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


async def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    with pytest.raises(InvalidRequest, match="exceeds 5 bytes"):
        await keep(store, b"abc", b"def", most=5)
    assert store.find("one", KEY) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_what_breaks_off_is_not_kept(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"abc"
        raise OSError("the sandbox is gone")

    store = PackageStore(tmp_path)
    with pytest.raises(OSError, match="gone"):
        await store.keep("one", KEY, broken(), most_bytes=100, image="i", disk_bytes=1, inodes=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("change", ["flip", "cut", "longer"])
async def test_a_changed_set_is_refused_and_removed(tmp_path: Path, change: str) -> None:
    store = PackageStore(tmp_path)
    kept = await keep(store, b"x" * 3_000_000, most=1 << 22)
    [path] = tmp_path.glob("*/sets/*")
    assert path.stat().st_mode & 0o777 == 0o400
    content = bytearray(path.read_bytes())
    if change == "flip":
        content[-1] ^= 1
    elif change == "cut":
        del content[-1:]
    else:
        content += b"x"
    path.unlink()
    path.write_bytes(content)
    got = b""
    with pytest.raises(Damaged, match="changed on disk"):
        async for piece in store.read("one", kept):
            got += piece
    assert len(got) < len(content)
    assert store.find("one", KEY) is None


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "store")
    kept = await keep(store, b"abc")
    [path] = (tmp_path / "store").glob("*/sets/*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match="is gone"):
        await read(store, kept)


async def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    await keep(store, b"abc")
    [home] = tmp_path.iterdir()
    home.chmod(0o777)
    with pytest.raises(InvalidRequest, match="others may write"):
        store.find("one", KEY)


async def test_only_one_installs_at_a_time(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    inside, most = 0, 0

    async def install() -> None:
        nonlocal inside, most
        async with store.only_one("one", KEY):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(install() for _ in range(5)))
    assert most == 1


async def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = PackageStore(tmp_path, most_bytes=250)
    kept = []
    for number in range(3):
        kept.append(await keep(store, bytes([number]) * 100, key=f"{number}"))
        if number == 1:
            for note in tmp_path.glob("*/keys/*"):
                os.utime(note, (1, 1 if note.name == "1" else 2))
    assert store.find("one", "1") is None
    assert store.find("one", "0") == kept[0]
    assert store.find("one", "2") == kept[2]


async def test_a_note_that_is_none_is_not_believed(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    await keep(store, b"abc")
    [note] = tmp_path.glob("*/keys/*")
    note.chmod(0o600)
    for content in (b"", b"{", b"[]", b'{"digest": "../../x"}', b'{"digest": 1}'):
        note.write_bytes(content)
        assert store.find("one", KEY) is None
