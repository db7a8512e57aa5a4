"""The broker's systemd unit."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy/systemd/stockade-broker.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_is_one(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/stockade/bin/stockade", "/bin/true"))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_it_has_what_a_broker_needs_and_no_more() -> None:
    lines = UNIT.read_text().splitlines()
    assert "CapabilityBoundingSet=" in lines
    assert "LimitCORE=0" in lines
    assert not any(line.startswith("PrivateUsers=") for line in lines)  # peers are told by uid
