# ruff: noqa: INP001  # a script, in no package
"""Coverage-guided fuzzing of the host's end of the wire.

    pip install atheris
    PYTHONPATH=src python fuzz/fuzz_wire.py fuzz/seeds/wire -max_len=4096 -max_total_time=600

atheris is in no lock of ours: it has wheels for few Pythons, and no test needs it.

Any other argument is libFuzzer's; new inputs that reach new code are written to the first
folder named, so name a scratch folder before ``fuzz/seeds/wire`` to keep the seeds as they
are.  Without atheris, every file named (or every file of the seeds) is run once.

An input is one byte that chooses the size of the reads, one byte that chooses what the host
does in between, and then what the guest sends.  Nothing but WireViolation may be raised,
and what the host keeps has to stay bounded.  ``tests/wire/test_hostile_bytes.py`` runs the
seeds, and the same check over damaged streams.
"""

import sys
from pathlib import Path

try:
    import atheris  # type: ignore[import-untyped,unused-ignore]
except ModuleNotFoundError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["stockade"]):
        from stockade.executor.wire import Connection, Data, WireViolation, load_object
else:
    from stockade.executor.wire import Connection, Data, WireViolation, load_object

SEEDS = Path(__file__).parent / "seeds" / "wire"
WINDOW = 262_144
LARGEST_FRAME = 65_543
READ_SIZES = (1, 2, 7, 8, 64, 1000, 4096, 65_536)


def one_input(data: bytes) -> None:
    """Feed one input to a connection, and its bytes as JSON to the loader."""
    if len(data) < 2:
        return
    size = READ_SIZES[data[0] % len(READ_SIZES)]
    plan = data[1]
    stream = data[2:]
    try:
        load_object(stream, "fuzz")
    except WireViolation:
        pass
    connection = Connection()
    # Channels 1 to 6: open, queued, closed by us, reset by us, both, and one with much to send.
    connection.open("fuzz", span=6)
    connection.send(2, b"queued")
    connection.close(3)
    connection.reset(4, "fuzz")
    connection.close(5)
    connection.outgoing()
    connection.reset(5, "fuzz")
    connection.send(6, bytes(2 * WINDOW))
    untaken: dict[int, int] = {}
    try:
        for start in range(0, len(stream), size):
            for event in connection.receive(stream[start : start + size]):
                if isinstance(event, Data):
                    length = len(event.data)
                    untaken[event.channel] = untaken.get(event.channel, 0) + length
                    if untaken[event.channel] > WINDOW:
                        raise AssertionError(f"more than the window: {connection!r}")
                    if plan & 1:
                        connection.consumed(event.channel, length)
                        untaken[event.channel] = 0
                if plan & 2:
                    # Late words about a channel that may have ended do nothing.
                    channel = getattr(event, "channel", 0) or 1
                    connection.consumed(channel, 0)
                    connection.close(channel)
            if plan & 4:
                connection.reset(1 + start % 6, "plan")
                untaken.pop(1 + start % 6, None)
            if plan & 8:
                connection.outgoing()
            check(connection)
        connection.outgoing()
    except WireViolation:
        if connection.has_outgoing:
            raise AssertionError("a dead connection has something to say") from None
        try:
            connection.receive(b"")
        except WireViolation:
            return
        raise AssertionError("a dead connection goes on") from None


def check(connection: Connection) -> None:
    """The state can be shown, and an incomplete frame is no larger than a frame."""
    shown = repr(connection)
    held = int(shown.rsplit(", ", 1)[1].split()[0])
    if held >= LARGEST_FRAME:
        raise AssertionError(f"too much is held: {shown}")


def main() -> None:
    """Fuzz with atheris, or run the files that are named once."""
    if atheris is not None:
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()
        return
    paths = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    for path in paths or [SEEDS]:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            one_input(file.read_bytes())


if __name__ == "__main__":
    main()
