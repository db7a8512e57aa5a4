"""Files of the host: what goes in, and what comes out."""

import errno
import os
import select
import stat
from typing import NamedTuple

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure

_PIECE = 1 << 20


def open_input(path: str) -> int:
    """Open a file for reading; a sentence and ``EX_NOINPUT`` where that cannot be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure(f"{path!r}: there is no such file", exit_codes.NO_INPUT) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Failure(f"{path!r} cannot be opened: {reason}", exit_codes.NO_INPUT) from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # it can be opened, but not read
        os.close(descriptor)
        raise Failure(f"{path!r} is a folder; a file is needed here", exit_codes.NO_INPUT)
    return descriptor


def read_input(path: str, ceiling: int, rule: str) -> bytes:
    """Read a whole file. ``rule`` says what a file beyond ``ceiling`` bytes breaks."""
    descriptor = open_input(path)
    try:
        return read_bounded(descriptor, repr(path), ceiling, rule)
    finally:
        os.close(descriptor)


def read_bounded(descriptor: int, name: str, ceiling: int, rule: str) -> bytes:
    """Read to the end. Its size is not asked for: it may be a pipe, or grow."""
    pieces: list[bytes] = []
    total = 0
    try:
        while piece := os.read(descriptor, _PIECE):
            pieces.append(piece)
            total += len(piece)
            if total > ceiling:
                raise click.UsageError(f"{name} is larger than {ceiling} bytes: {rule}")
    except OSError as error:
        raise Failure(f"{name} cannot be read: {error.strerror}", exit_codes.HOST_IO) from None
    return b"".join(pieces)


class Target(NamedTuple):
    """A file of the host that will be written."""

    folder: str
    name: str
    force: bool

    def __str__(self) -> str:
        return os.path.join(self.folder, self.name)  # noqa: PTH118 - may be no valid UTF-8

    def write(self, data: bytes) -> None:
        """Make the file appear whole or not at all. Follows no link in its last component."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._write_in(folder, data)
        finally:
            os.close(folder)

    def _write_in(self, folder: int, data: bytes) -> None:
        temporary = f".stockade-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            if self.force:
                self._check_replaceable(folder)
                os.rename(temporary, self.name, src_dir_fd=folder, dst_dir_fd=folder)
                return
            # A rename would replace what appeared since the command line was read; a link fails.
            os.link(temporary, self.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.unlink(temporary, dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    def _check_replaceable(self, folder: int) -> None:
        try:
            status = os.stat(self.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        # Replacing /dev/stdout or a device would harm the whole machine.
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(errno.EEXIST, "is no regular file, and so is not replaced")


def target(option: str, destination: str, default_name: str, force: bool) -> Target:
    """Settle, before anything runs, where a file will go."""
    if destination.endswith("/") or os.path.isdir(destination):  # noqa: PTH112
        folder, name = destination, default_name
    else:
        folder, name = os.path.split(destination)
    folder = folder or "."
    chosen = Target(folder, name, force)
    if not os.path.isdir(folder):  # noqa: PTH112
        raise click.UsageError(f"{option} {destination!r}: there is no folder {folder!r}")
    try:
        status = os.lstat(str(chosen))
    except FileNotFoundError:
        return chosen
    except OSError as error:
        raise click.UsageError(f"{option} {str(chosen)!r}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise click.UsageError(
            f"{option} {str(chosen)!r}: is no regular file, and so is not replaced"
        )
    if not force:
        raise click.UsageError(f"{option} {str(chosen)!r}: exists already; --force replaces it")
    return chosen


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything to a descriptor that may be slow or non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Somebody who shares the descriptor set O_NONBLOCK on it.
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()
