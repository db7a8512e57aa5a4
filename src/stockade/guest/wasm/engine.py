"""The engine's settings. A compiled module fits an engine with these very settings alone.

Run as a program it compiles: ``python engine.py MODULE COMPILED KIND PACKAGES``. That is the executor's part,
of modules that it installed itself; a tenant's module is compiled where it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import wasmtime

# Below the stack that wasmtime would give a call of its own; a guest's depth ends here.
MOST_STACK = 7 * 256 * 1024


def make_engine(*, epochs: bool = True, threads: bool = False) -> wasmtime.Engine:
    """Without threads of its own: the zygote is copied, and a thread would not be.

    ``epochs``: what it runs can be ended by ``increment_epoch``. ``threads``: of the compiler.
    """
    import wasmtime

    config = wasmtime.Config()
    config.parallel_compilation = threads
    config.epoch_interruption = epochs
    config.max_wasm_stack = MOST_STACK
    config.wasm_threads = False
    return wasmtime.Engine(config)


def main(module: str, compiled: str, kind: str, packages: str) -> None:
    """Compile one file into another, with the wasmtime of a folder of packages."""
    sys.path.append(packages)
    import wasmtime

    engine = make_engine(epochs=kind != "javascript", threads=True)
    Path(compiled).write_bytes(wasmtime.Module.from_file(engine, module).serialize())


if __name__ == "__main__":
    main(*sys.argv[1:])
