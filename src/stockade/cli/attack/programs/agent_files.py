"""Changes the agent's files, so that the next start runs other code."""

import os

from stockade.cli.attack.programs.kit import FACTS, expect, refused, run


def attack() -> None:
    folder = FACTS["agent_folder"]
    files = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    expect("there are files to try", files, len(files))
    for path in files:
        refused("write " + path, lambda: os.close(os.open(path, os.O_WRONLY)), also=(26,))
        refused("chmod " + path, lambda: os.chmod(path, 0o777))
        refused("rename " + path, lambda: os.rename(path, path + "~"))
        refused("remove " + path, lambda: os.unlink(path), also=(16,))  # EBUSY: a mount point
    refused("add a file", lambda: open(folder + "/sitecustomize.py", "w"))
    refused("add a folder", lambda: os.mkdir(folder + "/__pycache__"), also=(17,))


if __name__ == "__main__":
    run(attack)
