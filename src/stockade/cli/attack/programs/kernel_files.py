"""Reads and writes what the kernel tells of the host and lets be set."""

import errno
import hashlib
import os
import socket

from stockade.cli.attack.programs.kit import CONTROL, FACTS, GVISOR, expect, refused, run, syscall

READ = (
    "/proc/kallsyms", "/proc/keys", "/proc/key-users", "/proc/sched_debug", "/proc/config.gz",
    "/proc/kcore", "/proc/kmsg", "/proc/modules", "/proc/timer_list", "/proc/interrupts",
    "/proc/iomem", "/proc/partitions", "/proc/cmdline", "/proc/version", "/proc/uptime",
    "/proc/meminfo", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/locks", "/proc/swaps",
    "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname", "/proc/sysvipc/shm",
    "/sys/firmware", "/sys/kernel", "/sys/class/net", "/sys/class/dmi/id/product_uuid",
    "/sys/kernel/security", "/etc/machine-id", "/var/lib/dbus/machine-id", "/dev/kmsg",
    "/dev/console",
)  # fmt: skip
WRITTEN = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger",
    "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/proc/sys/vm/panic_on_oom",
    "/proc/self/attr/current", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups",
)  # fmt: skip
# A kernel of one's own may tell of itself.
OF_THE_OWN_KERNEL = (
    "/proc/cmdline", "/proc/version", "/proc/uptime", "/proc/meminfo",
    "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname",
)  # fmt: skip
MAPS = ("/proc/self/uid_map", "/proc/self/gid_map")


def attack() -> None:
    for path in READ:
        if GVISOR and path in OF_THE_OWN_KERNEL:
            _tells_nothing_of_the_host(path)
            continue
        refused("read " + path, lambda: os.close(os.open(path, os.O_RDONLY)))
    if not CONTROL:
        for path in WRITTEN:
            # EINVAL: there is no security module, so there is no such attribute.
            also = (errno.EINVAL,) if path.endswith("attr/current") else ()
            what = b"0 0 1" if path in MAPS else b"|/bin/false"
            refused("write " + path, lambda: _write(path, what), also)
    refused("the kernel's log", lambda: syscall("syslog", 10, None, 0))
    name = socket.gethostname()
    expect("the host's name is hidden", name == "sandbox", name)


def _tells_nothing_of_the_host(path: str) -> None:
    with open(path, "rb") as file:
        text = file.read()
    if path == "/proc/uptime":
        younger = float(text.split()[0]) < FACTS["uptime"]
        expect("read " + path, younger, "the sandbox's own")
    elif path != "/proc/meminfo":  # a documented limit: how much memory the host has
        own = hashlib.sha256(text).hexdigest() != FACTS["kernel_says"].get(path)
        expect("read " + path, own, "the sandbox's own")


def _write(path: str, text: bytes) -> int:
    file = os.open(path, os.O_WRONLY)
    return os.write(file, text)


if __name__ == "__main__":
    run(attack)
