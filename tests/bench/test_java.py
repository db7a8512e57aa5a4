import shutil

import pytest

from bench import java
from stockade.port import Tier


@pytest.mark.tier("namespace")
async def test_one_round() -> None:
    """Bare java and the three ways of ours, in turns: rows, ratios, both promises judged."""
    if shutil.which("javac") is None:
        pytest.skip(
            "tier namespace: its image has no JDK (apt-get install openjdk-17-jdk-headless)"
        )
    report = await java.measure(rounds=1, tiers=(Tier.NAMESPACE,))
    assert set(report.figures) == {
        java.BARE,
        "namespace: a JVM that waits",
        "namespace: a new JVM",
        "namespace: a new source, compiled and verified",
    }
    (table,) = report.tables
    assert table.rows[0][3] == "1.00"
    assert [promise.target for promise in report.promises] == ["<= 0.3", "<= 2.0"]
