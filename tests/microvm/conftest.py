"""What tests with a program in a VMM's place begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.microvm.kit import image_in, small_machine

from stockade.executor.microvm.vmm import Machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The executor's."""
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """For fakes, which do not look at it."""
    image = image_in(tmp_path / "image")
    yield small_machine(image)
    image.close()
