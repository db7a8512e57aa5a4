"""Noise and damaged streams against the host's end: only WireViolation, in bounds, in time."""

import importlib.util
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.executor.wire import WireViolation

from .guest_bytes import (
    FRAME,
    WINDOW,
    close,
    credit,
    data,
    end,
    frame,
    greeted,
    hello,
    reset,
)

FUZZ = Path(__file__).parents[2] / "fuzz"
SEEDS = sorted((FUZZ / "seeds" / "wire").iterdir())


def load_target() -> Callable[[bytes], None]:
    spec = importlib.util.spec_from_file_location("fuzz_wire", FUZZ / "fuzz_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target: Callable[[bytes], None] = module.one_input
    return target


one_input = load_target()

CHANNELS = st.integers(0, 7)
FRAMES = st.one_of(
    st.builds(data, CHANNELS, st.binary(min_size=1, max_size=30)),
    st.builds(data, CHANNELS, st.just(bytes(FRAME))),
    st.builds(credit, CHANNELS, st.sampled_from([0, 1, 131_072, 1_048_576, 2**32 - 1])),
    st.builds(close, CHANNELS),
    st.builds(end, CHANNELS),
    st.builds(reset, CHANNELS, st.text(st.characters(codec="utf-8"), max_size=5)),
    st.builds(frame, st.integers(0, 8), CHANNELS, st.binary(max_size=8)),
    st.just(hello()),
)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_seed(seed: Path) -> None:
    # What was once found interesting stays harmless, however it is read.
    content = seed.read_bytes()
    one_input(content)
    for size in range(8):
        for plan in range(16):
            one_input(bytes([size, plan]) + content[2:])


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_noise(noise: bytes) -> None:
    # Random bytes, from the first one or after HELLO, raise nothing but WireViolation.
    one_input(noise)
    one_input(noise[:2] + hello() + noise[2:])


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 7), st.integers(0, 15), st.lists(FRAMES, max_size=30))
def test_valid_frames_in_a_senseless_order(size: int, plan: int, frames: list[bytes]) -> None:
    # Well-formed frames that say anything raise nothing but WireViolation.
    size = 7 if sum(map(len, frames)) > 10_000 else size
    one_input(bytes([size, plan]) + hello() + b"".join(frames))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_streams(seed: int) -> None:
    # Bytes changed, left out, doubled or swapped in good streams raise nothing else either.
    chance = random.Random(seed)
    good = [path.read_bytes() for path in SEEDS]
    for _ in range(400):
        stream = bytearray(chance.choice(good) + chance.choice(good)[2:])
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(stream))
            other = chance.randrange(len(stream))
            match chance.randrange(4):
                case 0:
                    stream[place] = chance.randrange(256)
                case 1:
                    del stream[place : place + chance.randint(1, 5)]
                case 2:
                    stream[place:place] = stream[other : other + chance.randint(1, 20)]
                case _:
                    stream[place], stream[other] = stream[other], stream[place]
            if len(stream) < 3:
                break
        one_input(bytes(stream))


@pytest.mark.parametrize(
    ("flood", "size"),
    [
        pytest.param(data(1, b"x"), 1, id="the smallest data"),
        pytest.param(credit(1, 1), 0, id="the smallest credit"),
    ],
)
def test_a_flood_of_small_frames_keeps_nothing(flood: bytes, size: int) -> None:
    # What the host itself keeps does not grow with the number of frames, nor does their cost.
    connection = greeted(1)
    burst = flood * 1000
    connection.receive(burst)
    connection.consumed(1, 1000 * size)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    start = time.process_time()
    for _ in range(50):
        events = connection.receive(burst)
        assert len(events) == 1000
        connection.consumed(1, 1000 * size)
        del events
    assert time.process_time() - start < 5
    assert tracemalloc.get_traced_memory()[0] - before < 20_000
    tracemalloc.stop()


def test_a_channel_under_reset_keeps_nothing() -> None:
    # What comes between our RESET and the guest's is dropped, not gathered.
    connection = greeted(1)
    connection.reset(1, "enough")
    connection.outgoing()
    stream = data(1, bytes(FRAME))
    tracemalloc.start()
    for _ in range(WINDOW // FRAME):
        assert connection.receive(stream) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4_096
    with pytest.raises(WireViolation, match="beyond its credit"):
        connection.receive(stream)


def test_a_guest_that_ends_nothing_is_forgotten_with_the_connection() -> None:
    # A violation lets go of everything that was kept for the guest.
    connection = greeted()
    for _ in range(100):
        connection.send(connection.open("test"), bytes(1000))
    with pytest.raises(WireViolation):
        connection.receive(frame(9, 0))
    assert "[Channels: 0 open, 0 resetting, 0 finished | Bytes: 0 queued, 0 untaken" in repr(
        connection
    )
