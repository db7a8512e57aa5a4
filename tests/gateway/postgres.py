"""A real PostgreSQL server in a folder, on a unix socket, for as long as the tests run."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def binaries() -> Path | None:
    """Where its programs are."""
    for folder in _DEBIAN:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    found = shutil.which("postgres")
    return None if found is None else Path(found).resolve().parent


def _user() -> str | None:
    """It refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL of a database on a server of our own, without its name."""
    programs = binaries()
    assert programs is not None
    user = _user()
    # The socket's path is short: it has 107 characters at the most.
    home = Path(tempfile.mkdtemp(prefix="stk-pg-", dir="/tmp"))
    as_user: list[str] = []
    if user is not None:
        shutil.chown(home, user)
        as_user = ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid),
                   "--clear-groups", "--"]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}

    def run(*command: str) -> None:
        done = subprocess.run(
            [*as_user, *command], cwd=home, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    data = home / "data"
    try:
        run(
            str(programs / "initdb"), "-D", str(data), "-U", "stockade", "--auth=trust",
            "--encoding=UTF8", "--no-instructions", "--no-sync",
        )  # fmt: skip
        run(
            str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", "60", "-l", str(home / "log"),
            # Nothing in /dev/shm, which other tests look at.
            "-o", f"-k {home} -c listen_addresses='' -c max_connections=200 "
            "-c dynamic_shared_memory_type=mmap -c autovacuum=off",
            "start",
        )  # fmt: skip
        try:
            yield f"postgresql://stockade@/%s?host={home}"
        finally:
            run(str(programs / "pg_ctl"), "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
