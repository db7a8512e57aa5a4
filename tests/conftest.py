"""Which tiers this machine can start, and what becomes of the tests that need another one.

`@pytest.mark.tier("namespace")` skips a test where the tier cannot be started, and says why.
STOCKADE_REQUIRE_TIERS names tiers, separated by commas, whose absence fails the test instead.

Every promise of the contract is tested in every tier. The cases that users hit (tests/cases) are
hundreds more, and take a tier with a kernel of its own as many minutes: they run there with
`--every-tier`, and else are deselected. So is what machines, which may be emulated, take minutes
for: of the contract, all but IN_MACHINES, of the attacks, all but ATTACKS_IN_MACHINES, and what
starts whole executors. A dedicated machine is booted for each test: of the contract IN_DEDICATED
is what always runs there, and nothing of the others. Nor is one booted with KVM that is emulated.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import settings

from stockade.executor.doctor import probe_tiers
from stockade.port import Tier
from stockade.port.policy import OWN_KERNEL

# A shared machine stands still now and then: time is measured by bench/, never here.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# Why a tier cannot be started here; None where it can.
Absences = Mapping[Tier, str | None]
ABSENCES = pytest.StashKey[Absences]()

IN_MACHINES = ("test_programs.py",)
"""What always runs in microVMs, of tests/contract."""
OVER_HTTP = ("test_control.py", "test_egress.py", "test_sessions.py", "test_streams.py")
"""What of them always runs against an executor that is reached over HTTP."""
BY_A_GATEWAY = ("test_control.py", "test_egress.py")
"""And with a gateway between."""
NOT_OVER_HTTP = (
    "test_many_programs_in_one_session", "test_counters_start_anew_with_each_program",
    "test_an_idle_agent_that_stands_still_is_noticed",
)  # fmt: skip
"""Of these files: what takes seconds, and says nothing of HTTP."""
NO_GATEWAYS = (
    # The key says whose it is.
    "test_two_tenants_at_once", "test_two_sessions_beside_each_other", "test_tier_and_image",
    "test_a_tier_is_named",
    # Whole workspaces it keeps, and gives to nobody.
    "test_a_paused_session_refuses_all_else", "test_a_workspace_is_saved_and_restored",
    "test_what_is_no_workspace_is_refused", "test_a_saved_workspace_that_was_cut_is_refused",
    "test_a_restore_stays_within_the_disk", "test_what_a_program_made_is_saved_as_it_is",
    "test_a_workspace_that_cannot_be_read_is_not_saved_in_part",
    "test_a_hostile_archive_stays_in_its_sandbox", "test_a_save_that_is_abandoned_ends",
)  # fmt: skip
"""What a gateway's caller cannot ask for."""
ATTACKS_IN_MACHINES = (
    "forged-frames", "signal-agent", "trace", "kernel-files", "device-nodes", "mounts", "set-id",
    "kernel-surface", "shared-places",
)  # fmt: skip
"""And of tests/attack: those on what a machine has and no other tier."""


IN_DEDICATED = ("test_a_full_disk_of_a_command", "test_too_many_files")
"""And in dedicated machines: what tells the ceilings of a real disk apart."""


def probe_absences(tiers: Collection[Tier]) -> Absences:
    """Ask the executor which of these this machine can start."""
    statuses = asyncio.run(probe_tiers(tiers, allow_emulation=True))
    return {tier: None if status.available else status.detail for tier, status in statuses.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-tier",
        action="store_true",
        help="run tests/cases in every tier, not in one, and all of tests/contract, tests/attack, "
        f"tests/executor and tests/bench in microVMs, of the first not only {', '.join(IN_MACHINES)}, "
        "and in dedicated machines",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("--every-tier")
    left_out = [
        item
        for item in items
        if item.name.startswith(tuple(f"{name}[gateway" for name in NO_GATEWAYS))
        or ("tests/cases/" in item.nodeid and over_http(item))  # they look into sandboxes
        or (not every and takes_minutes(item))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    # Minutes, one after the other: begun last they would be waited for alone.
    items.sort(key=lambda item: item.get_closest_marker("nested_kvm") is None)


def over_http(item: pytest.Item) -> bool:
    """Whether its environment is a service."""
    return "[remote" in item.name or "[gateway" in item.name


def takes_minutes(item: pytest.Item) -> bool:
    """Together with those like it."""
    if item.get_closest_marker("nested_kvm"):
        return any(Tier(*marker.args) is Tier.VM for marker in item.iter_markers("tier"))
    if repeats(item, {Tier.VM}):
        return vars(item).get("originalname") not in IN_DEDICATED
    if "tests/cases/" in item.nodeid:
        return repeats(item, OWN_KERNEL)
    if "tests/contract/" in item.nodeid and "[remote" in item.name:
        return item.path.name not in OVER_HTTP or item.name.startswith(NOT_OVER_HTTP)
    if "tests/contract/" in item.nodeid and "[gateway" in item.name:
        return item.path.name not in BY_A_GATEWAY
    if "tests/contract/" in item.nodeid and item.path.name not in IN_MACHINES:
        return repeats(item, {Tier.MICROVM})
    if "tests/bench/test_microvm.py" in item.nodeid:
        return True
    if "tests/executor/" in item.nodeid:
        return repeats(item, {Tier.MICROVM})
    if "tests/attack/" in item.nodeid and repeats(item, {Tier.MICROVM}):
        attack = vars(item)["callspec"].params.get("attack")
        return attack is not None and attack.name not in ATTACKS_IN_MACHINES
    return False


def repeats(item: pytest.Item, tiers: Collection[Tier]) -> bool:
    """Whether one of these tiers is the test's parameter, one of several."""
    return "callspec" in vars(item) and any(
        Tier(*marker.args) in tiers for marker in item.iter_markers("tier")
    )


def pytest_configure(config: pytest.Config) -> None:
    required_tiers()  # refuses a name that is none, before anything runs


def pytest_collection_finish(session: pytest.Session) -> None:
    """Probe once, here, where no event loop runs; and only if a test asks."""
    if session.config.option.collectonly:
        return
    tiers = {Tier(*marker.args) for item in session.items for marker in item.iter_markers("tier")}
    if tiers:
        session.config.stash[ABSENCES] = probe_absences(tiers)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("tier"):
        require_tier(item.config, Tier(*marker.args))


def require_tier(config: pytest.Config, tier: Tier) -> None:
    """Skip the test that runs, or fail it, unless this machine can start the tier."""
    absences = config.stash[ABSENCES]
    absence = absences.get(tier, "the probe says nothing of it")
    if absence is None:
        return
    reason = f"tier {tier}: {absence}"
    if tier in required_tiers():
        pytest.fail(f"{reason} (STOCKADE_REQUIRE_TIERS names it)", pytrace=False)
    pytest.skip(reason)


def required_tiers() -> frozenset[Tier]:
    names = os.environ.get("STOCKADE_REQUIRE_TIERS", "").split(",")
    try:
        return frozenset(Tier(name.strip()) for name in names if name.strip())
    except ValueError as error:
        raise pytest.UsageError(f"STOCKADE_REQUIRE_TIERS: {error}") from error


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name what was not tested; .ci/run repeats these lines at its end."""
    # By the reports, which come from whatever process the test ran in.
    skipped = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(skipped.items()):
        if not reason.startswith("tier "):
            continue
        terminalreporter.write_line(f"{reason} ({count} skipped)", yellow=True)
