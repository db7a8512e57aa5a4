"""One process takes memory and writes to every page of it."""

from stockade.cli.attack.programs.kit import reached, run

MIB = 1 << 20


def attack() -> None:
    held = []
    for count in range(1, 25):
        held.append(bytearray(b"x") * (16 * MIB))
        reached(count * 16 * MIB)


if __name__ == "__main__":
    run(attack)
