"""Packages come from an archive that apt believes, by content, and the system stays as it is."""

from pathlib import Path

import pytest

from stockade.images import apt
from stockade.images.apt import Mirrors, Package, find_mirrors, open_archive
from stockade.images.errors import CannotBuild

from .kit import APT_GET, Debian, needs_dpkg

pytestmark = needs_dpkg


def test_packages_are_named_by_content(debian: Debian, tmp_path: Path) -> None:
    debian.add("tool", {"usr/bin/tool!": "#!/bin/sh\n"}, version="2:1.0+b1-1")
    debian.answer("tool", "tool", "base-files")
    with open_archive("amd64") as archive:
        packages = archive.resolve(["tool"])
        files = archive.fetch(packages, tmp_path / "cache")
    assert [(each.name, each.version, each.architecture) for each in packages] == [
        ("base-files", "1:2.0-3", "all"),
        ("tool", "2:1.0+b1-1", "all"),
    ]
    assert {path.name for path in files.values()} == {f"{each.sha256}.deb" for each in packages}
    for package, path in files.items():
        assert path.read_bytes() == debian.packages[package.name].read_bytes()


def test_what_the_cache_has_is_not_fetched_again(debian: Debian, tmp_path: Path) -> None:
    """Unless it was damaged there."""
    with open_archive("amd64") as archive:
        files = archive.fetch(archive.resolve(["base-files"]), tmp_path / "cache")
        assert archive.fetch(list(files), tmp_path / "cache") == files
    assert debian.calls.count("download") == 1
    (path,) = files.values()
    path.write_bytes(b"x" * path.stat().st_size)
    with open_archive("amd64") as archive:
        archive.fetch(list(files), tmp_path / "cache")
    assert debian.calls.count("download") == 2
    assert path.read_bytes() == debian.packages["base-files"].read_bytes()


def test_another_file_than_the_index_names_is_refused(debian: Debian, tmp_path: Path) -> None:
    with open_archive("amd64") as archive:
        packages = archive.resolve(["base-files"])
        debian.add("base-files", {"etc/debian_version": "of somebody else\n"})
        with pytest.raises(CannotBuild, match=r"base-files 1:2\.0-3 is not the file .* refused"):
            archive.fetch(packages, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.deb"))


def test_too_much_is_refused_before_it_is_fetched(debian: Debian, tmp_path: Path) -> None:
    huge = Package("huge", "1", "all", 3 << 30, "0" * 64)
    with open_archive("amd64") as archive, pytest.raises(CannotBuild, match="3072 MiB, and 2048"):
        archive.fetch([huge], tmp_path / "cache")
    assert "download" not in debian.calls


def test_a_package_that_is_not_there_is_named(debian: Debian) -> None:
    with open_archive("amd64") as archive, pytest.raises(CannotBuild, match="package nosuch"):
        archive.resolve(["nosuch"])


@pytest.mark.parametrize("name", ["-oDebug=1", "coreutils-", "a/unstable", "a=1", "", "../x", "A"])
def test_a_name_is_only_a_name(debian: Debian, name: str) -> None:
    """apt would take it for an option, a removal, a version or a file."""
    with open_archive("amd64") as archive, pytest.raises(CannotBuild, match="no name of a Debian"):
        archive.resolve([name])


def test_an_archive_that_cannot_be_reached_is_said_in_one_line(debian: Debian) -> None:
    (debian.root / "offline").touch()
    with (
        pytest.raises(CannotBuild, match=r"no suite .*trixie, bookworm.*: apt-get: E: no route"),
        open_archive("amd64"),
    ):
        pass
    assert debian.calls == ["update", "update"]


def test_without_its_security_suite_an_archive_will_do(debian: Debian) -> None:
    """Debian 12's sources may name a mirror that has none for 13."""
    (debian.root / "sources").write_text(
        "Debian|bookworm|http://mirror.invalid/debian\n"
        "Debian|bookworm-security|http://security.invalid\n"
    )
    refusing = (
        'grep -q security.invalid "$2" && { echo "E: no Release file" >&2; exit 100; }\n'
    ).replace('"$2"', '"$(dirname "$2")/sources.list"')
    debian.put("apt-get", APT_GET.replace("echo update", refusing + "    echo update"))
    with open_archive("amd64") as archive:
        assert archive.suite == "trixie"
    assert debian.calls == ["update"]


def test_mirrors_are_the_systems(debian: Debian) -> None:
    """A stranger's archive, another release's and a disc are none."""
    (debian.root / "sources").write_text(
        "Debian|stable|http://one.invalid\n"
        "$(ORIGIN)|trixie|http://two.invalid\n"
        "Debian|stable-security|http://three.invalid\n"
        "Google|stable|http://four.invalid\n"
        "Debian|trixie-backports|http://five.invalid\n"
        "Debian|stable|cdrom:[x]/\n"
    )
    assert find_mirrors() == Mirrors(
        ("http://one.invalid", "http://two.invalid"), ("http://three.invalid",)
    )


def test_a_system_without_debians_sources_is_told_of_the_option(debian: Debian) -> None:
    (debian.root / "sources").write_text("Ubuntu|noble|http://one.invalid\n")
    with pytest.raises(CannotBuild, match="--mirror"):
        find_mirrors()
    with open_archive("amd64", "http://mirror.invalid") as archive:
        assert archive.suite == "trixie"


def test_without_debians_keys_nothing_is_fetched(
    debian: Debian, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "KEYRING", Path("/nonexistent.gpg"))
    with (
        pytest.raises(CannotBuild, match=r"apt-get install debian-archive-keyring"),
        open_archive("amd64"),
    ):
        pass
    assert debian.calls == []
