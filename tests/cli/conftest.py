"""The command in this process, with a fake executor and files for its descriptors."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from stockade.cli.host import Host
from stockade.cli.main import cli
from stockade.executor.doctor.report import Report
from stockade.port import Tier
from stockade.port.fake import Call, FakeEnvironment, Script


class Ended(NamedTuple):
    """What a command did."""

    code: int
    out: bytes
    """What the program wrote, or the command on its standard output."""
    err: bytes
    """What the program wrote on standard error."""
    said: str
    """What the command said on standard error."""
    calls: list[Call]
    opened: tuple[Tier, ...]
    """The tiers that the executor was asked to open."""

    @property
    def call(self) -> Call:
        assert len(self.calls) == 1
        return self.calls[0]


Stockade = Callable[..., Ended]


@pytest.fixture
def stockade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stockade:
    """``stockade("run", "x.py", script=[...], stdin=b"")``, in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(
        *arguments: str,
        script: Script | None = None,
        stdin: bytes = b"",
        report: Report | None = None,
        tiers: Collection[Tier] = tuple(Tier),
    ) -> Ended:
        fake = FakeEnvironment(script, tiers=tiers)
        (tmp_path / "stdin").write_bytes(stdin)
        descriptors = [
            os.open(tmp_path / "stdin", os.O_RDONLY),
            os.open(tmp_path / "stdout", os.O_RDWR | os.O_CREAT | os.O_TRUNC),
            os.open(tmp_path / "stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC),
        ]
        opened: list[Tier] = []

        def open_environment(wanted: Collection[Tier]) -> FakeEnvironment:
            opened.extend(wanted)
            return fake

        stdin_, stdout, stderr = descriptors
        host = Host(open_environment, lambda: report or Report(()), stdin_, stdout, stderr)
        try:
            result = CliRunner().invoke(cli, list(arguments), obj=host, prog_name="stockade")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        out = (tmp_path / "stdout").read_bytes() + result.stdout_bytes
        err = (tmp_path / "stderr").read_bytes()
        return Ended(result.exit_code, out, err, result.stderr, fake.calls, tuple(opened))

    return call
