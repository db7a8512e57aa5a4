"""Which tier serves a call: the strongest that may and can, and never a weaker one."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.executor import AuthMode, local, open_local
from stockade.executor.cgroups import CgroupError
from stockade.executor.environment import LocalEnvironment
from stockade.executor.pool import PoolPolicy
from stockade.executor.resources import Resources
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.tiers import Opener, TierDriver, Tiers
from stockade.port import (
    ExecutionRequest,
    InvalidRequest,
    PythonSource,
    SandboxLost,
    SandboxRequest,
    Tier,
    TrustLevel,
    Unavailable,
)
from stockade.port.policy import DEDICATED, STRENGTH, WEAKEST

REQUEST = ExecutionRequest(PythonSource(""))
NO_RUNSC = "runsc was not found; ./dev setup gets one"
NO_QEMU = "qemu was not found; ./dev setup gets one"
NO_IMAGE = "no image was built"
REASONS = {
    Tier.NAMESPACE: "user namespaces are switched off",
    Tier.GVISOR: NO_RUNSC,
    Tier.MICROVM: NO_QEMU,
    Tier.VM: NO_IMAGE,
}


class Driver:
    """A tier without sandboxes, which remembers what it was asked for."""

    def __init__(self, tier: Tier, *, emulated: bool = False) -> None:
        self.tier = tier
        self.emulated = emulated
        self.asked: list[Profile] = []
        self.closed = False

    async def create(self, profile: Profile) -> Sandbox:
        self.asked.append(profile)
        raise Unavailable(f"no sandbox of {self.tier}")

    async def forget(self, tenant: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        self.closed = True


def opener(driver: TierDriver) -> Opener:
    async def open_it() -> TierDriver:
        return driver

    return open_it


def lacking(tier: Tier) -> Opener:
    async def refuse() -> TierDriver:
        raise Unavailable(REASONS[tier])

    return refuse


def hanging(begun: asyncio.Event, freed: asyncio.Event, driver: TierDriver) -> Opener:
    async def wait() -> TierDriver:
        begun.set()
        await freed.wait()
        return driver

    return wait


def tiers_with(available: Collection[Tier]) -> Tiers:
    return Tiers(
        {tier: opener(Driver(tier)) if tier in available else lacking(tier) for tier in STRENGTH},
        Resources(),
    )


# --- the choice ---

NAMESPACE, GVISOR, MICROVM, VM = Tier.NAMESPACE, Tier.GVISOR, Tier.MICROVM, Tier.VM
BOTH = {NAMESPACE, GVISOR}


@pytest.mark.parametrize(
    ("level", "named", "available", "chosen"),
    [
        ("reviewed", None, BOTH, GVISOR),
        ("reviewed", None, {NAMESPACE}, NAMESPACE),
        ("reviewed", None, {GVISOR}, GVISOR),
        ("reviewed", NAMESPACE, BOTH, NAMESPACE),
        ("untested", None, BOTH, GVISOR),
        ("untested", None, {NAMESPACE}, NAMESPACE),
        ("untested", NAMESPACE, BOTH, NAMESPACE),
        ("untested", GVISOR, BOTH, GVISOR),
        ("hostile", None, BOTH, GVISOR),
        ("hostile", None, {*BOTH, MICROVM}, MICROVM),
        ("reviewed", None, {NAMESPACE, MICROVM}, MICROVM),
        ("untested", MICROVM, {MICROVM}, MICROVM),
        ("hostile", None, {*BOTH, VM}, GVISOR),
        ("hostile", VM, set(STRENGTH), VM),
        ("untested", None, set(STRENGTH), MICROVM),
        ("regulated", None, set(STRENGTH), VM),
        ("regulated", VM, {VM}, VM),
        (
            "regulated",
            None,
            {*BOTH, MICROVM},
            f"no tier that may run regulated code can be started here: vm ({NO_IMAGE})",
        ),
        (
            "untested",
            None,
            {VM},
            "no tier that may run untested code can be started here: "
            f"microvm ({NO_QEMU}), gvisor ({NO_RUNSC}), namespace (user namespaces are switched off)",
        ),
        ("hostile", MICROVM, BOTH, f"tier microvm cannot be started here: {NO_QEMU}"),
        ("hostile", GVISOR, BOTH, GVISOR),
        (
            "hostile",
            None,
            {NAMESPACE},
            "no tier that may run hostile code can be started here: "
            f"microvm ({NO_QEMU}), gvisor ({NO_RUNSC})",
        ),
        ("hostile", GVISOR, {NAMESPACE}, f"tier gvisor cannot be started here: {NO_RUNSC}"),
        ("untested", GVISOR, {NAMESPACE}, f"tier gvisor cannot be started here: {NO_RUNSC}"),
        (
            "reviewed",
            NAMESPACE,
            {GVISOR},
            "tier namespace cannot be started here: user namespaces are switched off",
        ),
        (
            "untested",
            None,
            set(),
            "no tier that may run untested code can be started here: "
            f"microvm ({NO_QEMU}), gvisor ({NO_RUNSC}), namespace (user namespaces are switched off)",
        ),
    ],
)
async def test_what_serves_a_request(
    level: str, named: Tier | None, available: set[Tier], chosen: Tier | str
) -> None:
    tiers = tiers_with(available)
    wanted = SandboxRequest(trust=TrustLevel(level), tier=named)
    if isinstance(chosen, Tier):
        assert (await tiers.choose(wanted)).tier is chosen
    else:
        with pytest.raises(Unavailable) as refused:
            await tiers.choose(wanted)
        assert str(refused.value) == chosen
        assert set(refused.value.missing.values()) <= set(REASONS.values())
    await tiers.close()


async def test_what_software_emulates_serves_only_who_names_it() -> None:
    """Emulation is no boundary, whatever the tier is called."""
    emulated = Driver(MICROVM, emulated=True)
    drivers = {MICROVM: emulated, GVISOR: Driver(GVISOR), NAMESPACE: Driver(NAMESPACE)}
    tiers = Tiers({tier: opener(driver) for tier, driver in drivers.items()}, Resources())
    for level in set(TrustLevel) - {TrustLevel.REGULATED}:
        assert (await tiers.choose(SandboxRequest(trust=level))).tier is GVISOR
    assert await tiers.choose(SandboxRequest(tier=MICROVM)) is emulated
    await tiers.close()
    alone = Tiers({MICROVM: opener(emulated), GVISOR: lacking(GVISOR)}, Resources())
    with pytest.raises(
        Unavailable, match=r"microvm \(it runs in software emulation here, which is"
    ):
        await alone.choose(SandboxRequest(trust=TrustLevel.HOSTILE))
    await alone.close()


async def test_an_emulated_machine_serves_no_level_that_asks_for_the_boundary() -> None:
    """Not even where there is nothing else: only a request that names it."""
    emulated = Driver(VM, emulated=True)
    tiers = Tiers({VM: opener(emulated)}, Resources())
    assert await tiers.choose(SandboxRequest()) is emulated
    regulated = TrustLevel.REGULATED
    with pytest.raises(Unavailable, match=r"vm \(it runs in software emulation here, which is"):
        await tiers.choose(SandboxRequest(trust=regulated))
    assert await tiers.choose(SandboxRequest(trust=regulated, tier=VM)) is emulated
    await tiers.close()


async def test_nobody_emulates_for_strangers() -> None:
    with pytest.raises(InvalidRequest, match="allow_emulation: is for auth_mode=dev"):
        async with open_local(auth_mode=AuthMode.API_KEY, allow_emulation=True):
            pass


@given(
    trust=st.sampled_from(TrustLevel),
    named=st.none() | st.sampled_from(STRENGTH),
    available=st.sets(st.sampled_from(STRENGTH)),
    ahead=st.booleans(),
)
def test_never_weaker_always_the_strongest(
    trust: TrustLevel, named: Tier | None, available: set[Tier], ahead: bool
) -> None:
    enough = set(STRENGTH[STRENGTH.index(WEAKEST[trust]) :])
    try:
        wanted = SandboxRequest(trust=trust, tier=named)
    except InvalidRequest:
        assert named is not None
        assert named not in enough
        return

    async def choose() -> Tier | None:
        tiers = tiers_with(available)
        if ahead:
            tiers.open_ahead()
        try:
            return (await tiers.choose(wanted)).tier
        except Unavailable:
            return None
        finally:
            await tiers.close()

    chosen = asyncio.run(choose())
    unnamed = DEDICATED if WEAKEST[trust] not in DEDICATED else frozenset()
    possible = available & enough & ({named} if named else set(STRENGTH) - unnamed)
    assert chosen is max(possible, key=STRENGTH.index, default=None)


async def test_a_tier_that_was_left_out_says_so() -> None:
    tiers = Tiers({NAMESPACE: opener(Driver(NAMESPACE))}, Resources())
    with pytest.raises(Unavailable, match="gvisor \\(this executor was opened without it\\)"):
        await tiers.choose(SandboxRequest(trust=TrustLevel.HOSTILE))
    await tiers.close()


async def test_a_fault_of_the_stronger_tier_is_no_reason_to_take_the_weaker() -> None:
    """What is no failure of the host is a bug, which the caller sees."""

    async def broken() -> TierDriver:
        raise ZeroDivisionError

    tiers = Tiers({GVISOR: broken, NAMESPACE: opener(Driver(NAMESPACE))}, Resources())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await tiers.choose(SandboxRequest())
    with suppress(ZeroDivisionError):
        await tiers.close()


@pytest.mark.parametrize(
    "error", [SandboxLost("no word of it"), CgroupError("no cgroup"), OSError("no space")]
)
async def test_a_host_that_fails_makes_the_tier_missing(error: Exception) -> None:
    """In its own words, and the weaker one may serve what it is strong enough for."""

    async def fails() -> TierDriver:
        raise error

    tiers = Tiers({GVISOR: fails, NAMESPACE: opener(Driver(NAMESPACE))}, Resources())
    assert (await tiers.choose(SandboxRequest())).tier is NAMESPACE
    with pytest.raises(Unavailable) as refused:
        await tiers.choose(SandboxRequest(trust=TrustLevel.HOSTILE))
    assert refused.value.missing[GVISOR] == str(error)
    await tiers.close()


async def test_a_sandbox_that_cannot_be_made_fails_the_call() -> None:
    """The tier was chosen; another one is not tried in its place."""
    strong, weak = Driver(GVISOR), Driver(NAMESPACE)
    tiers = Tiers({GVISOR: opener(strong), NAMESPACE: opener(weak)}, Resources())
    async with LocalEnvironment(tiers, PoolPolicy.fixed(0)) as environment:
        await environment._tiers.choose(SandboxRequest(tier=NAMESPACE))
        with pytest.raises(Unavailable, match="no sandbox of gvisor"):
            await environment.run(REQUEST)
        with pytest.raises(Unavailable, match="no sandbox of gvisor"):
            await environment.open_session()
    assert [profile.tier for profile in strong.asked] == [GVISOR, GVISOR]
    assert weak.asked == []
    assert strong.closed
    assert weak.closed


# --- opening ---


async def test_only_what_could_be_chosen_is_waited_for() -> None:
    begun, freed = asyncio.Event(), asyncio.Event()
    tiers = Tiers(
        {GVISOR: hanging(begun, freed, Driver(GVISOR)), NAMESPACE: opener(Driver(NAMESPACE))},
        Resources(),
    )
    tiers.open_ahead()
    assert await tiers.wait_for_one([GVISOR, NAMESPACE]) == {}
    await begun.wait()
    async with asyncio.timeout(5):
        assert (await tiers.choose(SandboxRequest(tier=NAMESPACE))).tier is NAMESPACE
    undecided = asyncio.create_task(tiers.choose(SandboxRequest()))
    await asyncio.sleep(0.01)
    assert not undecided.done()
    freed.set()
    assert (await undecided).tier is GVISOR
    await tiers.close()


async def test_nothing_is_opened_before_it_is_wanted() -> None:
    opened: list[Tier] = []

    def counted(tier: Tier) -> Opener:
        async def open_it() -> TierDriver:
            opened.append(tier)
            return Driver(tier)

        return open_it

    tiers = Tiers({tier: counted(tier) for tier in STRENGTH}, Resources())
    assert opened == []
    assert await tiers.wait_for_one([GVISOR, NAMESPACE]) == {}
    assert opened == [GVISOR]
    for _ in range(3):
        await tiers.choose(SandboxRequest())
        await tiers.choose(SandboxRequest(tier=NAMESPACE))
    assert opened == [GVISOR, MICROVM, NAMESPACE]
    tiers.open_ahead()
    await tiers.choose(SandboxRequest())
    assert VM not in opened
    await tiers.choose(SandboxRequest(trust=TrustLevel.REGULATED))
    assert opened[-1] is VM
    await tiers.close()


async def test_a_waiter_that_gives_up_does_not_stop_the_opening() -> None:
    begun, freed = asyncio.Event(), asyncio.Event()
    tiers = Tiers({GVISOR: hanging(begun, freed, Driver(GVISOR))}, Resources())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tiers.choose(SandboxRequest())
    freed.set()
    assert (await tiers.choose(SandboxRequest())).tier is GVISOR
    await tiers.close()


async def test_closing_refuses_who_waits_for_a_tier() -> None:
    begun, freed = asyncio.Event(), asyncio.Event()
    tiers = Tiers({GVISOR: hanging(begun, freed, Driver(GVISOR))}, Resources())
    environment = LocalEnvironment(tiers, PoolPolicy.fixed(0))
    waiting = asyncio.create_task(environment.run(REQUEST))
    await begun.wait()
    async with asyncio.timeout(5):
        await environment.close()
        with pytest.raises(Unavailable, match="the environment is closed"):
            await waiting


async def test_one_tiers_end_that_fails_does_not_keep_the_other() -> None:
    class Stuck(Driver):
        async def close(self) -> None:
            raise OSError("stuck")

    well = Driver(NAMESPACE)
    openers: Mapping[Tier, Opener] = {NAMESPACE: opener(well), GVISOR: opener(Stuck(GVISOR))}
    tiers = Tiers(openers, Resources())
    tiers.open_ahead()
    await tiers.wait_for_one([GVISOR])
    await tiers.wait_for_one([NAMESPACE])
    with pytest.raises(OSError, match="stuck"):
        await tiers.close()
    assert well.closed


# --- open_local ---


def replace_gvisor(monkeypatch: pytest.MonkeyPatch, replacement: Opener) -> None:
    monkeypatch.setattr(local, "_open_gvisor", lambda *_: replacement())


async def test_outside_dev_a_shared_kernel_alone_does_not_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refuses to start, says what is missing and how to get it, and has started nothing."""

    async def open_namespace(*_: object) -> TierDriver:
        raise AssertionError("it was opened all the same")

    monkeypatch.setattr(local, "_open_namespace", open_namespace)
    replace_gvisor(monkeypatch, lacking(GVISOR))
    with pytest.raises(Unavailable) as refused:
        async with open_local(auth_mode=AuthMode.API_KEY):
            pass
    assert "outside auth_mode=dev" in str(refused.value)
    assert NO_RUNSC in str(refused.value)
    with pytest.raises(Unavailable, match="this executor was opened without it"):
        async with open_local(auth_mode=AuthMode.API_KEY, tiers={NAMESPACE}):
            pass


async def test_outside_dev_a_kernel_of_its_own_does(monkeypatch: pytest.MonkeyPatch) -> None:
    strong = Driver(GVISOR)
    replace_gvisor(monkeypatch, opener(strong))
    async with open_local(auth_mode=AuthMode.API_KEY, warm=False) as environment:
        with pytest.raises(Unavailable, match="no sandbox of gvisor"):
            await environment.run(REQUEST, SandboxRequest(trust=TrustLevel.HOSTILE))
    assert strong.closed


@pytest.mark.plain_user
@pytest.mark.tier("namespace")
async def test_a_developer_is_served_by_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for hostile code, which is refused with the way to get what is missing."""
    replace_gvisor(monkeypatch, lacking(GVISOR))
    async with open_local() as environment:
        assert (await environment.run(REQUEST)).tier is NAMESPACE
        with pytest.raises(Unavailable, match=r"\./dev setup gets one"):
            await environment.run(REQUEST, SandboxRequest(trust=TrustLevel.HOSTILE))


async def test_no_tier_at_all_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_namespace(*_: object) -> TierDriver:
        raise Unavailable(REASONS[NAMESPACE])

    monkeypatch.setattr(local, "_open_namespace", open_namespace)
    replace_gvisor(monkeypatch, lacking(GVISOR))
    monkeypatch.setattr(local, "_open_microvm", lambda *_: lacking(MICROVM)())
    monkeypatch.setattr(local, "_open_vm", lambda *_: lacking(VM)())
    for warm in (True, False):
        with pytest.raises(Unavailable) as refused:
            async with open_local(warm=warm):
                pass
        assert dict(refused.value.missing) == REASONS


@pytest.mark.parametrize("wanted", [[], "namespace", ["namespace"], [None]])
async def test_tiers_that_are_none_are_refused(wanted: list[Tier]) -> None:
    with pytest.raises(InvalidRequest, match="tiers"):
        async with open_local(tiers=wanted):
            pass
