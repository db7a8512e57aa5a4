"""pip: a wheel that was put in, installed without a network; its module and its command run."""

import os
import subprocess
import sys

WHEEL = "pebble-1.0-py3-none-any.whl"

subprocess.run(
    [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", "site", WHEEL],
    check=True,
)
sys.path.insert(0, os.path.abspath("site"))
import pebble  # noqa: E402

assert pebble.__file__ == os.path.abspath("site/pebble/__init__.py")
environment = {**os.environ, "PYTHONPATH": "site"}
command = [sys.executable, "site/bin/pebble"]
print(
    subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout,
    end="",
)
