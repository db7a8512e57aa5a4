"""What is read of the kernel's settings, from made-up roots."""

from pathlib import Path

import pytest

from stockade.executor.doctor.host import in_container, kernel_is_old, read_user_namespaces

MOST = "user/max_user_namespaces"
DEBIAN = "kernel/unprivileged_userns_clone"
UBUNTU = "kernel/apparmor_restrict_unprivileged_userns"


def make_root(root: Path, settings: dict[str, str]) -> Path:
    for name, value in settings.items():
        path = root / "proc/sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return root


def test_user_namespaces_are_allowed(tmp_path: Path) -> None:
    """A kernel without the distributions' patches has one setting only."""
    found = read_user_namespaces(make_root(tmp_path, {MOST: "15000\n"}))
    assert found.fact == "allowed, at most 15000"
    assert found.obstacles == ()


def test_switches_that_are_on_are_no_obstacle(tmp_path: Path) -> None:
    """Debian's and Ubuntu's settings in their permissive state."""
    root = make_root(tmp_path, {MOST: "9\n", DEBIAN: "1\n", UBUNTU: "0\n"})
    assert read_user_namespaces(root).obstacles == ()


@pytest.mark.parametrize(
    ("settings", "fact", "remedy"),
    [
        (
            {MOST: "0\n"},
            "user.max_user_namespaces is 0",
            "sysctl -w user.max_user_namespaces=15000",
        ),
        (
            {MOST: "9\n", DEBIAN: "0\n"},
            "kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            {MOST: "9\n", UBUNTU: "1\n"},
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "/etc/apparmor.d/stockade-launch",
        ),
    ],
)
def test_each_switch_is_named_with_what_to_type(
    tmp_path: Path, settings: dict[str, str], fact: str, remedy: str
) -> None:
    """CASES 146: the refusal names the knob."""
    found = read_user_namespaces(make_root(tmp_path, settings))
    assert fact in found.fact
    (obstacle,) = found.obstacles
    assert remedy in obstacle.remedy


def test_an_unreadable_setting_is_unknown(tmp_path: Path) -> None:
    """Neither allowed nor forbidden: it is not known."""
    assert read_user_namespaces(tmp_path).fact.startswith("unknown")
    assert read_user_namespaces(make_root(tmp_path, {MOST: "many"})).fact.startswith("unknown")


@pytest.mark.parametrize(
    ("release", "old"),
    [("5.4.0-42-generic", True), ("5.12", False), ("6.1.0-13-amd64", False), ("odd", False)],
)
def test_a_kernel_below_the_oldest_is_old(release: str, old: bool) -> None:
    """A release that cannot be read is not called old."""
    assert kernel_is_old(release) is old


def test_a_container_is_known_by_its_mark(tmp_path: Path) -> None:
    """Docker's and Podman's."""
    assert not in_container(tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path)
