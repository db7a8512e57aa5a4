"""git: a repository made, committed to, branched, merged, cloned, and read."""

import os
import subprocess


def git(*arguments: str, folder: str = "one") -> str:
    """Its output."""
    command = ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit(name: str, text: str) -> None:
    """A file with its commit."""
    with open(os.path.join("one", name), "w") as file:
        file.write(text)
    git("add", name)
    git("commit", "--quiet", "--message", name)


os.mkdir("one")
git("init", "--quiet", "--initial-branch", "main")
commit("first", "1\n")
git("switch", "--quiet", "--create", "side")
commit("second", "2\n")
git("switch", "--quiet", "main")
commit("third", "3\n")
git("merge", "--quiet", "--message", "both", "side")
git("clone", "--quiet", "one", "two", folder=".")
assert sorted(os.listdir("two")) == [".git", "first", "second", "third"]
git("fsck", "--strict", folder="two")
assert git("status", "--porcelain", folder="two") == ""
print(git("log", "--format=%s", "--first-parent", folder="two").split())
