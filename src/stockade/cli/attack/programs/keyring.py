"""Keeps and finds keys in the kernel, which outlive a sandbox."""

from stockade.cli.attack.programs.kit import CONTROL, refuses, run, syscall

PROCESS, SESSION, USER, USER_SESSION = -2, -3, -4, -5


def attack() -> None:
    for ring in (SESSION, USER, USER_SESSION, PROCESS):
        refuses("add_key", b"user", b"stockade-attack", b"kept", 4, ring)
        refuses("keyctl", 0, ring, 1)
        if CONTROL:
            _clear(ring)
    refuses("request_key", b"user", b"stockade-attack", None, 0)
    refuses("keyctl", 1, None)


def _clear(ring: int) -> None:
    key = syscall("add_key", b"user", b"stockade-attack", b"kept", 4, ring)
    syscall("keyctl", 9, key, ring)  # KEYCTL_UNLINK


if __name__ == "__main__":
    run(attack)
