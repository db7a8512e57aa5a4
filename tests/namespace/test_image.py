"""The image's name changes with what a guest can read of the host's settings."""

from pathlib import Path

import pytest

from stockade.executor.namespace.image import Bind, _digest, find_host_image

pytestmark = pytest.mark.plain_user


def test_settings_are_named_by_content(tmp_path: Path) -> None:
    settings = tmp_path / "java"
    (settings / "security").mkdir(parents=True)
    (settings / "empty").mkdir()
    file, link = settings / "security" / "policy", settings / "link"
    file.write_text("one")
    link.symlink_to("here")
    digests = [_digest([Bind(settings, "/etc/java")], [])]

    def changed() -> bool:
        digests.append(_digest([Bind(settings, "/etc/java")], []))
        return digests[-1] not in digests[:-1]

    assert not changed()
    file.write_text("two")
    assert changed()
    link.unlink()
    link.symlink_to("there")
    assert changed()
    file.rename(settings / "security" / "other")
    assert changed()
    file.mkdir()
    assert not changed()


def test_of_etc_there_are_settings_of_programs_and_nothing_of_the_host() -> None:
    """As docs/threats.md says."""
    bound = {bind.target for bind in find_host_image().binds if bind.target.startswith("/etc")}
    allowed = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/matplotlibrc", "/etc/java-")
    assert all(target.startswith(allowed) for target in bound), bound
