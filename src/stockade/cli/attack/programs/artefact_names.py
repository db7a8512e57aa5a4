"""Leaves files with names that are hard to handle."""

from stockade.cli.attack.programs.kit import FACTS, expect, run


def attack() -> None:
    for name in FACTS["names_to_make"]:
        with open(name.encode("utf-8", "surrogateescape"), "wb") as file:
            file.write(b"content of " + name.encode("utf-8", "surrogateescape"))
    expect("the files were made", True)


if __name__ == "__main__":
    run(attack)
