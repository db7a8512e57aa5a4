"""Files over a wire whose other end lies."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from stockade.executor import files
from stockade.executor.wire import Event
from stockade.port import FileRefused, InvalidRequest, SandboxLost

from .guest import CLOSE, CREDIT, DATA, END, RESET, HandPlayedGuest

pytestmark = pytest.mark.plain_user


async def fetch(guest: HandPlayedGuest, path: str = "f", most: int = 1000) -> bytes:
    return b"".join([piece async for piece in files.fetch(guest.link, path, most)])


async def soon(coroutine: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait({task}, timeout=3)
    assert task.done(), "it hangs"
    return task.result()


async def play_fetch(guest: HandPlayedGuest, *answers: bytes | dict[str, object]) -> bytes:
    task = asyncio.ensure_future(fetch(guest))
    channel, _ = await guest.asked()
    for answer in answers:
        guest.frame(DATA, channel, answer)
    guest.frame(CLOSE, channel)
    await asyncio.wait({task}, timeout=3)
    assert task.done(), "it hangs"
    return task.result()


# --- reading ---


async def test_the_request_names_service_and_path() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(fetch(guest, "a/é\udcff"))
        _, payload = await guest.asked()
        assert b"get" in payload
        guest.hang_up()
        with pytest.raises(SandboxLost):
            await soon(asyncio.wait_for(task, 3))


async def test_an_honest_guest() -> None:
    with HandPlayedGuest() as guest:
        assert await play_fetch(guest, {"size": 5}, b"ab", b"cde") == b"abcde"


async def test_an_empty_file() -> None:
    with HandPlayedGuest() as guest:
        assert await play_fetch(guest, {"size": 0}) == b""


async def test_more_than_was_said() -> None:
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_fetch(guest, {"size": 3}, b"abcd")


async def test_more_than_was_said_in_a_second_piece() -> None:
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_fetch(guest, {"size": 3}, b"abc", b"d")


async def test_less_than_was_said() -> None:
    with HandPlayedGuest() as guest, pytest.raises(FileRefused, match="shrank by 2"):
        await play_fetch(guest, {"size": 5}, b"abc")


async def test_more_than_may_come_out() -> None:
    with HandPlayedGuest() as guest, pytest.raises(FileRefused, match="1001"):
        await play_fetch(guest, {"size": 1001})


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no json",
        b"[]",
        b'"size"',
        b"{}",
        b'{"size": -1}',
        b'{"size": "5"}',
        b'{"size": 1.5}',
        b'{"size": true}',
        b'{"size": null}',
        b'{"size": 5, "size": 6}',
        b'{"size": NaN}',
        b'{"size": 1e999}',
        b'{"size": 99999999999999999999999}',
        b'{"a": ' * 40 + b"1" + b"}" * 40,
        b"\xff\xfe",
    ],
)
async def test_answers_that_are_none(answer: bytes) -> None:
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_fetch(guest, *([answer] if answer else []))


@pytest.mark.parametrize("error", ["gone", "", "x" * 60_000, 5, None, {"a": 1}, ["x"]])
async def test_a_refusal_names_our_path_and_is_bounded(error: object) -> None:
    with HandPlayedGuest() as guest:
        with pytest.raises(FileRefused) as refused:
            await play_fetch(guest, {"error": error})
        assert refused.value.path == "f"
        assert len(str(refused.value)) < 1000


async def test_a_path_that_the_guest_says_is_not_believed() -> None:
    """What comes out is named by what was asked for."""
    with HandPlayedGuest() as guest:
        with pytest.raises(FileRefused) as refused:
            await play_fetch(guest, {"error": "no", "path": "/etc/shadow"})
        assert refused.value.path == "f"
        assert "/etc/shadow" not in str(refused.value)


async def test_a_guest_that_resets() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(fetch(guest))
        channel, _ = await guest.asked()
        guest.frame(RESET, channel, b"no")
        with pytest.raises(SandboxLost):
            await soon(asyncio.wait_for(task, 3))


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_guest_that_dies(after: int) -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(fetch(guest))
        channel, _ = await guest.asked()
        for answer in ({"size": 500}, b"x" * 100)[:after]:
            guest.frame(DATA, channel, answer)  # type: ignore[arg-type]
        guest.hang_up()
        with pytest.raises(SandboxLost):
            await soon(asyncio.wait_for(task, 3))


async def test_a_guest_that_breaks_the_rules() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(fetch(guest))
        await guest.asked()
        guest.raw(struct.pack(">IHB", 1 << 30, 1, DATA))
        with pytest.raises(SandboxLost, match="rules"):
            await soon(asyncio.wait_for(task, 3))


async def test_a_broken_wire_refuses_at_once() -> None:
    with HandPlayedGuest() as guest:
        guest.hang_up()
        await asyncio.wait({guest.link.broken}, timeout=3)
        for coroutine in (
            fetch(guest),
            files.put(guest.link, "f", b"x"),
            files.list_folder(guest.link, ""),
        ):
            with pytest.raises(SandboxLost):
                await soon(coroutine)


@pytest.mark.parametrize("path", ["", "/f", "../f", "a//b", "a\0b", "x" * 300])
async def test_a_bad_path_never_reaches_the_wire(path: str) -> None:
    with HandPlayedGuest() as guest:
        for coroutine in (fetch(guest, path), files.put(guest.link, path, b"")):
            with pytest.raises((FileRefused, InvalidRequest)):
                await soon(coroutine)


# --- writing ---


async def play_put(
    guest: HandPlayedGuest, answer: bytes | dict[str, object] | None, content: bytes = b"abc"
) -> bytes:
    task = asyncio.ensure_future(files.put(guest.link, "f", content))
    channel, _ = await guest.asked()
    received = b""
    while True:
        kind, _, payload = await guest.next(DATA, CLOSE)
        if kind == CLOSE:
            break
        received += payload
        guest.frame(CREDIT, channel, struct.pack(">I", len(payload)))
    if answer is not None:
        guest.frame(DATA, channel, answer)
    guest.frame(CLOSE, channel)
    guest.frame(END, channel)
    await asyncio.wait({task}, timeout=3)
    assert task.done(), "it hangs"
    task.result()
    return received


async def test_an_honest_upload() -> None:
    with HandPlayedGuest() as guest:
        assert await play_put(guest, {"written": 3}) == b"abc"


async def test_an_empty_upload() -> None:
    with HandPlayedGuest() as guest:
        assert await play_put(guest, {"written": 0}, b"") == b""


async def test_a_large_upload() -> None:
    with HandPlayedGuest() as guest:
        content = bytes(range(256)) * 8000
        assert await play_put(guest, {"written": len(content)}, content) == content


@pytest.mark.parametrize("written", [0, 2, 4, -3, "3", None, True])
async def test_a_guest_that_wrote_another_amount(written: object) -> None:
    with HandPlayedGuest() as guest, pytest.raises((FileRefused, SandboxLost)):
        await play_put(guest, {"written": written})


@pytest.mark.parametrize("answer", [None, b"nonsense", {"error": "full"}, {}])
async def test_uploads_that_failed(answer: bytes | dict[str, object] | None) -> None:
    with HandPlayedGuest() as guest, pytest.raises((FileRefused, SandboxLost)):
        await play_put(guest, answer)


async def test_an_upload_that_is_refused_at_once_ends_at_once() -> None:
    """The rest of a large file is not sent to nobody, and nobody waits for credit."""
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(files.put(guest.link, "f", b"x" * 5_000_000))
        channel, _ = await guest.asked()
        guest.frame(DATA, channel, {"error": "no space"})
        guest.frame(CLOSE, channel)
        with pytest.raises((FileRefused, SandboxLost)):
            await soon(asyncio.wait_for(task, 3))


async def test_an_upload_to_a_guest_that_dies() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(files.put(guest.link, "f", b"x" * 5_000_000))
        await guest.asked()
        guest.hang_up()
        with pytest.raises(SandboxLost):
            await soon(asyncio.wait_for(task, 3))


async def test_an_error_of_the_content_leaves_the_wire_usable() -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"x"
        raise RuntimeError("cannot go on")

    with HandPlayedGuest() as guest:
        with pytest.raises(RuntimeError, match="cannot go on"):
            await soon(files.put(guest.link, "f", content()))
        channel, _ = await guest.asked()
        kind, reset, _ = await guest.next(RESET)
        assert (kind, reset) == (RESET, channel)
        assert not guest.link.broken.done()


# --- listing ---


async def play_list(guest: HandPlayedGuest, *pages: bytes | dict[str, object]) -> list[Any]:
    task = asyncio.ensure_future(files.list_folder(guest.link, ""))
    channel, _ = await guest.asked()
    for page in pages:
        guest.frame(DATA, channel, page)
    guest.frame(CLOSE, channel)
    await asyncio.wait({task}, timeout=3)
    assert task.done(), "it hangs"
    return [(entry.name, entry.kind, entry.size) for entry in task.result()]


async def test_pages_are_joined_and_sorted() -> None:
    with HandPlayedGuest() as guest:
        assert await play_list(
            guest,
            {"entries": [["b", "file", 2], ["c", "link", 1]], "more": True},
            {"entries": [["a", "folder", 0]], "more": False},
        ) == [("a", "folder", 0), ("b", "file", 2), ("c", "link", 1)]


@pytest.mark.parametrize(
    "entry",
    [
        "a",
        [],
        ["a", "file"],
        ["a", "file", 1, 2],
        ["a", "device", 1],
        ["a", "file", "1"],
        ["a", "file", 1.5],
        ["a", "file", -1],
        ["a", "file", True],
        [1, "file", 1],
        ["", "file", 1],
        [".", "folder", 1],
        ["..", "folder", 1],
        ["a/b", "file", 1],
        ["/etc/passwd", "file", 1],
        ["a\0b", "file", 1],
        ["\u65e5", "file", 1],
        ["x" * 256, "file", 1],
        {"name": "a"},
        None,
    ],
)
async def test_entries_that_are_none(entry: object) -> None:
    """A name that leads elsewhere is no name: whoever joins it to a path must be safe."""
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_list(guest, {"entries": [entry], "more": False})


@pytest.mark.parametrize(
    "page", [b"nonsense", b"{}", b'{"entries": 5, "more": false}', b'{"more": false}']
)
async def test_pages_that_are_none(page: bytes) -> None:
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_list(guest, page)


async def test_the_same_name_twice() -> None:
    # readdir(3) may meet a file that is renamed meanwhile twice; it is told once.
    with HandPlayedGuest() as guest:
        entries = [["a", "file", 1], ["a", "folder", 0]]
        (entry,) = await play_list(guest, {"entries": entries, "more": False})
        assert entry[0] == "a"


async def test_a_listing_that_never_ends_is_refused() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(files.list_folder(guest.link, ""))
        channel, _ = await guest.asked()
        page = json.dumps({"entries": [["a", "file", 1]] * 2000, "more": True}).encode()
        for _ in range(60):
            if task.done():
                break
            guest.frame(DATA, channel, page)
            await asyncio.sleep(0.002)
        with pytest.raises((FileRefused, SandboxLost)):
            await soon(asyncio.wait_for(task, 3))


async def test_empty_pages_for_ever_are_refused() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(files.list_folder(guest.link, ""))
        channel, _ = await guest.asked()
        page = b'{"entries":[],"more":true}'
        for _ in range(3000):
            if task.done():
                break
            guest.frame(DATA, channel, page)
            await asyncio.sleep(0)
        ended = task.done()
        if not ended:
            task.cancel()
        with pytest.raises((FileRefused, SandboxLost)):
            await task


async def test_an_end_before_the_last_page() -> None:
    with HandPlayedGuest() as guest, pytest.raises(SandboxLost):
        await play_list(guest, {"entries": [["a", "file", 1]], "more": True})


# --- the link itself ---


async def test_no_hello_is_a_broken_link() -> None:
    with HandPlayedGuest(hello=False) as guest:
        guest.frame(RESET, 0, b"sandbox set-up: mount: no")
        await asyncio.wait({guest.link.broken}, timeout=3)
        assert "set-up" in guest.link.broken.result()
        assert guest.link.hello.done()


async def test_bytes_in_pieces_of_one() -> None:
    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(fetch(guest))
        channel, _ = await guest.asked()
        body = b'{"size": 3}'
        whole = struct.pack(">IHB", len(body), channel, DATA) + body
        whole += struct.pack(">IHB", 3, channel, DATA) + b"abc"
        whole += struct.pack(">IHB", 0, channel, CLOSE)
        for byte in whole:
            guest.raw(bytes([byte]))
            await asyncio.sleep(0)
        assert await soon(asyncio.wait_for(task, 3)) == b"abc"


async def test_a_handler_that_breaks_the_link_gets_nothing_more() -> None:
    with HandPlayedGuest() as guest:
        seen: list[Event] = []

        def handler(event: Event) -> None:
            seen.append(event)
            guest.link.close()

        guest.link.open("get", b"f", handler)
        channel, _ = await guest.asked()
        guest.raw((struct.pack(">IHB", 1, channel, DATA) + b"x") * 3)
        await asyncio.sleep(0.05)
        assert len(seen) == 1


async def test_closing_twice_and_using_after_is_harmless() -> None:
    with HandPlayedGuest() as guest:
        channel = guest.link.open("get", b"f", lambda event: None)
        guest.link.close()
        guest.link.close()
        guest.link.send(channel, b"x")
        guest.link.close_channel(channel)
        guest.link.reset_channel(channel, "x")
        guest.link.consumed(channel, 1)
        guest.link.flush()
        assert guest.link.queued(channel) == 0
        with pytest.raises(SandboxLost):
            guest.link.open("get", b"f", lambda event: None)


async def test_a_guest_that_reads_nothing_costs_bounded_memory() -> None:
    """A put waits for credit instead of queueing the whole file."""
    taken = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 65_536
            yield b"x" * 65_536

    with HandPlayedGuest() as guest:
        task = asyncio.ensure_future(files.put(guest.link, "f", content()))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert taken < 2_000_000
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
