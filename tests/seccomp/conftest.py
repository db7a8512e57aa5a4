"""The generated filters, read from the headers as the C compiler reads them."""

import re
from pathlib import Path

import pytest

from stockade.executor.namespace import native

NATIVE = Path(native.__file__).parent

# linux/bpf_common.h
BITS = {
    "BPF_LD": 0x00, "BPF_ALU": 0x04, "BPF_JMP": 0x05, "BPF_RET": 0x06,
    "BPF_W": 0x00, "BPF_ABS": 0x20, "BPF_K": 0x00, "BPF_AND": 0x50,
    "BPF_JA": 0x00, "BPF_JEQ": 0x10, "BPF_JGE": 0x30, "BPF_JSET": 0x40,
}  # fmt: skip

# struct sock_filter: code, jt, jf, k
Program = list[tuple[int, int, int, int]]


def read_header(path: Path) -> Program:
    program = []
    body = path.read_text().partition("seccomp_filter[] = {")[2]
    for line in body.splitlines():
        if found := re.match(r"\s*\{ ([A-Z_| ]+), (\d+), (\d+), (\w+) \},", line):
            code = sum(BITS[name] for name in found[1].split(" | "))
            program.append((code, int(found[2]), int(found[3]), int(found[4], 0)))
    assert len(program) == body.count("{ BPF")
    return program


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    return {name: read_header(NATIVE / f"seccomp_{name}.h") for name in ("x86_64", "aarch64")}
