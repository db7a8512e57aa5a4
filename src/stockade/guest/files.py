"""Workspace files, opened so that nothing a program planted can mislead the agent.

Each component is opened by itself, relative to the one before, and never through a
symbolic link: the descriptor form of ``openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)``,
which the standard library lacks.
"""

import errno
import os
import stat

WORKSPACE = "/workspace"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """Why a file cannot be read or written, in words for a person."""


def explain(error):
    """One sentence for an OSError."""
    if error.errno == errno.ELOOP:
        return "is a symbolic link, or lies behind one"
    if error.errno == errno.ENXIO:
        return "is not a regular file (a socket)"
    return os.strerror(error.errno) if error.errno else str(error)


def split(path):
    """The components of a plain relative path; refuses any other."""
    if not path:
        return []
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Refused("is not a plain path below /workspace")
    return parts


def open_folder(parts, create=False):
    """A descriptor of the folder that ``parts`` lead to, from the workspace on."""
    folder = os.open(WORKSPACE, _FOLDER)
    try:
        for part in parts:
            if create:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
            try:
                deeper = os.open(part, _FOLDER, dir_fd=folder)
            except NotADirectoryError:
                # O_DIRECTORY wins over O_NOFOLLOW in the error: tell the two apart.
                if stat.S_ISLNK(os.lstat(part, dir_fd=folder).st_mode):
                    raise Refused("is a symbolic link, or lies behind one") from None
                raise
            os.close(folder)
            folder = deeper
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_for_writing(path, mode):
    """A new or emptied regular file, its folders made as needed."""
    parts = split(path)
    if not parts:
        raise Refused("names no file")
    folder = open_folder(parts[:-1], create=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(parts[-1], flags, mode & 0o777, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _require_regular(os.fstat(file))
        os.ftruncate(file, 0)
        os.fchmod(file, mode & 0o777)
    except BaseException:
        os.close(file)
        raise
    return file


def open_for_reading(path):
    """``(descriptor, size)`` of a regular file; the size is fixed now."""
    parts = split(path)
    if not parts:
        raise Refused("names no file")
    folder = open_folder(parts[:-1])
    try:
        # O_NONBLOCK: a FIFO must not hold the agent for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
        _require_regular(status)
    except BaseException:
        os.close(file)
        raise
    return file, status.st_size


def _require_regular(status):
    if stat.S_ISDIR(status.st_mode):
        raise Refused("is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise Refused("is not a regular file (a FIFO, a device or a socket)")
    if status.st_nlink != 1:
        raise Refused("has %d links; only files with one are read or written" % status.st_nlink)


def list_folder(path):
    """Yields ``[name, kind, size]`` for each entry, nothing followed."""
    folder = open_folder(split(path))
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield [entry.name, _kind(status.st_mode), status.st_size]
    finally:
        os.close(folder)


def _kind(mode):
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def usage():
    """``(disk, inodes)`` of the scratch file system, each ``[used, size]``."""
    status = os.statvfs(WORKSPACE)
    blocks = [(status.f_blocks - status.f_bfree) * status.f_frsize, status.f_blocks * status.f_frsize]
    # The root and two folders are ours.
    return blocks, [status.f_files - status.f_ffree - 3, status.f_files - 3]
