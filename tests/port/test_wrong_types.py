"""A request of wrong types is refused with a sentence, when it is made."""

from collections.abc import Callable
from typing import Any

import pytest

from stockade.port import (
    Command,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    PythonScript,
    PythonSource,
    SandboxRequest,
    TerminalSize,
)

source: Any = PythonSource
script: Any = PythonScript
command: Any = Command
request: Any = ExecutionRequest
sandbox: Any = SandboxRequest
size: Any = TerminalSize
limits: Any = Limits
GOOD = PythonSource("1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: source(5),
        lambda: source(None),
        lambda: source(["1"]),
        lambda: source("\ud800"),
        lambda: source("1", arguments="abc"),
        lambda: source("1", arguments=("\ud800",)),
        lambda: source("1", arguments=(5,)),
        lambda: source("1", fresh="no"),
        lambda: source("1", fresh=None),
        lambda: script("a.py", b"", fresh=1),
        lambda: script("a.py", "text"),
        lambda: script(5, b""),
        lambda: script("../a.py", b""),
        lambda: command("ls"),
        lambda: command(()),
        lambda: command(("",)),
        lambda: request(None),
        lambda: request("print(1)"),
        lambda: request(GOOD, environment={"A": 1}),
        lambda: request(GOOD, environment={5: "1"}),
        lambda: request(GOOD, environment=["A"]),
        lambda: request(GOOD, environment={"A": "\ud800"}),
        lambda: request(GOOD, files={"a": "text"}),
        lambda: request(GOOD, files={5: b""}),
        lambda: request(GOOD, artefacts="ab"),
        lambda: request(GOOD, artefacts=(5,)),
        lambda: request(GOOD, working_directory=5),
        lambda: request(GOOD, working_directory=None),
        lambda: request(GOOD, terminal="x"),
        lambda: request(GOOD, terminal=(24, 80)),
        lambda: sandbox(tenant=5),
        lambda: sandbox(tenant=""),
        lambda: sandbox(limits=None),
        lambda: sandbox(egress=None),
        lambda: sandbox(egress={"allow": ["*"]}),
        lambda: sandbox(tier="namespace"),
        lambda: sandbox(trust="hostile"),
        lambda: sandbox(trust=None),
        lambda: size("1", 2),
        lambda: size(1.5, 2),
        lambda: size(0, 2),
        lambda: limits(memory_bytes="1G"),
        lambda: limits(processes=True),
        lambda: limits(wall_seconds=float("nan")),
        lambda: limits(cpus=-1),
    ],
)
def test_a_wrong_type_is_refused(make: Callable[[], object]) -> None:
    # Never TypeError, AttributeError or UnicodeEncodeError, and never later.
    with pytest.raises(InvalidRequest):
        make()
