"""What the kernel says of this machine. Read for people; no decision rests on it."""

import os
from dataclasses import dataclass
from pathlib import Path

# mount_setattr(2), with which a sandbox's view of the host is made read-only.
OLDEST_KERNEL = (5, 12)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A setting that keeps user namespaces from working, and what to type about it."""

    fact: str
    remedy: str


@dataclass(frozen=True, slots=True)
class UserNamespaces:
    """Whether they may be made, as far as the kernel's settings tell."""

    most: int | None
    """How many this user may have; ``None`` where it cannot be read."""
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def fact(self) -> str:
        """One line for people."""
        if self.obstacles:
            return "; ".join(obstacle.fact for obstacle in self.obstacles)
        if self.most is None:
            return "unknown: user.max_user_namespaces cannot be read"
        return f"allowed, at most {self.most}"


def read_user_namespaces(root: Path = Path("/")) -> UserNamespaces:
    """Read the three switches that distributions have for them."""
    settings = root / "proc/sys"
    most = _number(settings / "user/max_user_namespaces")
    obstacles = []
    if most == 0:
        obstacles.append(
            Obstacle(
                "switched off: user.max_user_namespaces is 0",
                "allow user namespaces: sysctl -w user.max_user_namespaces=15000 (to keep it, a "
                "line in /etc/sysctl.d/90-stockade.conf); in a container, on its host",
            )
        )
    # A patch of Debian's and of a few others; absent elsewhere.
    if _number(settings / "kernel/unprivileged_userns_clone") == 0:
        obstacles.append(
            Obstacle(
                "for root alone: kernel.unprivileged_userns_clone is 0",
                "allow user namespaces to plain users, which a sandbox's guest is one of: "
                "sysctl -w kernel.unprivileged_userns_clone=1",
            )
        )
    # Ubuntu 23.10 and later. A namespace is made all the same, but has no power inside.
    if _number(settings / "kernel/apparmor_restrict_unprivileged_userns") == 1:
        obstacles.append(
            Obstacle(
                "without power inside, but for programs with an AppArmor profile: "
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                "let the launcher have user namespaces: write `abi <abi/4.0>, include "
                f"<tunables/global> profile stockade-launch {_launcher()} flags=(unconfined) "
                "{ userns, }` into /etc/apparmor.d/stockade-launch, then apparmor_parser -r "
                "/etc/apparmor.d/stockade-launch; or, for the whole machine: sysctl -w "
                "kernel.apparmor_restrict_unprivileged_userns=0",
            )
        )
    return UserNamespaces(most, tuple(obstacles))


def kernel_is_old(release: str) -> bool:
    """Whether a release like ``5.4.0-42-generic`` is below the oldest that can serve."""
    numbers = release.split("-", maxsplit=1)[0].split(".")[:2]
    return all(number.isdigit() for number in numbers) and (
        tuple(int(number) for number in numbers) < OLDEST_KERNEL
    )


def in_container(root: Path = Path("/")) -> bool:
    """Whether Docker's or Podman's mark is there."""
    return (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()


def describe_user() -> str:
    """Who the executor is, and what that means for the ids of sandboxes."""
    if os.geteuid() == 0:
        return "root: every sandbox gets a user id of its own"
    return f"uid {os.geteuid()}, not root: all sandboxes share this one id on the host"


def _launcher() -> Path:
    return Path(__file__).parents[1] / "namespace/native/stockade-launch"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
