"""Opening the wasm tier: its image, and the zygote that has its engines loaded."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stockade.executor.cgroups import CgroupTree
from stockade.executor.namespace.identity import Identities
from stockade.executor.namespace.image import (
    Bind,
    Copy,
    HostImage,
    find_host_image,
    guest_folder,
)
from stockade.executor.namespace.opening import open_namespaces
from stockade.executor.namespace.tier import Kind, NamespaceTier
from stockade.executor.namespace.zygotes import Zygotes
from stockade.executor.wasm.cache import compiled
from stockade.executor.wasm.engines import Engines, find_engines
from stockade.port import MIB, Tier

# Not isolated (-I): as in namespace/zygote.py.
_BOOT: Final = """
import sys
sys.path[0:1] = ['/opt/stockade', '/opt/wasm/packages']
from stockade_guest.wasm import worker
worker.main(sys.argv[1:])
"""
_PLACE: Final = "/opt/wasm"
_KIND: Final = Kind(
    Tier.WASM,
    parked_bytes=12 * MIB,
    also_mounted=(f"{_PLACE}/",),
    # The engine's own: one that waits, some for files, one for the deadline.
    own_threads=16,
)


async def open_wasm(
    cgroups: Callable[[], Awaitable[CgroupTree]], identities: Identities, modules: Sequence[str]
) -> NamespaceTier:
    """The tier, whose interpreters are compiled now if they never were."""
    engines = await asyncio.to_thread(find_engines)
    image = await asyncio.to_thread(_image, engines)
    zygotes = Zygotes(image, identities, modules, _BOOT)
    return await open_namespaces(image, cgroups, zygotes, _KIND)


def _image(engines: Engines) -> HostImage:
    """The host's image, with the engines and our worker added."""
    host = find_host_image()
    interpreters = (engines.python, engines.javascript)
    binds = [
        Bind(engines.wasmtime, f"{_PLACE}/packages/wasmtime"),
        Bind(engines.quickjs, f"{_PLACE}/packages/quickjs_rs"),
        *(
            Bind(compiled(engines, each), f"{_PLACE}/modules/{each.kind}.compiled")
            for each in interpreters
        ),
    ]
    copies = [
        Copy(path, f"/opt/stockade/stockade_guest/wasm/{path.name}") for path in _worker_files()
    ]
    digest = hashlib.sha256(host.digest.encode())
    for said in (engines.wasmtime_version, *(each.sha256 for each in interpreters)):
        digest.update(f"\0{said}".encode())
    for copy in copies:
        digest.update(copy.source.read_bytes())
    return replace(
        host,
        binds=(*host.binds, *binds),
        copies=(*host.copies, *copies),
        digest=f"wasm-sha256:{digest.hexdigest()}",
    )


def _worker_files() -> list[Path]:
    folder = guest_folder() / "wasm"
    return sorted((*folder.glob("*.py"), *folder.glob("*.js")))
