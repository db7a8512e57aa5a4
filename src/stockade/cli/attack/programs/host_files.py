"""Reads what the host has and the image has not."""

import os

from stockade.cli.attack.programs.kit import FACTS, expect, refused, run

PATHS = (
    "/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/sudoers", "/etc/fstab", "/etc/resolv.conf",
    "/etc/ssl/private", "/etc/machine-id", "/root", "/home", "/boot", "/srv", "/mnt", "/media",
    "/var/lib", "/var/log", "/var/run", "/run/docker.sock", "/var/run/docker.sock",
    "/run/containerd/containerd.sock", "/run/systemd", "/run/user", "/sys/kernel", "/sys/fs/cgroup",
    "/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun",
)  # fmt: skip
FOLDERS = {
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "run", "sbin", "sys",
    "tmp", "usr", "var", "workspace",
}  # fmt: skip


def attack() -> None:
    secret = FACTS["secret"]
    ways = ("", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../../../../..", "/tmp/..")
    for way in ways:
        refused("read the host's file by %r" % way, lambda: open(way + secret).read())
    for path in PATHS:
        refused("look at " + path, lambda: os.lstat(path))
    expect("the root holds the image only", set(os.listdir("/")) <= FOLDERS, os.listdir("/"))
    for place in ("/run", "/sys"):
        inside = os.listdir(place) if os.path.exists(place) else []
        expect(place + " is empty", not inside, inside)
    refused("write to the image", lambda: open("/usr/stockade-attack", "w"))
    refused("write to the root", lambda: open("/stockade-attack", "w"))
    refused("write to /etc", lambda: open("/etc/ld.so.preload", "w"))


if __name__ == "__main__":
    run(attack)
