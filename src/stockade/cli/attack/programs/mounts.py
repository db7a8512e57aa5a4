"""Changes the mount tree, also from a user namespace, and tries the release agent of cgroup v1."""

import errno
import os

from stockade.cli.attack.programs.kit import children, expect, refuses, run, syscall

NEW_USER_AND_MOUNT = 0x1002_0000
BIND, REMOUNT, DETACH = 0x1000, 0x20, 2


def attack() -> None:
    for pid in children(1, lambda _: _try()):
        os.waitpid(pid, 0)


def _try() -> None:
    try:
        syscall("unshare", NEW_USER_AND_MOUNT)
    except OSError:
        pass
    os.makedirs("under", exist_ok=True)
    here = os.fsencode(os.path.abspath("under"))
    refuses("mount", b"none", here, b"tmpfs", 0, None)
    refuses("mount", b"none", here, b"proc", 0, None)
    refuses("mount", b"none", here, b"sysfs", 0, None)
    refuses("mount", b"/usr", here, None, BIND, None)
    refuses("mount", b"none", b"/usr", None, REMOUNT | BIND, None)
    refuses("mount", b"none", here, b"overlay", 0, b"lowerdir=/usr,upperdir=/tmp,workdir=/tmp")
    refuses("mount", b"cgroup", here, b"cgroup", 0, b"rdma")
    refuses("mount", b"cgroup", here, b"cgroup2", 0, None)
    refuses("umount2", b"/proc", DETACH)
    refuses("fsopen", b"tmpfs", 0)
    refuses("fspick", -100, b"/usr", 0)
    refuses("open_tree", -100, b"/usr", 1)
    refuses("move_mount", -100, b"/usr", -100, here, 0)
    refuses("mount_setattr", -100, b"/usr", 0, bytes(32), 32)
    refuses("pivot_root", here, here)
    refuses("chroot", here)
    for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/rdma/release_agent"):
        expect(path + " is out of reach", not os.path.exists(path), "not there")
    expect("nothing was mounted", not os.listdir("under"), errno.errorcode[errno.ENOENT])


if __name__ == "__main__":
    run(attack)
