"""Eight processes take memory, each of them less than the ceiling."""

import mmap
import struct
import time

from stockade.cli.attack.programs.kit import children, reached, run

MIB = 1 << 20
EACH = 48


def attack() -> None:
    shared = mmap.mmap(-1, 4096)

    def take(index: int) -> None:
        held = []
        for count in range(1, EACH // 4 + 1):
            held.append(bytearray(b"x") * (4 * MIB))
            struct.pack_into("Q", shared, index * 8, count * 4 * MIB)
            time.sleep(0.01)
        time.sleep(5)

    children(8, take)
    for _ in range(30):
        time.sleep(0.05)
        reached(sum(struct.unpack_from("8Q", shared)))


if __name__ == "__main__":
    run(attack)
