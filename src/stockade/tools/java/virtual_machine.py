"""How a JVM is started in a sandbox: its options, by the limits that hold for it."""

from typing import Final

from stockade.port import MIB, InvalidRequest, Limits

LEAST_MEMORY: Final = 160 * MIB
LEAST_PROCESSES: Final = 24
LEAST_DISK: Final = 4 * MIB

# What a JVM needs beside its heap: classes, compiled code, stacks, its own.
_BESIDE_HEAP: Final = 96 * MIB


def check_limits(limits: Limits) -> None:
    """Raises :class:`InvalidRequest` where no JVM would come up: it would not say why."""
    for name, least in (
        ("memory_bytes", LEAST_MEMORY),
        ("processes", LEAST_PROCESSES),
        ("disk_bytes", LEAST_DISK),
    ):
        value = getattr(limits, name)
        if value < least:
            raise InvalidRequest(
                f"limits.{name}", f"{value} is too little for a JVM, which takes {least}"
            )


def options(memory_bytes: int) -> tuple[str, ...]:
    """For a program that begins, works and ends within a second, most of the time."""
    heap = min((memory_bytes - _BESIDE_HEAP) * 4 // 5, 8 * 1024 * MIB)
    return (
        # It names its ends itself; there is nothing of a container to be looked for.
        f"-Xmx{heap // MIB}m",
        "-XX:-UseContainerSupport",
        "-XX:MaxMetaspaceSize=64m",
        "-XX:CompressedClassSpaceSize=32m",
        "-XX:ReservedCodeCacheSize=32m",
        # Of the JDK's collectors the one whose archived heap is mapped and not made.
        "-XX:+UseG1GC",
        "-XX:ParallelGCThreads=1",
        "-XX:ConcGCThreads=1",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+DisableAttachMechanism",
        "-XX:-CreateCoredumpOnCrash",
        "-XX:ErrorFile=/dev/null",
        # A tool's output is its own: no word of the JVM's about its archives.
        "-Xlog:disable",
        "-Dfile.encoding=UTF-8",
        "-Duser.language=en",
    )
