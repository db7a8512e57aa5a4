"""Looks for names of the host in what the kernel tells of a process: paths, process numbers."""

from stockade.cli.attack.programs.kit import FACTS, expect, run


def attack() -> None:
    for name in ("mountinfo", "mounts", "cgroup", "maps", "cmdline", "status", "limits", "sched"):
        try:
            with open("/proc/self/" + name) as file:
                text = file.read()
        except OSError as error:
            expect("/proc/self/" + name, True, error)
            continue
        named = [line for line in text.splitlines() if any(n in line for n in FACTS["names"])]
        expect("/proc/self/%s names nothing of the host" % name, not named, named[:1])


if __name__ == "__main__":
    run(attack)
