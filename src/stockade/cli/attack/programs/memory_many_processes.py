"""Eight processes take memory, each of them less than the ceiling."""

import mmap
import struct
import time

from stockade.cli.attack.programs.kit import children, reached, run

MIB = 1 << 20
EACH = 48
BEGIN = 1024


def attack() -> None:
    shared = mmap.mmap(-1, 4096)

    def take(index: int) -> None:
        while not shared[BEGIN]:
            time.sleep(0.01)
        held = []
        for count in range(1, EACH // 2 + 1):
            held.append(bytearray(b"x") * (2 * MIB))
            struct.pack_into("Q", shared, index * 8, count * 2 * MIB)
            time.sleep(0.1)  # the report of it is to get out
        time.sleep(5)

    children(8, take)
    shared[BEGIN] = 1  # a slow machine starts the last one long after the first
    for _ in range(150):
        time.sleep(0.02)
        reached(sum(struct.unpack_from("8Q", shared)))


if __name__ == "__main__":
    run(attack)
