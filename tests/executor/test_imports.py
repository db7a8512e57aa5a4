"""A call by the command line imports what it needs: each module is time that it waits."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from stockade.cli.main import cli
try: cli.main(["run", "--tier", "namespace", "-c", "pass"])
except SystemExit as ended: assert not ended.code, ended.code
loaded = {".".join(name.split(".")[:3]) for name in sys.modules}
print(sorted(loaded & {"rich", "stockade.executor.gvisor", "stockade.executor.doctor",
                       "stockade.cli.doctor", "stockade.cli.attack"}))
"""


@pytest.mark.plain_user
@pytest.mark.tier("namespace")
def test_one_tier_imports_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
