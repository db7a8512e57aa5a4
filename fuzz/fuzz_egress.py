# ruff: noqa: INP001  # a script, in no package
"""Coverage-guided fuzzing of what a guest sends to the egress proxy.

    pip install atheris
    PYTHONPATH=src python fuzz/fuzz_egress.py SCRATCH fuzz/seeds/egress -max_total_time=600

Without atheris, every file named (or every file of the seeds) is run once. Nothing but the
errors that each decoder names may be raised, and what is read has to read as itself again.
"""

import sys
from pathlib import Path

try:
    import atheris  # type: ignore[import-untyped,unused-ignore]
except ModuleNotFoundError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["stockade", "idna"]):
        from stockade.egress.answers import Refusal
        from stockade.egress.client_hello import BadHello, read_hello
        from stockade.egress.front import Front
        from stockade.egress.http_head import find_head, read_head
        from stockade.egress.names import BadHost, read_host
else:
    from stockade.egress.answers import Refusal
    from stockade.egress.client_hello import BadHello, read_hello
    from stockade.egress.front import Front
    from stockade.egress.http_head import find_head, read_head
    from stockade.egress.names import BadHost, read_host

SEEDS = Path(__file__).parent / "seeds" / "egress"


def one_input(data: bytes) -> None:
    """Feed one input to each decoder."""
    try:
        read_hello(data)
    except BadHello:
        pass
    front = Front()
    try:
        for at in range(0, len(data), 16):
            front.receive(data[at : at + 16])
            front.next()
    except Refusal as refusal:
        refusal.http()
        front.refused(refusal)
    try:
        end = find_head(data)
        if end is not None:
            read_head(data[:end])
    except Refusal:
        pass
    try:
        host = read_host(data.decode("utf-8", "replace"))
    except BadHost:
        return
    assert read_host(host.name) == host


def main() -> None:
    """Fuzz, or run the files once."""
    if atheris is not None:
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()
        return
    named = [Path(each) for each in sys.argv[1:] if not each.startswith("-")]
    for path in named or [SEEDS]:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            one_input(file.read_bytes())


if __name__ == "__main__":
    main()
