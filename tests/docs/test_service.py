"""What the README shows of the service runs: ``stockade up``, and ``curl`` against it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.console import ROOT

WALK = re.findall(
    r"^```sh\n(.*?)^```", (ROOT / "docs/tools.md").read_text(), re.MULTILINE | re.DOTALL
)
SHELL = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Its URL and key, as it prints them."""
    said = tmp_path_factory.mktemp("up") / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "stockade.cli.main", "up", "--port", "0", "--tier", "namespace"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
        )
    try:
        deadline = time.monotonic() + 100
        while "curl " not in (text := said.read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        url = re.search(r"the gateway is at (\S+),", text)
        key = re.search(r"wanted: (stockade_\S+)", text)
        assert url
        assert key
        yield {"URL": url[1], "KEY": key[1], "FIRST": text[text.index("curl ") :].splitlines()[0]}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    text = said.read_text()
    # In order, and both well.
    assert text.index("gateway: ended with 0") < text.index("executor: ended with 0"), text
    assert process.returncode == 0


def _run(line: str, service: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        check=False,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **service},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.tier("namespace")
@pytest.mark.skipif(not shutil.which("curl"), reason="curl: not installed (apt-get install curl)")
@pytest.mark.parametrize("block", SHELL, ids=range(len(SHELL)))
def test_the_readmes_calls_answer_what_it_says(
    service: dict[str, str], block: str, tmp_path: Path
) -> None:
    """A line that begins with ``#=>`` is in what the block prints."""
    promised = re.findall(r"^#=> (.*)$", block, re.MULTILINE)
    assert promised
    output = _run(block, service, tmp_path)
    for text in promised:
        assert text in output


@pytest.mark.tier("namespace")
def test_the_walk_through_tools_prints_what_it_says(
    service: dict[str, str], tmp_path: Path
) -> None:
    """docs/tools.md, block after block."""
    folder = str(Path(sys.executable).parent)
    seen = {**service, "STOCKADE_URL": service["URL"], "STOCKADE_KEY": service["KEY"],
            "PATH": f"{folder}:{os.environ['PATH']}"}  # fmt: skip
    assert len(WALK) >= 4
    for block in WALK:
        promised = re.findall(r"^#=> (.*)$", block, re.MULTILINE)
        assert promised
        output = _run(block, seen, tmp_path)
        for text in promised:
            assert text in output


@pytest.mark.tier("namespace")
@pytest.mark.skipif(not shutil.which("curl"), reason="curl: not installed (apt-get install curl)")
def test_the_first_call_that_it_prints_works(service: dict[str, str], tmp_path: Path) -> None:
    """Without a key: it is for this machine alone."""
    assert '"head":"42\\n"' in _run(service["FIRST"], service, tmp_path)


@pytest.mark.tier("namespace")
def test_nothing_of_another_machines_name_is_answered(
    service: dict[str, str], tmp_path: Path
) -> None:
    """A browser that was told that evil.example is this machine gets nothing."""
    said = _run('curl -sS -H "Host: evil.example" "$URL/v1/executions"', service, tmp_path)
    assert '"code":"forbidden"' in said
    said = _run('curl -sS -H "Origin: http://evil.example" "$URL/v1/usage"', service, tmp_path)
    assert '"code":"forbidden"' in said
