"""Opening an executor inside the calling process."""

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial

from stockade.executor.egress.opening import (
    PUBLIC_NETWORKS_VARIABLE,
    EgressSettings,
    OpenLease,
    parse_networks,
)
from stockade.executor.environment import LocalEnvironment
from stockade.executor.namespace.image import find_host_image
from stockade.executor.namespace.opening import open_namespaces
from stockade.executor.namespace.zygote import PRELOADED
from stockade.executor.namespace.zygotes import Zygotes
from stockade.executor.pool import PoolPolicy
from stockade.executor.resources import Resources
from stockade.executor.sandbox import Profile
from stockade.executor.tiers import Opener, TierDriver, Tiers
from stockade.port import InvalidRequest, SandboxRequest, Tier, Unavailable
from stockade.port.egress import Network
from stockade.port.policy import DEDICATED, OF_LANGUAGES, OWN_KERNEL, STRENGTH, spell

_DEFAULT_POOL = PoolPolicy()
_BY_USE = (
    *(tier for tier in reversed(STRENGTH) if tier not in DEDICATED),
    *(tier for tier in reversed(STRENGTH) if tier in DEDICATED),
)
"""The strongest first, but behind the others those that serve only who names them."""
_MOST_MODULES = 256
"""As guest/native/agent.c has."""


class AuthMode(StrEnum):
    """How an executor knows its callers, and so whose code it will get."""

    DEV = "dev"
    """It does not: all of them are the developer who opened it."""
    API_KEY = "api_key"
    """By keys: it serves others, and what they send is strangers' code."""


@asynccontextmanager
async def open_local(
    *,
    warm: bool = True,
    pool: PoolPolicy = _DEFAULT_POOL,
    auth_mode: AuthMode = AuthMode.DEV,
    tiers: Collection[Tier] | None = None,
    preloaded: Sequence[str] | None = None,
    allow_emulation: bool = False,
    egress_public_networks: Sequence[str] | None = None,
    open_lease: OpenLease | None = None,
) -> AsyncIterator[LocalEnvironment]:
    """The tiers of this machine, behind the port; everything ends with the context.

    ``pool``: how much is parked, started at once and waited for, in all tiers together.
    ``warm=False`` parks and preloads nothing, for a process that makes one call; a tier is
    then opened when it is wanted, the strongest first. ``tiers`` are the ones to use, by
    default all that this machine can start. ``preloaded`` are the modules that the warm
    interpreters have loaded, by default small ones that many programs import; one that the
    image lacks is left out. Each costs every parked sandbox memory.

    ``allow_emulation``: where machines cannot be run by the CPU, let software be the CPU. That is
    slow and no boundary: it is for tests, and serves where the tier is named, in a request or
    as the only one of ``tiers``.

    ``egress_public_networks``: networks that guests may reach by a name as if they were public,
    though they are private or special; without it those of STOCKADE_EGRESS_PUBLIC_NETWORKS, which
    are separated by commas. ``open_lease``: the way to a broker, for policies that need one.

    Raises :class:`~stockade.port.Unavailable` where no tier can be started. Outside
    ``auth_mode=dev``, also where none of them has a kernel of its own.
    """
    wanted = _checked(tiers)
    if allow_emulation and auth_mode is not AuthMode.DEV:
        raise InvalidRequest(
            "allow_emulation", f"is for auth_mode=dev: in auth_mode={auth_mode} code is strangers'"
        )
    modules = _checked_modules(PRELOADED if preloaded is None else preloaded) if warm else ()
    egress = EgressSettings(_public_networks(egress_public_networks), open_lease)
    resources = Resources()
    openers: dict[Tier, Opener] = {
        Tier.NAMESPACE: partial(_open_namespace, resources, modules),
        Tier.GVISOR: partial(_open_gvisor, resources, modules, warm),
        Tier.MICROVM: partial(_open_microvm, resources, modules, warm, allow_emulation),
        Tier.VM: partial(_open_vm, resources, modules, allow_emulation),
        Tier.WASM: partial(_open_wasm, resources, modules),
    }
    machines = [tier for tier in wanted if tier in openers]
    # One that runs some languages alone makes up for no other, unless nothing else is wanted.
    any_program = [tier for tier in machines if tier not in OF_LANGUAGES]
    opening = Tiers({tier: openers[tier] for tier in machines}, resources)
    environment = LocalEnvironment(
        opening,
        pool if warm else replace(pool, floor=0, ceiling=0),
        egress,
        expressions=Tier.EXPRESSION in wanted,
    )
    try:
        if auth_mode is not AuthMode.DEV and any_program:
            isolating = [tier for tier in _BY_USE if tier in OWN_KERNEL]
            if missing := await opening.wait_for_one(isolating):
                raise Unavailable(
                    "outside auth_mode=dev an executor needs a tier whose guests do not share "
                    f"this machine's kernel, and none can be started here: {spell(missing)}",
                    missing,
                )
        if warm:
            opening.open_ahead()
        if missing := await opening.wait_for_one(any_program or machines):
            which = "no tier" if tiers is None else "none of the tiers that were asked for"
            raise Unavailable(f"{which} can be started here: {spell(missing)}", missing)
        yield environment
    finally:
        await environment.close()


def _public_networks(given: Sequence[str] | None) -> tuple[Network, ...]:
    if given is not None:
        return parse_networks("egress_public_networks", given)
    named = os.environ.get(PUBLIC_NETWORKS_VARIABLE, "")
    texts = [text.strip() for text in named.split(",") if text.strip()]
    return parse_networks(PUBLIC_NETWORKS_VARIABLE, texts)


def _checked(tiers: Collection[Tier] | None) -> list[Tier]:
    """Which tiers to use, in the order in which they are to be tried."""
    for tier in () if tiers is None else tiers:
        if not isinstance(tier, Tier):
            raise InvalidRequest("tiers", f"{tier!r} is no Tier; there are: {', '.join(Tier)}")
    known = (*_BY_USE, *(tier for tier in Tier if tier in OF_LANGUAGES))
    wanted = [tier for tier in known if tiers is None or tier in tiers]
    if not wanted:
        raise InvalidRequest("tiers", "names none; leave it out for all that can be started")
    return wanted


def _checked_modules(names: Sequence[str]) -> tuple[str, ...]:
    """They become arguments of an interpreter: names of modules, and nothing else."""
    if isinstance(names, str):
        raise InvalidRequest("preloaded", f"{names!r} is one name: put it into a tuple")
    for name in names:
        if not _is_module_name(name):
            raise InvalidRequest("preloaded", f"{name!r} is no module's name")
    if len(names) > _MOST_MODULES:
        raise InvalidRequest("preloaded", f"{len(names)} modules are more than {_MOST_MODULES}")
    return tuple(names)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


async def _open_namespace(resources: Resources, modules: Sequence[str]) -> TierDriver:
    image = find_host_image()
    zygotes = Zygotes(image, resources.identities(), modules)
    return await open_namespaces(image, resources.cgroups, zygotes)


async def _open_gvisor(resources: Resources, modules: Sequence[str], warm: bool) -> TierDriver:
    # Who names the other tier does not wait for it.
    from stockade.executor.gvisor.opening import open_gvisor

    return await open_gvisor(
        resources.cgroups,
        resources.identities(),
        first=Profile.of(Tier.GVISOR, SandboxRequest()),
        modules=modules,
        snapshots=warm,
    )


async def _open_microvm(
    resources: Resources, modules: Sequence[str], warm: bool, allow_emulation: bool
) -> TierDriver:
    from stockade.executor.microvm.opening import open_microvm

    return await open_microvm(
        resources.cgroups,
        resources.identities(),
        first=Profile.of(Tier.MICROVM, SandboxRequest()),
        modules=modules,
        snapshots=warm,
        allow_emulation=allow_emulation,
    )


async def _open_vm(
    resources: Resources, modules: Sequence[str], allow_emulation: bool
) -> TierDriver:
    from stockade.executor.vm.opening import open_vm

    return await open_vm(
        resources.cgroups,
        resources.identities(),
        modules=modules,
        allow_emulation=allow_emulation,
    )


async def _open_wasm(resources: Resources, modules: Sequence[str]) -> TierDriver:
    from stockade.executor.wasm.opening import open_wasm

    return await open_wasm(resources.cgroups, resources.identities(), modules)
