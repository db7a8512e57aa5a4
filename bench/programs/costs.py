"""Seconds that one of each thing takes, as JSON: the mean of many."""

import hashlib
import json
import mmap
import os
import subprocess
import time

IMAGE_FILE = os.__file__
MEMORY = 32 << 20


def create() -> None:
    """A file made, written, closed, removed."""
    with open("file", "wb") as file:
        file.write(b"x" * 100)
    os.unlink("file")


def read() -> None:
    """The beginning of a file of the image."""
    with open(IMAGE_FILE, "rb", buffering=0) as file:
        file.read(4096)


def touch() -> None:
    """Memory that is new: each page of it is a fault."""
    with mmap.mmap(-1, MEMORY) as memory:
        for page in range(0, MEMORY, mmap.PAGESIZE):
            memory[page] = 1


def compute() -> None:
    """Nothing of the kernel's."""
    hashlib.sha256(bytes(range(256)) * 400).digest()
    sum(number * number for number in range(20_000))


def pass_on() -> None:
    """A byte through a pipe."""
    os.write(WRITER, b"x")
    os.read(READER, 1)


READER, WRITER = os.pipe()
WORK = {
    "getppid": (os.getppid, 5000),
    "stat": (lambda: os.stat(IMAGE_FILE), 2000),
    "read": (read, 500),
    "create": (create, 500),
    "pipe": (pass_on, 2000),
    "spawn": (lambda: subprocess.run(["/usr/bin/true"], check=True), 10),
    "memory": (touch, 3),
    "cpu": (compute, 20),
}
seconds = {}
for name, (work, count) in WORK.items():
    work()
    began = time.perf_counter()
    for _ in range(count):
        work()
    seconds[name] = (time.perf_counter() - began) / count
print(json.dumps(seconds))
